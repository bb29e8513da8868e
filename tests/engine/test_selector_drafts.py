"""Drafts of a selector's walk: lossless, and accepted as often as its distribution allows."""

import mlx.core as mx
import numpy as np
import pytest
from support.chance import (
    MarkovTarget,
    assert_distribution,
    assert_rates,
    collect,
    exact,
    one_round,
    trials,
)
from support.lossless import COUPLED, GREEDY, Kind, turns
from support.pairs import tiny_selector

from dflash_mlx.drafter.selector import SelectorWalk
from dflash_mlx.engine.choose import Chooser
from dflash_mlx.engine.history import History
from dflash_mlx.engine.penalties import Penalties
from dflash_mlx.engine.sampling import Sampling

FEW, BLOCK, ROWS, HIDDEN = 8, 4, 20000, 32
TARGET = mx.random.normal((FEW, FEW), key=mx.random.key(1)) * 1.5
NUMBERS = np.array(TARGET)
FILTERS = [
    {"temp": 1.0},
    {"temp": 0.5, "min_p": 0.1},
    {"temp": 1.5, "top_k": 2},
    {"temp": 1.5, "top_p": 0.9, "min_p": 0.05, "top_k": 4},
]
each_filter = pytest.mark.parametrize(
    "settings", FILTERS, ids=lambda f: " ".join(f"{k}={v}" for k, v in f.items())
)
KIND = Kind("llama")


class WalkingDrafter:
    """Walks over candidates whose logits depend on the anchor and the place in the block.

    Args:
        selector: scores them against one another.
        logits: ``[vocab, block_size - 1, vocab]``.
    """

    def __init__(self, selector, logits):
        self._selector, self._logits = selector, logits
        self.block_size = logits.shape[1] + 1

    def draft(self, anchor, block_size, context):
        raw = self._logits[anchor, : block_size - 1]
        hidden = mx.ones((*raw.shape[:2], HIDDEN)) * 0.2
        return SelectorWalk(self._selector, raw, lambda x: x, anchor, hidden)

    def q(self, anchor, j, before, sampling):
        """The distribution of draft ``j`` after ``before``, by numpy."""
        selector = self._selector
        row = np.array(self._logits[anchor, j], np.float64)
        kept = np.argsort(row)[-selector.top_k :]
        gate = np.array(selector.hidden_projection.weight, np.float64).sum(axis=1) * 0.2
        gate = gate * np.array(selector.predecessor_codebook.weight)[before]
        scores = row[kept] + np.array(selector.successor_codebook.weight)[kept] @ gate
        q = np.zeros(len(row))
        q[kept] = exact(scores, sampling)
        return q


def stranger(top_k=4, scale=2.0):
    shape = (FEW, BLOCK - 1, FEW)
    logits = mx.random.normal(shape, key=mx.random.key(5)) * scale
    return WalkingDrafter(tiny_selector(FEW, top_k), logits)


def knowing():
    """A selector that is the target: its pairwise part alone is the target's logits."""
    selector = tiny_selector(FEW, FEW)
    selector.predecessor_codebook.weight = mx.eye(FEW)
    selector.successor_codebook.weight = TARGET.T
    selector.hidden_projection.weight = mx.ones((FEW, HIDDEN)) / (HIDDEN * 0.2)
    return WalkingDrafter(selector, mx.zeros((FEW, BLOCK - 1, FEW)))


DRAFTERS = {"a stranger": stranger(), "of one candidate": stranger(1), "the target": knowing()}
each_drafter = pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)


@each_filter
@each_drafter
def test_rejection_emits_and_accepts_by_the_selectors_own_distribution(drafter, settings):
    sampling = Sampling(**settings, acceptance="rejection", seed=4)
    p = exact(NUMBERS, sampling)
    tokens, accepted = one_round(TARGET, drafter, sampling, ROWS)
    assert_distribution(tokens, accepted, p)
    # Any other q would be told apart by its rate.
    assert_rates(
        tokens,
        accepted,
        p,
        lambda j: np.stack([drafter.q(0, j, before, sampling) for before in range(FEW)]),
    )
    if drafter is DRAFTERS["the target"]:
        assert (accepted == BLOCK - 1).mean() > 0.999


@pytest.mark.parametrize("settings", [{}, *FILTERS], ids=str)
@each_drafter
def test_coupled_emits_plain_decoding_token_for_token(drafter, settings):
    rows, target = 500, MarkovTarget(TARGET)
    sampling = Sampling(**settings, seed=6)
    sizes = (lambda _: 1, lambda _: BLOCK, lambda r: 1 + r % BLOCK)
    plain, *drafted = (
        collect(target, drafter, Chooser(sampling, batch=rows), trials(rows), size, 12)
        for size in sizes
    )
    assert all((plain == other).all() for other in drafted)


@pytest.mark.parametrize("settings", [{}, *FILTERS], ids=str)
def test_coupled_draws_with_the_targets_own_noise(settings):
    # The shared noise of a candidate is that of its token, so equal scores agree always.
    _, accepted = one_round(TARGET, DRAFTERS["the target"], Sampling(**settings, seed=7), ROWS)
    assert (accepted == BLOCK - 1).mean() > 0.999


def test_penalties_and_bans_reach_the_candidates():
    sampling = Sampling(temp=1.0, seed=8)
    rows, prompt = 300, [2, 2, 6, 0]
    penalties = Penalties({1: -np.inf, 7: 2.0}, 1.5, 4, 0.7, 2, 0.4, 5)
    texts = []
    for size in (1, BLOCK):
        state = trials(rows, anchor=prompt[-1], offset=len(prompt) - 1)
        state.history = History([prompt] * rows, mx.zeros((rows,), mx.int32))
        chooser = Chooser(sampling, penalties, batch=rows)
        target, drafter = MarkovTarget(TARGET), DRAFTERS["a stranger"]
        if size > 1:
            draft = chooser.draft(drafter.draft(state.anchor, size, None), state)
            assert not (draft.tokens == 1).any()
        texts.append(collect(target, drafter, chooser, state, lambda _, n=size: n, 10))
    assert (texts[0] == texts[1]).all()


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("block_size", [2, 5, 16])
def test_every_acceptance_length_on_a_real_target(block_size, sampling):
    cycle = turns(block_size)
    n = sum(cycle) + len(cycle)
    KIND.check(
        block_size,
        lambda r: cycle[r % len(cycle)],
        n=n,
        sampling=sampling,
        selector=tiny_selector(),
    )
