"""What sampling tests share: exact distributions, a test of fit, and models of a few tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from dflash_mlx.drafter.proposal import IndependentRows
from dflash_mlx.engine.choose import Chooser
from dflash_mlx.engine.round import run_round
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.engine.state import State

# Seeds are fixed, so a test passes or fails for good; chance reaches this once in 3 million tries.
LIMIT = 5.0


def exact(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The distribution that ``sampling`` makes of ``logits``, in float64, without mlx-lm."""
    logits = np.asarray(logits, np.float64)
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    keep = np.ones(p.shape, bool)
    if 0 < sampling.top_p < 1:
        # A token stays while those more likely than it do not fill the nucleus.
        above = (p[..., None, :] * (p[..., None, :] > p[..., None])).sum(axis=-1)
        keep &= above < sampling.top_p
    if sampling.min_p:
        keep &= p >= sampling.min_p * p.max(axis=-1, keepdims=True)
    if sampling.top_k:
        keep &= (p[..., None, :] > p[..., None]).sum(axis=-1) < sampling.top_k
    p = np.where(keep, p ** (1 / sampling.temp), 0)
    return p / p.sum(axis=-1, keepdims=True)


def misfit(counts: np.ndarray, p: np.ndarray) -> float:
    """How many standard deviations ``counts`` lie from ``p``, by a chi-square test.

    Args:
        counts: ``[..., outcomes]``; each leading index is an experiment of its own.
        p: the exact distributions, of the same shape.
    """
    counts, p = (x.reshape(-1, x.shape[-1]).astype(np.float64) for x in (counts, p))
    if counts[p == 0].any():
        return np.inf
    chi, freedom = 0.0, 0
    for count, expected in zip(counts, p * counts.sum(axis=-1, keepdims=True), strict=True):
        # The statistic is chi-square only where a handful is expected; the rest is one outcome.
        rare = expected < 5
        count = np.append(count[~rare], count[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        count, expected = count[expected > 0.5], expected[expected > 0.5]
        if len(count) > 1:
            chi += ((count - expected) ** 2 / expected).sum()
            freedom += len(count) - 1
    if not freedom:
        return 0.0
    # Wilson and Hilferty: the cube root of a chi-square number is nearly normal.
    spread = 2 / (9 * freedom)
    return ((chi / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5


def count(given: np.ndarray, token: np.ndarray, vocab: int) -> np.ndarray:
    """How often each token follows each prefix, ``[vocab, vocab]``."""
    return np.bincount(given * vocab + token, minlength=vocab**2).reshape(vocab, vocab)


@dataclass
class MarkovTarget:
    """A target whose logits ``[vocab, vocab]`` depend on the last token only."""

    logits: mx.array

    def forward(self, ids: mx.array, caches: Sequence[object]) -> tuple[mx.array, None]:
        return self.logits[ids], None


class RandomDrafter:
    """Logits that depend on the anchor and the place in the block, and on nothing else.

    Args:
        logits: ``[vocab, block_size - 1, vocab]``.
    """

    def __init__(self, logits: mx.array):
        self.logits = logits
        self.block_size = logits.shape[1] + 1

    @classmethod
    def of(cls, vocab: int, block_size: int, scale: float, seed: int = 0) -> "RandomDrafter":
        shape = (vocab, block_size - 1, vocab)
        return cls(mx.random.normal(shape, key=mx.random.key(seed)) * scale)

    def draft(self, anchor: mx.array, block_size: int, context: None) -> IndependentRows:
        return IndependentRows(self.logits[anchor, : block_size - 1])


def trials(batch: int, anchor: int = 0, offset: int = 10) -> State:
    """``batch`` independent trials of the same moment: only the noise of the rows differs."""
    return State(mx.full((batch,), anchor, mx.int32), mx.full((batch,), offset, mx.int32), [])


def one_round(
    target: mx.array, drafter: "RandomDrafter", sampling: Sampling, batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """A round of many trials: tokens ``[batch, block_size]``, accepted drafts ``[batch]``."""
    state, chooser = trials(batch), Chooser(sampling, batch=batch)
    verdict = run_round(MarkovTarget(target), drafter, chooser, state, drafter.block_size)
    return np.array(verdict.tokens), np.array(verdict.accepted)


def assert_distribution(tokens: np.ndarray, accepted: np.ndarray, p: np.ndarray) -> None:
    """Every token of a round is drawn from ``p [vocab, vocab]`` given the one before it.

    A token that ``p`` excludes would make any of the misfits infinite.
    """
    vocab = len(p)
    assert misfit(np.bincount(tokens[:, 0], minlength=vocab), p[0]) < LIMIT
    for j in range(1, tokens.shape[1]):
        # Whatever follows an accepted draft: another one, its correction, or the bonus.
        kept = tokens[accepted >= j]
        assert misfit(count(kept[:, j - 1], kept[:, j], vocab), p) < LIMIT


def assert_rates(
    tokens: np.ndarray,
    accepted: np.ndarray,
    p: np.ndarray,
    q: Callable[[int], np.ndarray],
) -> None:
    """Drafts are accepted as often as 1 - the total variation of ``p`` and ``q``.

    Args:
        tokens: of a round of many trials.
        accepted: in each trial.
        p: the target's distributions, ``[vocab, vocab]``, by the token before.
        q: those of the ``j``-th draft, ``[vocab]`` or ``[vocab, vocab]`` by the draft before.
    """
    last = np.zeros(len(tokens), np.int64)
    for j in range(tokens.shape[1] - 1):
        reached = accepted >= j
        rate = np.minimum(p, q(j)).sum(axis=-1)[last[reached]]
        spread = max((rate * (1 - rate)).sum() ** 0.5, 0.5)
        assert abs((accepted > j).sum() - rate.sum()) < LIMIT * spread
        last = tokens[:, j]


def collect(
    target: object,
    drafter: RandomDrafter | None,
    chooser: Chooser,
    state: State,
    block_size: Callable[[int], int],
    length: int,
) -> np.ndarray:
    """The first ``length`` tokens of every row, by rounds whose block size depends on the round."""
    emitted = np.zeros((state.anchor.shape[0], length), np.int64)
    have, rounds = np.zeros(len(emitted), np.int64), 0
    while have.min() < length:
        size = block_size(rounds)
        state.reserve(int(mx.max(state.offset).item()) + size)
        verdict = run_round(target, drafter if size > 1 else None, chooser, state, size)
        tokens, accepted = np.array(verdict.tokens), np.array(verdict.accepted)
        for j in range(size):
            row = np.flatnonzero((j <= accepted) & (have + j < length))
            emitted[row, have[row] + j] = tokens[row, j]
        have += accepted + 1
        rounds += 1
    return emitted
