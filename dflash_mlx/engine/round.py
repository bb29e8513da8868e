"""One round: draft a block, verify it, keep what the target agrees with, commit."""

import mlx.core as mx

from ..drafter.proposal import Drafting
from ..target.stock import PlainTarget
from ..target.target import Target
from .choose import Chooser, Verdict
from .state import State

# Plain rounds whose features are projected together: reading the projection's weights for every
# token would cost a 4-bit target with a 16-bit drafter several percent. The context kernels take as
# many positions at once.
LARGEST_PENDING = 32


def run_round(
    target: Target | PlainTarget,
    drafter: Drafting | None,
    chooser: Chooser,
    state: State,
    block_size: int,
) -> Verdict:
    """Build the graph of one round, and move ``state`` past it. Nothing is read by the host.

    All of the block is written to the caches and the context K/V; only the offset decides how much
    of it is committed. A plain round's features are kept, and projected with those of
    other plain rounds when a draft needs them.

    Args:
        target: verifies.
        drafter: drafts; None decodes plainly, which is a block of one.
        chooser: draws drafts and accepts them.
        state: with room for ``block_size`` more positions; updated in place.
        block_size: tokens to verify, anchor included; 1 drafts nothing.
    """
    if state.history is not None:
        state.history.write(state.anchor[:, None], state.offset)
    block, draft = state.anchor[:, None], None
    if block_size > 1:
        write_pending(drafter, state)
        proposal = drafter.draft(state.anchor, block_size, state.context)
        draft = chooser.draft(proposal, state)
        block = mx.concatenate([block, draft.tokens], axis=1)

    logits, features = target.forward(block, state.caches)
    if state.history is not None:
        state.history.write(block, state.offset)
    verdict = chooser.judge(draft, logits, state)
    if state.context is not None:
        if block_size > 1:
            drafter.write_context(features, state.context)
        else:
            state.pending.append(features)
    state.advance(verdict.tokens, verdict.accepted)
    if len(state.pending) >= LARGEST_PENDING:
        write_pending(drafter, state)
    return verdict


def write_pending(drafter: Drafting | None, state: State) -> None:
    """Project the features that plain rounds kept into the context K/V, which is then complete."""
    if state.pending:
        drafter.write_context(mx.concatenate(state.pending, axis=1), state.context)
        state.pending.clear()
        for cache in state.context:
            cache.offset = state.offset
