"""A drafter that knows the true continuation, and errs where it is told to."""

from collections.abc import Callable, Sequence

import mlx.core as mx

from dflash_mlx.cache.context import LinearContext
from dflash_mlx.drafter.proposal import IndependentRows, Proposal
from dflash_mlx.drafter.selector import CandidateSelector, SelectorWalk


class OracleDrafter:
    """Proposes the truth, wrong from a chosen index of each block on.

    Its context K/V holds the features themselves, so that a test can look at what was committed.

    Args:
        truth: all tokens of each batch row, prompt and continuation.
        accept: from the number of the round to how many drafts of it are right, in all batch rows
            or in each.
        vocab: vocabulary size.
        block_size: the largest block.
        selector: makes the proposals walks over its candidates; it must be no surer than 1e4.
    """

    def __init__(
        self,
        truth: Sequence[Sequence[int]],
        accept: Callable[[int], int | list[int]],
        vocab: int,
        block_size: int = 16,
        selector: CandidateSelector | None = None,
    ):
        width = max(map(len, truth)) + 2 * block_size
        self._truth = mx.array([[*row, *[0] * (width - len(row))] for row in truth])
        self._accept = accept
        self._vocab = vocab
        self.block_size = block_size
        self.fingerprint = "oracle"
        self._selector = selector
        self.rounds = 0

    def kernels(self, block_size: int) -> str:
        return "none"

    def make_context(self, start: mx.array) -> list[LinearContext]:
        return [LinearContext(start)]

    def write_context(self, features: mx.array, context: Sequence[LinearContext]) -> None:
        context[0].write(features[:, None], features[:, None, :, :1])

    def draft(
        self, anchor: mx.array, block_size: int, context: Sequence[LinearContext]
    ) -> Proposal:
        index = mx.arange(block_size - 1)
        at = mx.minimum(context[0].offset[:, None] + 1 + index, self._truth.shape[1] - 1)
        right = mx.take_along_axis(self._truth, at, axis=1)
        wrong = (right + 1 + index) % self._vocab
        accepted = mx.array(self._accept(self.rounds)).reshape(-1, 1)
        tokens = mx.where(index < accepted, right, wrong)
        self.rounds += 1
        logits = 1e5 * (tokens[..., None] == mx.arange(self._vocab)).astype(mx.float32)
        if self._selector is None:
            return IndependentRows(logits)
        hidden = mx.ones((*tokens.shape, self._selector.hidden_projection.weight.shape[1]))
        return SelectorWalk(self._selector, logits, lambda x: x, anchor, hidden)
