"""What a round asks of a drafter, and what that proposes before any token is chosen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import mlx.core as mx

from ..cache.protocol import ContextBuffer


class Drafting(Protocol):
    """Drafts a block from an anchor, and keeps the context K/V up to date.

    Attributes:
        block_size: the largest block, anchor included.
        fingerprint: of the drafter, as far as its speed goes.
    """

    block_size: int
    fingerprint: str

    def kernels(self, block_size: int) -> str:
        """Which way the fused parts run in a round of one sequence, and why."""
        ...

    def make_context(self, start: mx.array) -> list[ContextBuffer]:
        """Empty context K/V, one buffer a layer, whose first position is ``start [B]``."""
        ...

    def write_context(self, features: mx.array, context: Sequence[ContextBuffer]) -> None:
        """Write the context K/V of ``features [B, n, taps * hidden]`` at the context's offset."""
        ...

    def draft(
        self, anchor: mx.array, block_size: int, context: Sequence[ContextBuffer]
    ) -> "Proposal":
        """A proposal for the ``block_size - 1`` tokens after ``anchor [B]``."""
        ...


class Proposal(Protocol):
    """The drafts of a block, still open: logits of alternatives, for ``m`` rows.

    Whoever chooses does so once for every row and for every way to get there, over the last axis
    of ``logits``; :meth:`follow` then takes the way that was gone.

    Attributes:
        logits: ``[B, m, ..., alternatives]``.
        vocab: size of the target's vocabulary.
    """

    logits: mx.array

    @property
    def vocab(self) -> int: ...

    def rows(self, index: mx.array) -> Self:
        """The proposals for the batch rows ``index``."""
        ...

    def penalized(self, penalize: Callable[[mx.array], mx.array]) -> Self:
        """The same with ``penalize`` applied to the logits ``[B, m, vocab]`` behind it."""
        ...

    def pick(self, values: mx.array) -> mx.array:
        """The entries of ``values [B, m, vocab]`` that belong to the alternatives.

        They broadcast with :attr:`logits`.
        """
        ...

    def follow(self, choice: mx.array, scores: mx.array) -> tuple[mx.array, mx.array]:
        """The drafts, and the scores over the vocabulary that they were chosen by.

        Args:
            choice: ``[B, m, ...]``, the chosen index over the last axis of :attr:`logits`.
            scores: like :attr:`logits`.

        Returns:
            Tokens ``[B, m]`` int32, and ``[B, m, vocab]`` with -inf where no alternative was.
        """
        ...


@dataclass
class IndependentRows:
    """Every row's draft is chosen by itself, from the whole vocabulary.

    Attributes:
        logits: ``[B, m, vocab]``.
    """

    logits: mx.array

    @property
    def vocab(self) -> int:
        return self.logits.shape[-1]

    def rows(self, index: mx.array) -> Self:
        return IndependentRows(self.logits[index])

    def penalized(self, penalize: Callable[[mx.array], mx.array]) -> Self:
        return IndependentRows(penalize(self.logits))

    def pick(self, values: mx.array) -> mx.array:
        return values

    def follow(self, choice: mx.array, scores: mx.array) -> tuple[mx.array, mx.array]:
        return choice.astype(mx.int32), scores
