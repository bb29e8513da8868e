"""``max_kv_size`` and ``kv_bits``: mlx-lm's meaning, or a refusal by name."""

import functools

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache, make_prompt_cache
from support.pairs import oracle_pair, respond, tokens_of
from support.plain import clear_steps, plain_greedy
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import Pair, UserError, stream_generate
from dflash_mlx.target.target import Target

TOKENIZER = byte_tokenizer()
BITS = {"kv_bits": 8, "kv_group_size": 32}
model_of = functools.cache(tiny_model)


def both_ways(model, prompt, truth, **options):
    """The text of ``options``, drafted and plain."""
    with oracle_pair(model, prompt + truth) as pair:
        for draft in (True, False):
            yield tokens_of(respond(pair, TOKENIZER, prompt, 40, draft=draft, **options))


@pytest.mark.parametrize("step", [5, 2048])
@pytest.mark.parametrize("start", [0, 9, 12, 13, 30, 5000])
def test_quantization_equals_mlx_lms(start, step):
    model = model_of("llama", head_dim=32)
    options = BITS | {"quantized_kv_start": start, "prefill_step_size": step}
    prompt, truth = clear_steps(model, 13, 40, margin=1e-2, **options)
    assert all(text == truth for text in both_ways(model, prompt, truth, **options))


def test_default_start_is_mlx_lms():
    model = model_of("llama", head_dim=32)
    prompt, truth = clear_steps(model, 13, 40)
    assert all(text == truth for text in both_ways(model, prompt, truth, **BITS))


@pytest.mark.parametrize("step", [5, 2048])
@pytest.mark.parametrize("size", [5, 8, 30, 52, 53, 54])
def test_max_kv_size_equals_mlx_lms(size, step):
    model = model_of("qwen3")
    make = functools.partial(make_prompt_cache, max_kv_size=size)
    prompt, truth = clear_steps(model, 13, 40, 0, make, prefill_step_size=step)
    options = {"max_kv_size": size, "prefill_step_size": step}
    assert all(text == truth for text in both_ways(model, prompt, truth, **options))


def test_max_kv_size_without_end():
    model = model_of("qwen3")
    make = functools.partial(make_prompt_cache, max_kv_size=8)
    prompt, truth = clear_steps(model, 13, 40, 0, make)
    with oracle_pair(model, prompt + truth) as pair:
        responses = stream_generate(pair, TOKENIZER, prompt, -1, max_kv_size=8)
        assert [next(responses).token for _ in range(40)] == truth
        responses.close()


def test_prompt_cache_of_a_size():
    model = model_of("qwen3")
    make = functools.partial(make_prompt_cache, max_kv_size=8)
    prompt, truth = clear_steps(model, 13, 40, 0, make)
    with oracle_pair(model, prompt + truth) as pair:
        for options in ({}, {"max_kv_size": 8}):
            cache = pair.make_prompt_cache(max_kv_size=8)
            assert {(type(c), c.max_size, c.keep) for c in cache} == {(RotatingKVCache, 8, 4)}
            responses = respond(pair, TOKENIZER, prompt, 40, prompt_cache=cache, **options)
            assert tokens_of(responses) == truth
        with pytest.raises(UserError, match="not made with that size"):
            respond(pair, TOKENIZER, prompt, 40, prompt_cache=cache, max_kv_size=9)


def test_quantized_prompt_cache_and_its_bits():
    model = model_of("llama", head_dim=32)
    prompt, truth = clear_steps(model, 13, 60, margin=1e-2, quantized_kv_start=0, **BITS)
    with oracle_pair(model, prompt + truth) as pair:
        cache, options = pair.make_prompt_cache(), BITS | {"quantized_kv_start": 0}
        respond(pair, TOKENIZER, prompt, 20, prompt_cache=cache, **options)
        assert {(type(c), c.bits) for c in cache} == {(QuantizedKVCache, 8)}
        for wrong in ({"kv_bits": 4}, {"kv_group_size": 64}):
            with pytest.raises(UserError, match=r"bits=8.*give what the cache has|groups of 64"):
                respond(pair, TOKENIZER, [1], 5, prompt_cache=cache, **(options | wrong))
        for more, n in ({}, 20), (options, 40):
            responses = respond(pair, TOKENIZER, truth[n : n + 1], 19, prompt_cache=cache, **more)
            assert tokens_of(responses) == truth[n + 1 : n + 20]


