"""One round: draft a block, verify it, keep what the target agrees with, commit."""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from ..cache.context import ContextBuffer
from ..drafter.proposal import Proposal
from ..target.target import Target
from .choose import Chooser, Verdict
from .state import State


class Drafting(Protocol):
    """What a round asks of a drafter; see :class:`dflash_mlx.drafter.bound.BoundDrafter`."""

    block_size: int

    def kernels(self, block_size: int) -> str: ...

    def make_context(self, start: mx.array) -> list[ContextBuffer]: ...

    def write_context(self, features: mx.array, context: Sequence[ContextBuffer]) -> None: ...

    def draft(
        self, anchor: mx.array, block_size: int, context: Sequence[ContextBuffer]
    ) -> Proposal: ...


def run_round(
    target: Target, drafter: Drafting | None, chooser: Chooser, state: State, block_size: int
) -> Verdict:
    """Build the graph of one round, and move ``state`` past it. Nothing is read by the host.

    All ``block_size`` rows are written to the caches and the context K/V; only the offset decides
    which of them are committed.

    Args:
        target: verifies.
        drafter: drafts; None decodes plainly, which is a block of one.
        chooser: draws drafts and accepts them.
        state: with room for ``block_size`` more rows; updated in place.
        block_size: rows to verify, anchor included; 1 drafts nothing.
    """
    if state.history is not None:
        state.history.write(state.anchor[:, None], state.offset)
    block, draft = state.anchor[:, None], None
    if block_size > 1:
        proposal = drafter.draft(state.anchor, block_size, state.context)
        draft = chooser.draft(proposal, state)
        block = mx.concatenate([block, draft.tokens], axis=1)

    logits, features = target.forward(block, state.caches)
    if state.history is not None:
        state.history.write(block, state.offset)
    verdict = chooser.judge(draft, logits, state)
    if state.context is not None:
        drafter.write_context(features, state.context)
    state.advance(verdict.tokens, verdict.accepted)
    return verdict
