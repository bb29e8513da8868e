"""Prompt caches that are continued: by us, by mlx-lm, trimmed, saved, copied, or unfit."""

import copy
import functools

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import (
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    load_prompt_cache,
    make_prompt_cache,
    save_prompt_cache,
    trim_prompt_cache,
)
from support.caches import MAKERS, assert_continues, assert_holds, filled
from support.pairs import oracle_pair, random_pair, respond, tokens_of
from support.plain import clear_case, clear_turn, random_prompt
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import UserError
from dflash_mlx.cache.prompt import PromptCache
from dflash_mlx.engine.sampling import Sampling

B = 4
TOKENIZER = byte_tokenizer()
model = functools.cache(tiny_model)


@functools.cache
def case(length=9):
    return clear_case(model(), length, 60, Sampling())


both_makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@both_makers
def test_two_turn_chat(make):
    prompt, truth = case()
    turn, answer = clear_turn(model(), prompt + truth[:6], 8, 20)
    everything = prompt + truth[:6] + turn + answer
    with oracle_pair(model(), everything) as pair:
        cache, rows = make(pair), []
        respond(pair, TOKENIZER, prompt, 6, prompt_cache=cache)
        forward = pair.target.forward
        pair.target.forward = lambda ids, caches: rows.append(ids.shape[1]) or forward(ids, caches)
        assert tokens_of(respond(pair, TOKENIZER, turn, 20, prompt_cache=cache)) == answer
        assert_holds(model(), cache, everything)
        # Only the new turn is prefilled, in one chunk, without its last token.
        assert rows[0] == len(turn) - 1
        # The last token's own row may take a pass of its own at the end.
        assert set(rows[1:]) <= {B, 1}


@pytest.mark.parametrize("draft", [True, False], ids=["draft", "plain"])
def test_sampled_turn_equals_a_cold_run(draft):
    # The noise belongs to absolute positions, so a cache does not change the text.
    prompt, truth = case()
    options = {"temp": 0.9, "seed": 4, "draft": draft}
    turn = random_prompt(8, model().args.vocab_size, 5)
    with random_pair(model()) as pair:
        cold = respond(pair, TOKENIZER, prompt + truth[:6] + turn, 20, **options)
        cache = pair.make_prompt_cache()
        respond(pair, TOKENIZER, prompt, 6, prompt_cache=cache)
        warm = respond(pair, TOKENIZER, turn, 20, prompt_cache=cache, **options)
    assert tokens_of(warm) == tokens_of(cold)


def test_long_text_across_buffer_growth():
    prompt, truth = clear_case(model(), 9, 330, Sampling())
    with oracle_pair(model(), prompt + truth) as pair:
        cache = pair.make_prompt_cache()
        respond(pair, TOKENIZER, prompt, 300, prompt_cache=cache)
        assert_continues(pair, cache, prompt + truth[:300], truth[300:330])


def test_prompt_that_shares_half_of_the_cache():
    prompt = case(20)[0]
    other, answer = clear_turn(model(), prompt[:10], 10, 20)
    with oracle_pair(model(), prompt[:10] + other + answer) as pair:
        cache = pair.make_prompt_cache()
        respond(pair, TOKENIZER, prompt, 6, prompt_cache=cache)
        assert trim_prompt_cache(cache, 16) == 16
        assert tokens_of(respond(pair, TOKENIZER, other, 20, prompt_cache=cache)) == answer


@both_makers
@pytest.mark.parametrize("trimmed", [1, 3, 6, 7, 12])
def test_trimmed_and_continued(trimmed, make):
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth) as pair:
        cache = make(pair)
        respond(pair, TOKENIZER, prompt, 6, prompt_cache=cache)
        assert trim_prompt_cache(cache, trimmed) == trimmed
        kept = (prompt + truth[:6])[:-trimmed]
        again = (prompt + truth)[len(kept) : len(prompt) + 6]
        n = 10
        assert tokens_of(respond(pair, TOKENIZER, again, n, prompt_cache=cache)) == truth[6 : 6 + n]


def test_saved_and_loaded(tmp_path):
    prompt, truth = case()
    file = str(tmp_path / "cache.safetensors")
    with oracle_pair(model(), prompt + truth) as pair:
        cache = pair.make_prompt_cache()
        respond(pair, TOKENIZER, prompt, 6, prompt_cache=cache)
        save_prompt_cache(file, cache)
        loaded = load_prompt_cache(file)
        assert_continues(pair, loaded, prompt + truth[:6], truth[6:16])
        # What was filled and saved without a drafter goes on with one.
        save_prompt_cache(file, filled(model(), prompt + truth[:3]))
        assert_continues(pair, load_prompt_cache(file), prompt + truth[:3], truth[3:13])


def test_copied_cache_branches():
    prompt = case()[0]
    left, right = clear_turn(model(), prompt, 5, 15), clear_turn(model(), [*prompt, 1], 5, 15)
    with random_pair(model()) as pair:
        cache = pair.make_prompt_cache()
        respond(pair, TOKENIZER, prompt, 0, prompt_cache=cache)
        branch = copy.deepcopy(cache)
        first = respond(pair, TOKENIZER, left[0], 15, prompt_cache=cache)
        assert_holds(model(), branch, prompt)
        second = respond(pair, TOKENIZER, [1, *right[0]], 15, prompt_cache=branch)
    assert (tokens_of(first), tokens_of(second)) == (left[1], right[1])


@both_makers
@pytest.mark.parametrize("length", [1, 5])
def test_arrays_that_the_caller_kept_stay_as_they_were(length, make):
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth) as pair:
        cache = make(pair)
        respond(pair, TOKENIZER, prompt, 6, prompt_cache=cache)
        if length == 1:
            # Nothing is prefilled, so mlx-lm's own writes in place do not come into it.
            kept = [a for c in cache for a in (c.keys, c.values)]
        else:
            kept = [mx.array(a) for c in cache for a in (c.keys, c.values)]
        before = [np.array(a) for a in kept]
        responses = respond(pair, TOKENIZER, truth[6 : 6 + length], 20, prompt_cache=cache)
        assert tokens_of(responses) == truth[6 + length : 26 + length]
        for a, b in zip(kept, before, strict=True):
            assert np.array_equal(np.array(a), b)


def test_wrong_caches_are_refused_by_name():
    prompt, truth = case()
    refused = {
        "2 layers.*target has 3": make_prompt_cache(model())[:2],
        "RotatingKVCache": [RotatingKVCache(8) for _ in range(3)],
        "QuantizedKVCache": [KVCache(), KVCache(), QuantizedKVCache()],
        "differ in length": filled(model(), prompt)[:2] + filled(model(), truth)[:1],
        "batch of 2": [KVCache() for _ in range(3)],
    }
    model()(mx.array([prompt, prompt]), cache=refused["batch of 2"])
    with oracle_pair(model(), prompt + truth) as pair:
        for message, cache in refused.items():
            with pytest.raises(UserError, match=message):
                respond(pair, TOKENIZER, prompt, 5, prompt_cache=cache)


def test_prompt_cache_is_a_list_as_mlx_lm_makes_it():
    with random_pair(model()) as pair:
        cache = pair.make_prompt_cache()
        assert isinstance(cache, list)
        assert isinstance(cache, PromptCache)
        assert [type(c) for c in cache] == [KVCache] * 3