REFUSED = {
    "mlx-lm quantizes no rotating cache": ("gemma3_text", {}, BITS),
    "sinks|no rotating cache": ("gpt_oss", {}, BITS),
    "CacheList.*does not quantize": ("glm_moe_dsa", {}, BITS),
    "cannot be quantized to 8 bits.*mlx-lm fails": ("deepseek_v3", {}, BITS),
    "divisible by": ("llama", {}, BITS),
    "keep=4.*no rotating cache": ("qwen3", {"head_dim": 32}, BITS | {"max_kv_size": 8}),
    "do nothing without `kv_bits`": ("llama", {}, {"kv_group_size": 32}),
    "shapes its own caches": ("llama", {}, {"max_kv_size": 20}),
    "must be 5 or more": ("qwen3", {}, {"max_kv_size": 4}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused_by_name(message):
    family, sizes, options = REFUSED[message]
    pair = Pair(Target(model_of(family, **sizes)))
    with pytest.raises(UserError, match=message):
        stream_generate(pair, TOKENIZER, [1, 2, 3], 40, **options)


def test_size_that_a_family_cannot_have():
    with pytest.raises(UserError, match="shapes its own caches"):
        Pair(Target(model_of("llama"))).make_prompt_cache(max_kv_size=20)


def test_block_too_large_for_a_ring():
    truth = [1, 2, 3, *range(50)]
    for family, sizes, options in ("gemma3_text", {}, {}), ("qwen3", {}, {"max_kv_size": 8}):
        with oracle_pair(model_of(family, **sizes), truth, [0], 40) as pair:
            with pytest.raises(UserError, match=r"between 1 and 32.*trained for 40.*not 33"):
                stream_generate(pair, TOKENIZER, truth[:3], 40, block_size=33, **options)
            responses = respond(pair, TOKENIZER, truth[:3], 40, block_size=32, **options)
            assert {r.block_size for r in responses} == {32}
            assert tokens_of(responses) == plain_greedy(pair.model, truth[:3], 40, **options)


class Boom(Exception):
    pass


@pytest.mark.parametrize("n", [0, 3])
def test_cache_is_given_back_when_the_last_forward_fails(n):
    model = model_of("qwen3")
    prompt, truth = clear_steps(model, 13, 40)
    with oracle_pair(model, prompt + truth) as pair:
        cache = pair.make_prompt_cache()
        responses = stream_generate(pair, TOKENIZER, prompt, 40, prompt_cache=cache)
        forward = pair.target.forward

        def fail(ids, caches):
            if not isinstance(caches[0], KVCache) and len(emitted) >= n:
                raise Boom
            return forward(ids, caches)

        emitted, pair.target.forward = [], fail
        with pytest.raises(Boom):
            for response in responses:
                emitted.append(response.token)
        held = cache[0].offset
        assert {c.offset for c in cache} == {held}
        assert held >= len(prompt) - 1
        del pair.target.forward
        everything = prompt + truth
        rest = respond(pair, TOKENIZER, everything[held : held + 1], 10, prompt_cache=cache)
        assert tokens_of(rest) == everything[held + 1 : held + 11]


def test_rows_are_not_held_twice():
    model, rows = model_of("llama"), 20_000
    cache = make_prompt_cache(model)
    for c in cache:
        c.keys, c.values = (mx.random.normal((1, 2, rows, 8)) for _ in range(2))
        c.offset = rows
    mx.eval([c.state for c in cache])
    size = sum(c.nbytes for c in cache)
    with Pair(Target(model)) as pair:
        before = mx.get_active_memory()
        responses = stream_generate(pair, TOKENIZER, [1], 20, prompt_cache=cache)
        for _ in range(3):
            next(responses)
        assert mx.get_active_memory() < before + 0.2 * size
        responses.close()
    assert {c.offset for c in cache} == {rows + 4}
