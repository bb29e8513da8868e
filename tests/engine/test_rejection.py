"""Rejection emits exactly the target's distribution, whatever the drafter proposes."""

import itertools

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from support.chance import (
    LIMIT,
    MarkovTarget,
    RandomDrafter,
    assert_distribution,
    assert_rates,
    collect,
    exact,
    misfit,
    one_round,
    trials,
)
from support.tiny import tiny_model

from dflash_mlx.cache.linear import LinearCache
from dflash_mlx.engine.accept import accept_by_rejection
from dflash_mlx.engine.choose import Chooser
from dflash_mlx.engine.history import History
from dflash_mlx.engine.noise import row_seeds
from dflash_mlx.engine.penalties import Penalties
from dflash_mlx.engine.round import run_round
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.engine.state import State
from dflash_mlx.target.target import Target

VOCAB, BLOCK, ROWS = 8, 4, 20000
TARGET = mx.random.normal((VOCAB, VOCAB), key=mx.random.key(1)) * 1.5
NUMBERS = np.array(TARGET)


def agreeing(noise):
    """A drafter that knows the target's logits, blurred; exact for the first draft only."""
    first = TARGET[:, None] + mx.zeros((1, BLOCK - 1, 1))
    return first + noise * mx.random.normal(first.shape, key=mx.random.key(2))


DRAFTERS = {
    "the target itself": agreeing(0.0),
    "a mild disagreement": agreeing(0.7),
    "a stranger": RandomDrafter.of(VOCAB, BLOCK, 3.0, seed=3).logits,
    # Likely where the target is not, so that nearly nothing is accepted.
    "a contrarian": -2 * agreeing(0.0),
    "disjoint supports": mx.where(agreeing(0.0) > 0, -mx.inf, 1.0),
    "certain of one token": 1e5
    * (mx.arange(VOCAB) == mx.arange(VOCAB * (BLOCK - 1)).reshape(VOCAB, BLOCK - 1, 1) % 5),
    "broken": mx.full((VOCAB, BLOCK - 1, VOCAB), mx.nan),
}
FILTERS = [
    {"temp": 1.0},
    {"temp": 0.5},
    {"temp": 1.5, "top_k": 3},
    {"temp": 1.0, "top_p": 0.7},
    {"temp": 0.5, "min_p": 0.1},
    {"temp": 1.5, "top_p": 0.9, "min_p": 0.05, "top_k": 4},
]
each_filter = pytest.mark.parametrize(
    "settings", FILTERS, ids=lambda f: " ".join(f"{k}={v}" for k, v in f.items())
)
each_drafter = pytest.mark.parametrize("drafter", DRAFTERS)


def rejection(settings, seed=0):
    return Sampling(**settings, acceptance="rejection", seed=seed)


def round_of(name, sampling):
    return one_round(TARGET, RandomDrafter(DRAFTERS[name]), sampling, ROWS)


@each_filter
@each_drafter
def test_every_token_of_a_round(drafter, settings):
    sampling = rejection(settings, seed=4)
    p = exact(NUMBERS, sampling)
    tokens, accepted = round_of(drafter, sampling)
    assert_distribution(tokens, accepted, p)
    if drafter == "the target itself":
        assert (accepted >= 1).all()  # q is p for the first draft, and then nothing is rejected
    if drafter != "broken":
        assert_rates(
            tokens, accepted, p, lambda j: exact(np.array(DRAFTERS[drafter][0, j]), sampling)
        )


def after(prefixes):
    """The Markov target's next logits; the trials' anchor is token 0."""
    return NUMBERS[prefixes[:, -1] if prefixes.shape[1] else np.zeros(len(prefixes), np.int64)]


def joint(next_logits, sampling, vocab=VOCAB):
    """The exact distribution of three tokens, ``[vocab] * 3``; ``next_logits(prefixes [n, k])``."""
    table = np.ones(())
    for k in range(3):
        prefixes = list(itertools.product(range(vocab), repeat=k))
        p = exact(next_logits(np.array(prefixes, np.int64).reshape(vocab**k, k)), sampling)
        table = table[..., None] * p.reshape(*[vocab] * k, vocab)
    return table


