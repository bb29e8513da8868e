"""The drafter's context K/V: the same rows whether prefilled at once, in chunks, or kept."""

import copy
import functools
from contextlib import contextmanager

import mlx.core as mx
import pytest
from mlx_lm.models.cache import trim_prompt_cache
from support.pairs import random_pair, respond, tokens_of
from support.plain import clear_case, clear_turn, plain_greedy, random_prompt
from support.tiny import VOCAB, tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import stream_generate
from dflash_mlx.engine.sampling import Sampling

TOKENIZER = byte_tokenizer()
N = 12
model = functools.cache(tiny_model)


@functools.cache
def case(length):
    return clear_case(model(), length, 60, Sampling())


@contextmanager
def recorded(pair):
    """The logits of every block that is drafted, and the context that each was drafted from."""
    drafts, contexts, draft = [], [], pair.drafter.draft

    def spy(anchor, block_size, context):
        offset = context[0].offset.item()
        contexts.append(
            [[a[:, :, :offset] for a in (c.keys, c.values) if a is not None] for c in context]
        )
        proposal = draft(anchor, block_size, context)
        drafts.append(proposal.logits)
        return proposal

    pair.drafter.draft = spy
    try:
        yield drafts, contexts
    finally:
        pair.drafter.draft = draft


def first_block(pair, prompt, truth, **options):
    """The first block's logits and context, of a generation that must come to ``truth``."""
    with recorded(pair) as (drafts, contexts):
        responses = respond(pair, TOKENIZER, prompt, len(truth), **options)
    assert tokens_of(responses) == truth
    return drafts[0], contexts[0]


def assert_same(one, other):
    (drafts, context), (other_drafts, other_context) = one, other
    pairs = [(drafts, other_drafts)]
    for layer, other_layer in zip(context, other_context, strict=True):
        pairs += zip(layer, other_layer, strict=True)
    for a, b in pairs:
        assert a.shape == b.shape
        # Another shape of the same product rounds differently.
        assert mx.abs(a - b).max() <= 2e-5 * mx.abs(b).max()


@pytest.mark.parametrize("step", [1, 4, 8, 35, 36, 37, 4096])
def test_prefill_step_size_changes_nothing(step):
    prompt, truth = case(37)
    with random_pair(model()) as pair:
        whole = first_block(pair, prompt, truth[:N])
        stepped = first_block(pair, prompt, truth[:N], prefill_step_size=step)
    assert whole[1][0][0].shape[2] == len(prompt) - 1
    assert_same(whole, stepped)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 16, 17])
def test_prompt_lengths_around_a_chunk(length):
    prompt, truth = case(length)
    with random_pair(model()) as pair:
        if length == 1:
            assert tokens_of(respond(pair, TOKENIZER, prompt, N)) == truth[:N]
            return
        whole = first_block(pair, prompt, truth[:N])
        assert_same(whole, first_block(pair, prompt, truth[:N], prefill_step_size=8))


def progress_of(run):
    calls = []
    run(lambda done, total: calls.append((done, total)))
    return calls


@pytest.mark.parametrize("step", [1, 4, 8, 36, 4096])
@pytest.mark.parametrize("length", [1, 2, 37])
def test_progress_is_reported_as_mlx_lm_does(length, step):
    prompt, _ = case(length)
    with random_pair(model()) as pair:
        ours = progress_of(
            lambda call: respond(
                pair, TOKENIZER, prompt, 5, prefill_step_size=step, prompt_progress_callback=call
            )
        )
    theirs = progress_of(
        lambda call: plain_greedy(
            model(), prompt, 5, prefill_step_size=step, prompt_progress_callback=call
        )
    )
    assert ours == theirs
    assert ours[0] == (0, length)
    assert ours[-1] == (length, length)


def test_progress_is_complete_when_no_token_is_asked_for():
    prompt, _ = case(37)
    with random_pair(model()) as pair:
        calls = progress_of(
            lambda call: respond(pair, TOKENIZER, prompt, 0, prompt_progress_callback=call)
        )
    assert calls[-1] == (37, 37)


@pytest.mark.parametrize("n", [0, 1, 5, 8, 9])
def test_continued_cache_drafts_as_a_cold_start_does(n):
    prompt, truth = case(20)
    before = prompt + truth[:n]
    turn, answer = clear_turn(model(), before, 6, N)
    with random_pair(model()) as pair:
        cold = first_block(pair, before + turn, answer)
        cache = pair.make_prompt_cache()
        respond(pair, TOKENIZER, prompt, n, prompt_cache=cache)
        assert_same(cold, first_block(pair, turn, answer, prompt_cache=cache))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_context_survives_an_early_close(k):
    prompt, truth = case(20)
    before = prompt + truth[:k]
    turn, answer = clear_turn(model(), before, 6, N)
    with random_pair(model()) as pair:
        cache = pair.make_prompt_cache()
        stream = stream_generate(pair, TOKENIZER, prompt, prompt_cache=cache)
        for _ in range(k):
            next(stream)
        stream.close()
        warm = first_block(pair, turn, answer, prompt_cache=cache)
        assert_same(first_block(pair, before + turn, answer), warm)


def test_trimmed_cache_drafts_as_a_cold_start_does():
    prompt, truth = case(20)
    before = (prompt + truth[:9])[:-12]
    turn, answer = clear_turn(model(), before, 6, N)
    with random_pair(model()) as pair:
        cold = first_block(pair, before + turn, answer)
        cache = pair.make_prompt_cache()
        respond(pair, TOKENIZER, prompt, 9, prompt_cache=cache)
        trim_prompt_cache(cache, 12)
        assert_same(cold, first_block(pair, turn, answer, prompt_cache=cache))


