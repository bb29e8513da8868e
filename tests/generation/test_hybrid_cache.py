"""Prompt caches of hybrid targets, whose recurrent states must stand at exactly one length."""

import copy
import functools

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    load_prompt_cache,
    make_prompt_cache,
    save_prompt_cache,
)
from support.caches import MAKERS, assert_continues, assert_holds, filled
from support.outside import OUTSIDE
from support.pairs import oracle_pair, respond, tokens_of
from support.plain import clear_case, clear_turn, plain_greedy
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import UserError, stream_generate
from dflash_mlx.cache.adopt import leaves
from dflash_mlx.engine.sampling import Sampling

B = 4
TOKENIZER = byte_tokenizer()
# Gemma 4 is here for the caches that its last layers do not have.
FAMILIES = ("qwen3_next", "qwen3_5", "gemma4", "falcon_h1", "lfm2", "nemotron_h")
every_family = pytest.mark.parametrize("family", FAMILIES)
every_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@functools.cache
def model_of(family):
    return tiny_model(family, **OUTSIDE.get(family, {}))


@functools.cache
def case(family, length=5):
    return clear_case(model_of(family), length, 60, Sampling())


@every_maker
@every_family
@pytest.mark.parametrize("n", [0, 1, 4, 5, 14])
def test_ends_anywhere(n, family, make):
    prompt, truth = case(family)
    with oracle_pair(model_of(family), prompt + truth, block_size=B) as pair:
        cache = make(pair)
        assert tokens_of(respond(pair, TOKENIZER, prompt, n, prompt_cache=cache)) == truth[:n]
        assert_continues(pair, cache, prompt + truth[:n], truth[n : n + 20])


@pytest.mark.parametrize("counts", [[3], [2, 0, 3, 1]], ids=["all", "mixed"])
@pytest.mark.parametrize("j", range(2 * B + 1))
def test_ends_at_the_eos(j, counts):
    prompt, truth = case("qwen3_5")
    j = truth.index(truth[j])
    with oracle_pair(model_of("qwen3_5"), prompt + truth, counts, B) as pair:
        cache = pair.make_prompt_cache()
        respond(pair, byte_tokenizer([truth[j]]), prompt, 40, prompt_cache=cache)
        assert_continues(pair, cache, prompt + truth[: j + 1], truth[j + 1 : j + 11])


@every_family
def test_one_token_prompt_and_plain_decoding(family):
    prompt, truth = case(family, 1)
    with oracle_pair(model_of(family), prompt + truth, block_size=B) as pair:
        for n in (0, 1, 6):
            cache = pair.make_prompt_cache()
            plainly = respond(pair, TOKENIZER, prompt, n, prompt_cache=cache, draft=False)
            assert tokens_of(plainly) == truth[:n]
            assert_continues(pair, cache, prompt + truth[:n], truth[n : n + 10])


@every_family
def test_files_of_mlx_lm(family, tmp_path):
    prompt, truth = case(family, 30)
    path = str(tmp_path / "cache.safetensors")
    with oracle_pair(model_of(family), prompt + truth, block_size=B) as pair:
        cache = pair.make_prompt_cache()
        respond(pair, TOKENIZER, prompt, 10, prompt_cache=cache)
        save_prompt_cache(path, cache)
        assert_continues(pair, load_prompt_cache(path), prompt + truth[:10], truth[10:40])
        # And one that mlx-lm made by itself.
        theirs = make_prompt_cache(pair.model)
        assert plain_greedy(pair.model, prompt, 10, prompt_cache=theirs) == truth[:10]
        save_prompt_cache(path, theirs)
        assert_continues(pair, load_prompt_cache(path), prompt + truth[:10], truth[10:40])


@every_family
def test_turns_of_a_conversation(family):
    model = model_of(family)
    prompt, truth = case(family)
    turn, answer = clear_turn(model, prompt + truth[:7], 6, 20)
    with oracle_pair(model, prompt + truth[:7] + turn + answer, block_size=B) as pair:
        cache = pair.make_prompt_cache()
        respond(pair, TOKENIZER, prompt, 7, prompt_cache=cache)
        assert tokens_of(respond(pair, TOKENIZER, turn, 20, prompt_cache=cache)) == answer


@every_family
def test_copies_of_a_cache_stay_as_they_are(family):
    prompt, truth = case(family)
    model = model_of(family)
    cache = filled(model, prompt[:-1])
    copies = [copy.deepcopy(cache), copy.deepcopy(cache)]
    held = [list(c.cache) for c in leaves(copies[1]) if type(c) is ArraysCache]
    with oracle_pair(model, prompt + truth, block_size=B) as pair:
        assert tokens_of(respond(pair, TOKENIZER, prompt[-1:], 9, prompt_cache=cache)) == truth[:9]
        assert_holds(model, cache, prompt + truth[:9])
        for other in copies:
            assert_holds(model, other, prompt[:-1])
        # A snapshot of the states by reference is one as well.
        again = copies[1]
        respond(pair, TOKENIZER, prompt[-1:], 9, prompt_cache=again)
    before = [c.cache for c in leaves(filled(model, prompt[:-1])) if type(c) is ArraysCache]
    for ours, theirs in zip(held, before, strict=True):
        assert all(map(mx.allclose, ours, theirs))


def padded(cache):
    for c in cache:
        if type(c) is ArraysCache:
            c.lengths = mx.array([3])
    return cache


def test_damaged_and_batched_caches_are_refused():
    model = model_of("qwen3_5")
    prompt, truth = case("qwen3_5")
    full, empty = filled(model, prompt), make_prompt_cache(model)
    batch = make_prompt_cache(model)
    model(mx.array([prompt, prompt]), cache=batch)
    kinds = [type(c) is ArraysCache for c in full]
    bad = {
        "differ in length": [f if k else e for f, e, k in zip(full, empty, kinds, strict=True)],
        "so it is damaged": [e if k else f for f, e, k in zip(full, empty, kinds, strict=True)],
        "a batch of 2": batch,
        "extract its sequence": padded(filled(model, prompt)),
        "each at its place": [c if k else ArraysCache(2) for c, k in zip(full, kinds, strict=True)],
    }
    with oracle_pair(model, prompt + truth) as pair:
        for message, cache in bad.items():
            with pytest.raises(UserError, match=message):
                stream_generate(pair, TOKENIZER, prompt, prompt_cache=cache)


def test_cache_in_use_is_refused():
    prompt, truth = case("qwen3_5")
    with oracle_pair(model_of("qwen3_5"), prompt + truth) as pair:
        cache = pair.make_prompt_cache()
        responses = stream_generate(pair, TOKENIZER, prompt, 50, prompt_cache=cache)
        next(responses)
        with pytest.raises(UserError, match="in use"):
            stream_generate(pair, TOKENIZER, prompt, prompt_cache=cache)
        responses.close()
        assert_holds(pair.model, cache, prompt + truth[:1])


def test_quantized_keys_and_values_beside_recurrent_states():
    model = tiny_model("qwen3_5", head_dim=32)
    prompt, _ = clear_case(model, 9, 30, Sampling())
    truth = plain_greedy(model, prompt, 40, kv_bits=8, kv_group_size=32, quantized_kv_start=0)
    options = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 0}
    with oracle_pair(model, prompt + truth, block_size=B) as pair:
        cache = pair.make_prompt_cache()
        responses = respond(pair, TOKENIZER, prompt, 20, prompt_cache=cache, **options)
        assert tokens_of(responses) == truth[:20]
        assert (
            tokens_of(respond(pair, TOKENIZER, truth[20:21], 10, prompt_cache=cache))
            == (truth[21:31])
        )
