"""Prompt caches that forget, round or come in lists: handed back, continued, saved, left alone."""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import (
    QuantizedKVCache,
    load_prompt_cache,
    make_prompt_cache,
    save_prompt_cache,
)
from support.caches import assert_same
from support.pairs import oracle_pair, respond, tokens_of
from support.plain import clear_steps, plain_greedy
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import UserError, stream_generate

B = 4
N = 60
TOKENIZER = byte_tokenizer()


def quantized(model):
    return [QuantizedKVCache(32, 8) for _ in model.layers]


@dataclass(frozen=True)
class Kind:
    """A target, how mlx-lm makes its cache, and the options of a generation."""

    family: str
    make: Callable = make_prompt_cache
    sizes: dict[str, int] = field(default_factory=dict)
    options: dict[str, int] = field(default_factory=dict)


WIDE = {"head_dim": 32}
LATER = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 20}
KINDS = {
    "kept": Kind("qwen3", functools.partial(make_prompt_cache, max_kv_size=8)),
    "quantized": Kind("llama", quantized, WIDE),
    "quantizing": Kind("llama", make_prompt_cache, WIDE, LATER),
    "latent": Kind("deepseek_v3"),
    "list": Kind("glm_moe_dsa"),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@functools.cache
def model_of(kind):
    return tiny_model(KINDS[kind].family, **KINDS[kind].sizes)


@functools.cache
def case(kind, length=7):
    margin = 1e-2 if KINDS[kind].sizes is WIDE else 1e-4
    options = KINDS[kind].options
    return clear_steps(model_of(kind), length, N, 0, KINDS[kind].make, margin, **options)


def pair_of(kind, length=7):
    prompt, truth = case(kind, length)
    return oracle_pair(model_of(kind), prompt + truth, block_size=B)


def mlx_lm(kind, n, length=7):
    """mlx-lm's own cache after a prompt and ``n`` tokens."""
    cache = KINDS[kind].make(model_of(kind))
    prompt, truth = case(kind, length)
    text = plain_greedy(model_of(kind), prompt, n, prompt_cache=cache, **KINDS[kind].options)
    assert text == truth[:n]
    return cache


def assert_continues(pair, kind, cache, n, length=7):
    """``cache`` is mlx-lm's after ``n`` tokens, and goes on in mlx-lm, on a copy, and with us."""
    truth, options = case(kind, length)[1], KINDS[kind].options
    assert_same(cache, mlx_lm(kind, n, length))
    stock = [copy.deepcopy(c) for c in cache]
    assert (
        plain_greedy(pair.model, truth[n : n + 1], 12, prompt_cache=stock, **options)
        == (truth[n + 1 : n + 13])
    )
    responses = respond(pair, TOKENIZER, truth[n : n + 1], 12, prompt_cache=cache, **options)
    assert tokens_of(responses) == truth[n + 1 : n + 13]
    assert_same(cache, mlx_lm(kind, n + 13, length))


@every_kind
@pytest.mark.parametrize("length", [1, 7, 30])
def test_ends_anywhere(kind, length):
    prompt, truth = case(kind, length)
    for n in (0, 1, 13, 25):
        with pair_of(kind, length) as pair:
            cache = KINDS[kind].make(pair.model)
            options = {"prompt_cache": cache, **KINDS[kind].options}
            assert tokens_of(respond(pair, TOKENIZER, prompt, n, **options)) == truth[:n]
            assert_continues(pair, kind, cache, n, length)


@every_kind
def test_closed_early(kind):
    prompt, truth = case(kind)
    for k in (1, 7, 12, 13, 14):
        with pair_of(kind) as pair:
            cache = KINDS[kind].make(pair.model)
            options = {"prompt_cache": cache, **KINDS[kind].options}
            responses = stream_generate(pair, TOKENIZER, prompt, 50, **options)
            assert [next(responses).token for _ in range(k)] == truth[:k]
            responses.close()
            assert_continues(pair, kind, cache, k)


@every_kind
def test_plain_decoding(kind):
    prompt, truth = case(kind)
    with pair_of(kind) as pair:
        cache = KINDS[kind].make(pair.model)
        options = {"prompt_cache": cache, "draft": False, **KINDS[kind].options}
        assert tokens_of(respond(pair, TOKENIZER, prompt, 20, **options)) == truth[:20]
        assert_continues(pair, kind, cache, 20)


@every_kind
@pytest.mark.parametrize("n", [3, 25])
def test_files_of_mlx_lm(kind, n, tmp_path):
    file = str(tmp_path / "cache.safetensors")
    with pair_of(kind) as pair:
        save_prompt_cache(file, mlx_lm(kind, n))
        assert_continues(pair, kind, load_prompt_cache(file), n)
        cache = KINDS[kind].make(pair.model)
        options = {"prompt_cache": cache, **KINDS[kind].options}
        respond(pair, TOKENIZER, case(kind)[0], n, **options)
        save_prompt_cache(file, cache)
        assert_continues(pair, kind, load_prompt_cache(file), n)


@every_kind
def test_what_the_caller_kept_stays_as_it_was(kind):
    truth = case(kind)[1]
    with pair_of(kind) as pair:
        for n in (3, 25):
            cache = mlx_lm(kind, n)
            branch = copy.deepcopy(cache)
            kept = [a for _, a in tree_flatten([c.state for c in cache]) if isinstance(a, mx.array)]
            before = [np.array(a) for a in kept]
            options = {"prompt_cache": cache, **KINDS[kind].options}
            # A single token is no prefill, so mlx-lm's own writes in place do not come into it.
            responses = respond(pair, TOKENIZER, truth[n : n + 1], 20, **options)
            assert tokens_of(responses) == truth[n + 1 : n + 21]
            for a, b in zip(kept, before, strict=True):
                assert np.array_equal(np.array(a), b)
            assert_same(branch, mlx_lm(kind, n))


@every_kind
def test_cache_in_use(kind):
    prompt, truth = case(kind)
    with pair_of(kind) as pair:
        cache = KINDS[kind].make(pair.model)
        options = {"prompt_cache": cache, **KINDS[kind].options}
        first = stream_generate(pair, TOKENIZER, prompt, 50, **options)
        stale = stream_generate(pair, TOKENIZER, prompt, 50, **options)
        assert next(first).token == truth[0]
        with pytest.raises(UserError, match="in use"):
            stream_generate(pair, TOKENIZER, prompt, 50, **options)
        with pytest.raises(UserError, match="in use"):
            next(stale)
        first.close()
        stale = stream_generate(pair, TOKENIZER, truth[1:2], 5, **options)
        assert_continues(pair, kind, cache, 1)
        with pytest.raises(UserError, match="changed"):
            next(stale)