@pytest.mark.parametrize("kv_bits", [None, 8])
@pytest.mark.parametrize("foreign", [3, 10])
def test_context_of_tokens_that_were_replaced_is_not_used(foreign, kv_bits):
    prompt, _ = case(20)
    quantized = {"kv_bits": kv_bits, "kv_group_size": 32, "quantized_kv_start": 0}
    options = quantized if kv_bits else {}
    with random_pair(model(head_dim=32)) as pair:
        cache = pair.make_prompt_cache()
        respond(pair, TOKENIZER, prompt, 12, prompt_cache=cache, **options)
        trim_prompt_cache(cache, 10)
        pair.model(mx.array([random_prompt(foreign, VOCAB, 5)]), cache=cache)
        length = cache[0].offset
        assert cache.take_context(length, pair.drafter) is None


def test_copied_cache_drafts_as_a_cold_start_does():
    prompt, truth = case(20)
    before = prompt + truth[:9]
    turn, answer = clear_turn(model(), before, 6, N)
    with random_pair(model()) as pair:
        cold = first_block(pair, before + turn, answer)
        cache = pair.make_prompt_cache()
        respond(pair, TOKENIZER, prompt, 9, prompt_cache=cache)
        branch = copy.deepcopy(cache)
        first_block(pair, turn, answer, prompt_cache=cache)
        assert_same(cold, first_block(pair, turn, answer, prompt_cache=branch))


def filled_by_mlx_lm(pair, tokens, cache):
    plain_greedy(pair.model, tokens, 0, prompt_cache=cache)
    return cache


def drafted_from(pair, tokens, begin):
    """The logits of the block after ``tokens``, drafted from the features from ``begin`` on.

    The rows stand at position 0 and on: attention with rotary embeddings sees distances only.
    """
    _, features = pair.target.forward(mx.array([tokens[:-1]]), pair.target.make_cache())
    context = pair.drafter.make_context(mx.array([0], mx.int32))
    for cache in context:
        cache.reserve(64)
    pair.drafter.write_context(features[:, begin:], context)
    for cache in context:
        cache.offset = mx.array([len(tokens) - 1 - begin], mx.int32)
    return pair.drafter.draft(mx.array(tokens[-1:]), pair.drafter.block_size, context).logits


def assert_close(drafts, expected):
    assert mx.abs(drafts - expected).max() <= 1e-4 * mx.abs(expected).max()


def test_cache_without_context_drafts_from_the_new_turn_alone():
    prompt = case(20)[0]
    turn, answer = clear_turn(model(), prompt, 6, N)
    with random_pair(model()) as pair:
        expected = drafted_from(pair, prompt + turn, len(prompt))
        for cache in (pair.target.make_cache(), pair.make_prompt_cache()):
            filled_by_mlx_lm(pair, prompt, cache)
            drafts, context = first_block(pair, turn, answer, prompt_cache=cache)
            assert context[0][0].shape[2] == len(prompt) + len(turn) - 1
            assert_close(drafts, expected)


def test_cache_that_went_on_without_us_drafts_from_the_new_turn_alone():
    prompt, truth = case(20)
    before = prompt + truth[:15]
    turn, answer = clear_turn(model(), before, 6, N)
    with random_pair(model()) as pair:
        cache = pair.make_prompt_cache()
        respond(pair, TOKENIZER, prompt, 9, prompt_cache=cache)
        filled_by_mlx_lm(pair, truth[9:15], cache)
        drafts, _ = first_block(pair, turn, answer, prompt_cache=cache)
        assert_close(drafts, drafted_from(pair, before + turn, len(before)))


def test_cache_of_another_drafter_drafts_from_the_new_turn_alone():
    prompt, truth = case(20)
    before = prompt + truth[:9]
    turn, answer = clear_turn(model(), before, 6, N)
    for changes in ({"num_hidden_layers": 3}, {"num_key_value_heads": 4}, {"seed": 1}):
        with random_pair(model()) as pair:
            cache = pair.make_prompt_cache()
            respond(pair, TOKENIZER, prompt, 9, prompt_cache=cache)
        with random_pair(model(), **changes) as pair:
            drafts, _ = first_block(pair, turn, answer, prompt_cache=cache)
            assert_close(drafts, drafted_from(pair, before + turn, len(before)))


def test_cache_trimmed_to_before_its_context_drafts_from_the_new_turn_alone():
    prompt, truth = case(40)
    turn, answer = clear_turn(model(), prompt[:5], 4, N)
    with random_pair(model()) as pair:
        cache = filled_by_mlx_lm(pair, prompt, pair.make_prompt_cache())
        assert tokens_of(respond(pair, TOKENIZER, truth[:1], 5, prompt_cache=cache)) == truth[1:6]
        trim_prompt_cache(cache, 41)
        drafts, _ = first_block(pair, turn, answer, prompt_cache=cache)
        assert_close(drafts, drafted_from(pair, prompt[:5] + turn, 5))


def test_cache_used_plainly_in_between_is_lossless():
    prompt, truth = case(20)
    with random_pair(model()) as pair:
        cache = pair.make_prompt_cache()
        for begin, draft in ((0, True), (6, False), (12, True)):
            new = prompt if begin == 0 else truth[begin - 1 : begin]
            responses = respond(pair, TOKENIZER, new, 5, prompt_cache=cache, draft=draft)
            assert tokens_of(responses) == truth[begin : begin + 5]