def spread(tokens, vocab=VOCAB):
    flat = (tokens @ np.array([vocab**2, vocab, 1])).astype(np.int64)
    return np.bincount(flat, minlength=vocab**3)


# The positions' noise is used again by the next round after a rejection; blocks that shrink, grow
# and fall back to plain decoding let every use meet every other.
SIZES = {"fixed": lambda r: 4, "shrinking": lambda r: max(4 - r, 1), "growing": lambda r: 1 + r % 4}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("drafter", ["a mild disagreement", "a stranger", "a contrarian"])
def test_three_tokens_over_several_rounds(drafter, sizes):
    rows = 30000
    for settings in FILTERS[::2]:
        sampling = rejection(settings, seed=6)
        tokens = collect(
            MarkovTarget(TARGET),
            RandomDrafter(DRAFTERS[drafter]),
            Chooser(sampling, batch=rows),
            trials(rows),
            SIZES[sizes],
            3,
        )
        assert misfit(spread(tokens), joint(after, sampling).ravel()) < LIMIT


@pytest.fixture(scope="module")
def tiny_target():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = tiny_model(
        "llama", 5, vocab_size=VOCAB, num_key_value_heads=1, intermediate_size=16, **sizes
    )
    target = Target(model)
    yield target
    target.release()


PROMPT = [3, 1, 4, 1, 5]


def prefilled(target, rows):
    """``rows`` copies of the prompt, in caches of ours."""
    caches = make_prompt_cache(target.model)
    target.forward(mx.array([PROMPT[:-1]]), caches)
    ours = []
    for cache in caches:
        keys, values = (
            mx.repeat(x[:, :, : cache.offset], rows, axis=0) for x in (cache.keys, cache.values)
        )
        keys, values = (mx.pad(x, [(0, 0), (0, 0), (0, 60), (0, 0)]) for x in (keys, values))
        ours.append(LinearCache(mx.full((rows,), cache.offset, mx.int32), keys, values))
    return State(mx.full((rows,), PROMPT[-1], mx.int32), ours[0].offset, ours)


@pytest.mark.parametrize("settings", [FILTERS[0], FILTERS[5]], ids=["bare", "filtered"])
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_three_tokens_of_a_real_target(tiny_target, settings, scale):
    rows, sampling = 8000, rejection(settings, seed=7)
    drafter = RandomDrafter.of(VOCAB, BLOCK, scale)
    chooser = Chooser(sampling, batch=rows)
    tokens = collect(
        tiny_target, drafter, chooser, prefilled(tiny_target, rows), SIZES["shrinking"], 3
    )

    def logits(prefixes):
        prompts = np.tile(PROMPT, (len(prefixes), 1))
        ids = mx.array(np.concatenate([prompts, prefixes], axis=1))
        return np.array(tiny_target.model(ids)[:, -1])

    assert misfit(spread(tokens), joint(logits, sampling).ravel()) < LIMIT


@pytest.mark.parametrize("drafter", ["a mild disagreement", "a stranger"])
def test_penalties_that_see_the_drafts(drafter):
    # The target of a row depends on the drafts before it in the same block; the drafts' own
    # penalties do not, which changes q and must not change the text.
    rows, sampling, prompt = 30000, rejection({"temp": 1.0, "top_k": 5}, seed=8), [2, 2, 6, 0]
    penalties = Penalties({1: 0.5, 7: -1.0}, 1.5, 4, 0.7, 2, 0.4, 5)
    state = trials(rows, anchor=prompt[-1], offset=len(prompt) - 1)
    state.history = History([prompt] * rows, mx.zeros((rows,), mx.int32))
    tokens = collect(
        MarkovTarget(TARGET),
        RandomDrafter(DRAFTERS[drafter]),
        Chooser(sampling, penalties, batch=rows),
        state,
        SIZES["shrinking"],
        3,
    )

    def logits(prefixes):
        rows = after(prefixes).astype(np.float64)
        rows[:, 1] += 0.5
        rows[:, 7] -= 1.0
        for row, prefix in zip(rows, prefixes.tolist(), strict=True):
            seen = prompt + prefix
            for token in set(seen[-4:]):
                row[token] *= 1.5 if row[token] < 0 else 1 / 1.5
            for token in set(seen[-2:]):
                row[token] -= 0.7
            for token in seen[-5:]:
                row[token] -= 0.4
        return rows

    assert misfit(spread(tokens), joint(logits, sampling).ravel()) < LIMIT


