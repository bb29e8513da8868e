"""Evaluation on held-out sequences: the loss, accuracies by position, and the simulated τ."""

from collections.abc import Iterable
from dataclasses import replace

import mlx.core as mx
import numpy as np

from ..drafter.selector import SelectorWalk
from .blocks import Blocks, Sequence, make_blocks
from .feature_cache import FeatureCache
from .forward import BlockForward, KeysValues, Parameters
from .learner import Learner


class Evaluation:
    """What blocks at every anchor of some sequences come to.

    Args:
        counts: all of it as numbers ``[3 b + 1]``, which may be those of several processes summed.

    Attributes:
        totals: ``[3]``: ``w * loss``, ``w``, and the tokens that simulated rounds emitted.
        rounds: ``[b]``, those rounds by their number of accepted drafts.
        right: ``[b - 1]``, active positions whose draft is the text's token.
        active: ``[b - 1]``, all active positions.
    """

    def __init__(self, counts: np.ndarray):
        b = len(counts) // 3
        self.counts = counts
        # Views, through which they are counted.
        parts = np.split(counts, [3, 3 + b, 2 + 2 * b])
        self.totals, self.rounds, self.right, self.active = parts

    @property
    def mean_loss(self) -> float:
        return float(self.totals[0] / max(self.totals[1], 1e-9))

    @property
    def accuracy(self) -> list[float]:
        """How often each position of a block is right, given nothing of those before it."""
        return (self.right / np.maximum(self.active, 1)).tolist()

    @property
    def tau(self) -> float:
        """Emitted tokens a round; in the last round of a text, those within the text."""
        return float(self.totals[2] / max(self.rounds.sum(), 1))

    def walk(self, accepted: dict[int, int], begin: int, end: int) -> None:
        """Count the rounds that emit the tokens from ``begin`` to before ``end``.

        Args:
            accepted: how many drafts a round at each anchor accepts.
            begin: the first token.
            end: after the last one.
        """
        anchor = begin - 1
        while anchor < end - 1:
            self.rounds[accepted[anchor]] += 1
            anchor += accepted[anchor] + 1
        self.totals[2] += end - begin


def evaluate(
    learner: Learner, parameters: Parameters, source: FeatureCache, sequences: Iterable[Sequence]
) -> Evaluation:
    """Draft at every anchor of the sequences, and walk through each answer as its rounds would.

    If a text is the target's own greedy one, a round that starts at an anchor accepts exactly the
    drafts that are right up to the first wrong one, so that the walk is the real generation.
    """
    result = Evaluation(np.zeros(3 * learner.config.block_size + 1))
    learner.use(parameters)
    for sequence in sequences:
        accepted = _draft_everywhere(learner, source, sequence, result)
        for begin, end in sequence.answers():
            result.walk(accepted, begin, end)
    return result


def _draft_everywhere(
    learner: Learner, source: FeatureCache, sequence: Sequence, result: Evaluation
) -> dict[int, int]:
    """Accepted drafts by anchor; adds the losses and accuracies to ``result``."""
    encoding = source(sequence)
    blocks = make_blocks(sequence, sequence.anchors(), learner.config.block_size)
    context = learner.context(encoding.features)
    mx.eval(context)
    accepted = {}
    for part in learner.chunks(blocks):
        hidden = learner.hidden(part, context)
        logits = learner.logits(hidden)
        losses, weights = learner.losses(hidden, logits, part, encoding.hidden)
        tokens = drafts(learner, hidden, logits, part, context)
        loss, weight = (losses * weights).sum(), weights.sum()
        mx.eval(loss, weight, tokens)
        active = part.active[:, 1:]
        right = active & (np.array(tokens) == part.tokens[:, 1:])
        result.totals[:2] += loss.item(), weight.item()
        result.right += right.sum(axis=0)
        result.active += active.sum(axis=0)
        leading = np.cumprod(right, axis=1).sum(axis=1)
        accepted |= dict(zip(part.anchors.tolist(), leading.tolist(), strict=True))
    return accepted


def drafts(
    forward: BlockForward,
    hidden: mx.array,
    logits: mx.array,
    blocks: Blocks,
    context: list[KeysValues],
) -> mx.array:
    """The tokens ``[N, b - 1]`` that a greedy round would draft, in all passes of the drafter.

    Args:
        forward: of the drafter.
        hidden: of the first pass.
        logits: of the first pass.
        blocks: whose anchors alone are given.
        context: of their sequence.
    """
    first = _greedy(forward, hidden, logits, blocks)
    prefix = forward.config.draft_prefix
    if prefix is None:
        return first
    tokens = np.concatenate([blocks.tokens[:, :1], np.array(first, np.int32)], axis=1)
    given = np.full(len(blocks), prefix, np.int32)
    again = forward.hidden(replace(blocks, tokens=tokens, given=given), context)
    keeps = mx.arange(first.shape[1])[:, None] < prefix - 1
    hidden = mx.where(keeps, hidden, again)
    return _greedy(forward, hidden, mx.where(keeps, logits, forward.logits(again)), blocks)


def _greedy(forward: BlockForward, hidden: mx.array, logits: mx.array, blocks: Blocks) -> mx.array:
    if "candidate_selector" not in forward.drafter:
        return mx.argmax(logits, axis=-1)
    anchors, selector = mx.array(blocks.tokens[:, 0]), forward.drafter.candidate_selector
    walk = SelectorWalk(selector, logits, lambda x: x, anchors, hidden)
    return walk.follow(mx.argmax(walk.logits, axis=-1), walk.logits)[0]
