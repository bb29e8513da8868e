"""A drafter whose sliding layers keep a window alone drafts on as if it had kept everything."""

import functools

import mlx.core as mx
import pytest
from mlx_lm.models.cache import trim_prompt_cache
from support.pairs import random_pair, respond, tokens_of
from support.plain import clear_case, clear_turn
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import stream_generate
from dflash_mlx.engine.sampling import Sampling

TOKENIZER = byte_tokenizer()
N = 30
# The prompt goes around the ring of 64 slots twice.
LENGTH = 150
KINDS = {
    "row": {"layer_types": ("sliding_attention",) * 2, "sliding_window": 40},
    "mixed, by the anchor": {
        "layer_types": ("full_attention", "sliding_attention"),
        "sliding_window": 40,
        "window_rule": "anchor",
    },
}
each_kind = pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
model = functools.cache(tiny_model)
case = functools.cache(lambda: clear_case(model(), LENGTH, 60, Sampling()))


def first_draft(pair, prompt, truth, **options):
    """The logits of the first block, of a generation that must come to ``truth``."""
    drafts, draft = [], pair.drafter.draft

    def spy(*args):
        drafts.append(draft(*args))
        return drafts[-1]

    pair.drafter.draft = spy
    assert tokens_of(respond(pair, TOKENIZER, prompt, len(truth), **options)) == truth
    pair.drafter.draft = draft
    return drafts[0].logits


def assert_close(one, other):
    assert mx.abs(one - other).max() <= 1e-4 * mx.abs(other).max()


@each_kind
@pytest.mark.parametrize("step", [1, 40, 64, 100])
def test_prefill_step_size_changes_nothing(changes, step):
    prompt, truth = case()
    with random_pair(model(), **changes) as pair:
        whole = first_draft(pair, prompt, truth[:N])
        assert_close(first_draft(pair, prompt, truth[:N], prefill_step_size=step), whole)


@each_kind
@pytest.mark.parametrize("n", [0, 1, 9, 25])
def test_continued_cache_drafts_as_a_cold_start_does(changes, n):
    prompt, truth = case()
    before = prompt + truth[:n]
    turn, answer = clear_turn(model(), before, 6, N)
    with random_pair(model(), **changes) as pair:
        cold = first_draft(pair, before + turn, answer)
        cache = pair.make_prompt_cache()
        respond(pair, TOKENIZER, prompt, n, prompt_cache=cache)
        assert_close(first_draft(pair, turn, answer, prompt_cache=cache), cold)


@each_kind
def test_context_survives_an_early_close(changes):
    prompt, truth = case()
    before = prompt + truth[:3]
    turn, answer = clear_turn(model(), before, 6, N)
    with random_pair(model(), **changes) as pair:
        cold = first_draft(pair, before + turn, answer)
        cache = pair.make_prompt_cache()
        stream = stream_generate(pair, TOKENIZER, prompt, prompt_cache=cache)
        for _ in range(3):
            next(stream)
        stream.close()
        assert_close(first_draft(pair, turn, answer, prompt_cache=cache), cold)


@each_kind
@pytest.mark.parametrize("trimmed", [1, 20, 63, 64, 150])
def test_trimmed_cache_is_lossless(changes, trimmed):
    prompt, truth = case()
    before = (prompt + truth[:9])[:-trimmed]
    turn, answer = clear_turn(model(), before, 6, N)
    with random_pair(model(), **changes) as pair:
        cache = pair.make_prompt_cache()
        respond(pair, TOKENIZER, prompt, 9, prompt_cache=cache)
        trim_prompt_cache(cache, trimmed)
        drafts = first_draft(pair, turn, answer, prompt_cache=cache)
        assert mx.isfinite(drafts).all()


def test_trimmed_beyond_the_ring_it_drafts_from_the_new_turn_alone():
    prompt, _ = case()
    turn, answer = clear_turn(model(), prompt[:50], 6, N)
    with random_pair(model(), **KINDS["row"]) as pair:
        cache, without = pair.make_prompt_cache(), pair.target.make_cache()
        respond(pair, TOKENIZER, prompt, 9, prompt_cache=cache)
        trim_prompt_cache(cache, LENGTH + 9 - 50)
        pair.model(mx.array([prompt[:50]]), cache=without)
        drafts = first_draft(pair, turn, answer, prompt_cache=cache)
        assert_close(drafts, first_draft(pair, turn, answer, prompt_cache=without))
