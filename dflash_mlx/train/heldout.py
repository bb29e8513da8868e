"""Evaluation on held-out sequences: the loss, accuracies by position, and the simulated τ."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from ..engine.statistics import Statistics
from .blocks import Sequence, make_blocks
from .features import FeatureSource
from .learner import Learner, Parameters


@dataclass
class Evaluation:
    """What blocks at every anchor of some sequences come to.

    Attributes:
        loss: sum of ``w * loss``, and ``weight`` of ``w``.
        right: ``[b - 1]``, active rows by position whose draft is the text's token.
        active: ``[b - 1]``, all active rows by position.
        rounds: the rounds of a simulated generation.
        tokens: the tokens that they emitted.
    """

    block_size: int
    loss: float = 0.0
    weight: float = 0.0
    right: np.ndarray = field(init=False)
    active: np.ndarray = field(init=False)
    rounds: Statistics = field(default_factory=Statistics)
    tokens: int = 0

    def __post_init__(self) -> None:
        self.right, self.active = np.zeros((2, self.block_size - 1), np.int64)

    def counts(self) -> np.ndarray:
        """All of it as numbers ``[3 b + 1]``, to be summed over processes."""
        rounds = [self.rounds.accepted[n] for n in range(self.block_size)]
        return np.array(
            [self.loss, self.weight, self.tokens, *rounds, *self.right, *self.active], np.float64
        )

    @classmethod
    def of(cls, counts: np.ndarray) -> "Evaluation":
        """The evaluation that has these :meth:`counts`."""
        size = (len(counts) - 1) // 3
        result = cls(size, *counts[:2].tolist(), tokens=int(counts[2]))
        for accepted, number in enumerate(counts[3 : 3 + size].astype(int).tolist()):
            result.rounds.rounds[size] += number
            result.rounds.accepted[accepted] += number
        result.right, result.active = np.split(counts[3 + size :].astype(np.int64), 2)
        return result

    @property
    def mean_loss(self) -> float:
        return self.loss / max(self.weight, 1e-9)

    @property
    def accuracy(self) -> list[float]:
        """How often each position of a block is right, given nothing of those before it."""
        return (self.right / np.maximum(self.active, 1)).tolist()

    @property
    def tau(self) -> float:
        """Emitted tokens a round; in the last round of a text, those within the text."""
        return self.tokens / max(self.rounds.total, 1)


def evaluate(
    learner: Learner, parameters: Parameters, source: FeatureSource, sequences: Iterable[Sequence]
) -> Evaluation:
    """Draft at every anchor of the sequences, and walk through each answer as its rounds would.

    If a text is the target's own greedy one, a round that starts at an anchor accepts exactly the
    rows that are right up to the first wrong one, so that the walk is the real generation.
    """
    result = Evaluation(learner.drafter.config.block_size)
    for sequence in sequences:
        accepted = _draft_everywhere(learner, parameters, source, sequence, result)
        for begin, end in sequence.answers():
            _walk(accepted, begin, end, result)
    return result


def _draft_everywhere(
    learner: Learner,
    parameters: Parameters,
    source: FeatureSource,
    sequence: Sequence,
    result: Evaluation,
) -> dict[int, int]:
    """Accepted drafts by anchor; adds the losses and accuracies to ``result``."""
    features = source(sequence)
    blocks = make_blocks(sequence, sequence.anchors(), result.block_size)
    context = learner.context(parameters, features)
    mx.eval(context)
    accepted = {}
    for part in learner.chunks(blocks):
        hidden = learner.hidden(part, context)
        logits = learner.logits(hidden)
        losses, weights = learner.losses(hidden, logits, part, features.hidden)
        drafts = learner.drafts(hidden, logits, part, context)
        loss, weight = (losses * weights).sum(), weights.sum()
        mx.eval(loss, weight, drafts)
        result.loss += loss.item()
        result.weight += weight.item()
        active = part.active[:, 1:]
        right = active & (np.array(drafts) == part.tokens[:, 1:])
        result.right += right.sum(axis=0)
        result.active += active.sum(axis=0)
        leading = np.cumprod(right, axis=1).sum(axis=1)
        accepted |= dict(zip(part.anchors.tolist(), leading.tolist(), strict=True))
    return accepted


def _walk(accepted: dict[int, int], begin: int, end: int, result: Evaluation) -> None:
    """The rounds that emit the tokens from ``begin`` to before ``end``."""
    anchor = begin - 1
    while anchor < end - 1:
        count = accepted[anchor]
        result.rounds.add(result.block_size, count)
        anchor += count + 1
    result.tokens += end - begin