@pytest.mark.parametrize("vocab", [1, 2])
def test_tiny_vocabularies(vocab):
    target = mx.random.normal((vocab, vocab), key=mx.random.key(9))
    sampling = rejection({"temp": 1.0}, seed=9)
    drafter = RandomDrafter.of(vocab, BLOCK, 3.0)
    chooser = Chooser(sampling, batch=ROWS)
    tokens = collect(MarkovTarget(target), drafter, chooser, trials(ROWS), SIZES["fixed"], 3)
    numbers = np.array(target)
    want = joint(lambda x: numbers[x[:, -1] if x.shape[1] else [0]], sampling, vocab)
    assert misfit(spread(tokens, vocab), want.ravel()) < LIMIT


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(
    "settings",
    [{"temp": 1e-6}, {"temp": 1.0, "top_p": 1e-3}, {"temp": 1.0, "top_k": 1}, {"temp": 1e-30}],
    ids=str,
)
def test_with_one_token_left_it_is_greedy(drafter, settings):
    tokens, accepted = round_of(drafter, rejection(settings))
    best, last = NUMBERS.argmax(axis=-1), np.zeros(ROWS, np.int64)
    for j in range(BLOCK):
        reached = accepted >= j
        assert (tokens[reached, j] == best[last[reached]]).all()
        last = tokens[:, j]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_target_with_one_token(drafter):
    # Its logits are all -inf but one, as a grammar may leave them.
    target = mx.where(mx.arange(VOCAB) == mx.array([[3], *[[5]] * 7]), 1.0, -mx.inf)
    sampling = rejection({"temp": 0.8, "top_p": 0.9, "min_p": 0.1, "top_k": 3})
    chooser, drafter = Chooser(sampling, batch=500), RandomDrafter(DRAFTERS[drafter])
    tokens = collect(MarkovTarget(target), drafter, chooser, trials(500), SIZES["fixed"], 4)
    assert (tokens == [3, 5, 5, 5]).all()


def test_an_impossible_token_is_not_kept():
    # Not even one that the drafter calls impossible as well, though 0 * u is no more than 0.
    p = mx.broadcast_to(mx.array([0.0, 0.5, 0.5, 0.0]), (100, 3, 4))
    q = mx.broadcast_to(mx.array([0.0, 1.0, 0.0, 0.0]), (100, 2, 4))
    seeds, positions = row_seeds(0, 100), mx.zeros((100, 1), mx.int32) + mx.arange(3)
    drafts = mx.broadcast_to(mx.array([0, 3], mx.int32), (100, 2))
    tokens, accepted = accept_by_rejection(drafts, q, p, seeds, positions)
    assert (accepted == 0).all() and (tokens[:, 0] == 2).all()


def test_without_drafts_it_is_plain_sampling():
    for settings in FILTERS:
        plain, target = [], MarkovTarget(TARGET)
        for sampling in (Sampling(**settings, seed=3), rejection(settings, seed=3)):
            chooser, state = Chooser(sampling, batch=200), trials(200)
            plain.append(collect(target, None, chooser, state, lambda _: 1, 3))
        assert (plain[0] == plain[1]).all()


def test_a_target_of_nan_stays_in_the_vocabulary():
    # There is no right answer; the round goes on with valid tokens and counts.
    target, drafter = MarkovTarget(TARGET * mx.nan), RandomDrafter(DRAFTERS["a stranger"])
    for acceptance in ("coupled", "rejection"):
        sampling = Sampling(temp=1.0, top_p=0.9, top_k=3, acceptance=acceptance)
        verdict = run_round(target, drafter, Chooser(sampling, batch=50), trials(50), BLOCK)
        tokens, accepted = np.array(verdict.tokens), np.array(verdict.accepted)
        assert ((tokens >= 0) & (tokens < VOCAB)).all()
        assert ((accepted >= 0) & (accepted < BLOCK)).all()
