"""What a drafter proposes for one block, before any token is chosen."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

import mlx.core as mx


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

    def penalized(self, penalize: Callable[[mx.array], mx.array]) -> Self:
        return IndependentRows(penalize(self.logits))

    def pick(self, values: mx.array) -> mx.array:
        return values

    def follow(self, choice: mx.array, scores: mx.array) -> tuple[mx.array, mx.array]:
        return choice.astype(mx.int32), scores
