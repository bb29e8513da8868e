"""Choosing for a batch whose rows have different options."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..drafter.proposal import Proposal
from .choose import Chooser, Draft, Verdict
from .state import State


@dataclass
class Group:
    """Batch rows that one chooser serves.

    Attributes:
        rows: their numbers.
        chooser: of these rows alone, as if they were the batch.
        drafts: False for rows that take the target's next token, whatever the others verify.
        error: what a user's function raised; the rows' tokens mean nothing then.
    """

    rows: list[int]
    chooser: Chooser
    drafts: bool = True
    error: Exception | None = None


@dataclass
class MixedDraft:
    """The drafts of a block.

    Attributes:
        tokens: ``[B, n - 1]`` int32.
        parts: those of each group, or None where it does not draft.
    """

    tokens: mx.array
    parts: list[Draft | None]


class MixedChooser:
    """Lets each group of batch rows be chosen for by its own chooser.

    What a row comes to is what its chooser makes of it alone, so a text does not depend on its
    company.

    Args:
        groups: of which no two share a batch row. A row of no group holds no sequence.
        batch: batch rows.
    """

    def __init__(self, groups: Sequence[Group], batch: int):
        self.groups = list(groups)
        order = [row for group in groups for row in group.rows]
        free = sorted(set(range(batch)) - set(order))
        places = {row: place for place, row in enumerate([*order, *free])}
        self._free = len(free)
        self._places = mx.array([places[row] for row in range(batch)])
        self._indices = [mx.array(group.rows) for group in groups]

    @property
    def drafts_nan(self) -> mx.array | None:
        """Whether anybody's first drafts hold NaN, a bool on the device; None before."""
        flags = [group.chooser.drafts_nan for group in self.groups]
        flags = [flag for flag in flags if flag is not None]
        return mx.stack(flags).any() if flags else None

    def draft(self, proposal: Proposal, state: State) -> MixedDraft:
        """Draw the drafts of a block, see :meth:`Chooser.draft`."""
        parts, tokens = [], []
        width = proposal.logits.shape[1]
        for group, index in zip(self.groups, self._indices, strict=True):
            part = None
            if group.drafts:
                part = group.chooser.draft(proposal.rows(index), _view(state, group.rows, index))
            parts.append(part)
            nothing = mx.zeros((len(group.rows), width), mx.int32)
            tokens.append(nothing if part is None else part.tokens)
        return MixedDraft(self._in_order(tokens), parts)

    def judge(self, draft: MixedDraft | None, logits: mx.array, state: State) -> Verdict:
        """Decide on the drafts, see :meth:`Chooser.judge`."""
        n = logits.shape[1]
        tokens, accepted = [], []
        logprobs: list[mx.array | None] = [None] * logits.shape[0]
        parts = [None] * len(self.groups) if draft is None else draft.parts
        for group, index, part in zip(self.groups, self._indices, parts, strict=True):
            verdict = self._judged(group, part, logits[index], _view(state, group.rows, index))
            missing = n - verdict.tokens.shape[1]
            tokens.append(mx.pad(verdict.tokens, [(0, 0), (0, missing)]))
            accepted.append(verdict.accepted[:, None])
            for place, row in enumerate(group.rows):
                logprobs[row] = None if verdict.logprobs is None else verdict.logprobs[place]
        return Verdict(self._in_order(tokens), self._in_order(accepted)[:, 0], logprobs)

    @staticmethod
    def _judged(group: Group, draft: Draft | None, logits: mx.array, state: State) -> Verdict:
        logits = logits if draft is not None else logits[:, :1]
        if not group.chooser.processors:
            return group.chooser.judge(draft, logits, state)
        try:
            return group.chooser.judge(draft, logits, state)
        except Exception as error:  # A user's function; the others' texts go on.
            group.error = error
            return Verdict(mx.zeros((1, 1), mx.int32), mx.zeros((1,), mx.int32), None)

    def _in_order(self, parts: list[mx.array]) -> mx.array:
        """What the groups came to, one behind the other, by batch row; zeros for free rows."""
        if self._free:
            parts = [*parts, mx.zeros((self._free, *parts[0].shape[1:]), parts[0].dtype)]
        return mx.concatenate(parts)[self._places]


def _view(state: State, rows: Sequence[int], index: mx.array) -> State:
    """What choosing looks at, of these batch rows."""
    committed = {
        place: state.committed[row] for place, row in enumerate(rows) if row in state.committed
    }
    history = None if state.history is None else state.history.rows(index)
    return State(state.anchor[index], state.offset[index], (), history=history, committed=committed)
