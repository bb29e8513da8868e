"""The sequences that decode together: they join, take rounds, and leave."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import mlx.core as mx

from ..cache.adopt import kind_of
from ..loading.pair import Pair
from .block_size import BlockController, choose_together
from .choose import Chooser
from .costs import CostTable
from .interrupt import uninterrupted
from .mixed import Group, MixedChooser
from .queue import RoundQueue
from .round import write_pending
from .session import EmittedToken, Session
from .state import State
from .timing import RoundTimer

# Outgrown buffers are kept for reuse until they are cleared; mlx-lm does so as often.
CLEAR_EVERY = 256
# A batch that could do with half its slots for so many rounds gives up the other half: copying all
# of the keys and values costs a few rounds.
SHRINK_AFTER = 32
NAN = (
    "The drafter's logits are not numbers (NaN), so its drafts are worth nothing; the text is the "
    "target's own all the same. Its weights may be damaged, or too large for float16: convert it "
    "again, with dtype bfloat16 or float32."
)


class Batch:
    """Sequences with caches of one kind, each in a slot of one batch.

    Whoever joins is written into a free slot, and whoever leaves frees its own; the others' keys
    and values stay where they are. Only when slots run out, or have long been free, is the whole
    batch copied. Rounds in flight are not waited for: they carry who was in which slot.

    Args:
        model: the pair.
        largest: the most slots.
        costs: of rounds with so many slots, more than one; None if nothing is known.

    Attributes:
        slots: who is in which batch row; None in a free one.
    """

    def __init__(
        self, model: Pair, largest: int, costs: Callable[[int], CostTable | None] = lambda n: None
    ):
        self._model = model
        self._largest = largest
        self._costs = costs
        self.slots: list[Session | None] = []
        self._queue: RoundQueue | None = None
        self._timer: RoundTimer | None = None
        # Rounds in a row for which half the slots were enough, and tokens since buffers were freed.
        self._roomy = 0
        self._emitted = 0
        # Of drafts that are not numbers.
        self._warned = False

    @property
    def sessions(self) -> list[Session]:
        """Who is here."""
        return [session for session in self.slots if session is not None]

    def held_up(self) -> AbstractContextManager[None]:
        """Around what a consumer of tokens does."""
        return self._timer.held_up()

    def disturbed(self) -> None:
        """Something else was computed between its rounds."""
        self._timer.disturbed()

    def takes(self, state: State) -> bool:
        """Whether a sequence in this state can join: there is room, and its caches are alike."""
        if self._queue is None:
            return True
        free = len(self.sessions) < self._largest
        return free and kind_of(self._queue.state.caches) == kind_of(state.caches)

    def join(self, session: Session, state: State) -> None:
        """Let a session that is prefilled take part in the rounds from now on."""
        if self._queue is None:
            self.slots = [session]
            drafter = self._model.drafter if session.drafts else None
            target, chooser = self._model.target, _chooser([session])
            self._queue = RoundQueue(target, drafter, chooser, state, [session.length])
            self._timer = RoundTimer()
            session.joined = 0.0
            return
        session.joined = self._timer.seconds
        if None not in self.slots:
            count = min(2 * len(self.slots), self._largest)
            self._resize([*range(len(self.slots)), *[None] * (count - len(self.slots))])
        slot = self.slots.index(None)
        self._match_contexts(state)
        self._queue.put(slot, state, session.length)
        self.slots[slot] = session
        self._regroup()

    def leave(self, session: Session) -> None:
        """Free the session's slot, and complete its prompt cache."""
        slot, queue = self.slots.index(session), self._queue
        try:
            if session.request.options.prompt_cache is not None:
                write_pending(queue.drafter, queue.state)
                written = queue.lengths[slot]
                session.hand_back(queue.state, slot, written, queue.in_flight_for(slot) > 0)
        finally:
            self.slots[slot] = None
            queue.drop(slot)
            if not self.sessions:
                # What is in flight is nobody's.
                self._queue, self.slots = None, []
            else:
                self._regroup()

    def round(self) -> list[tuple[Session, Iterator[EmittedToken]]]:
        """Submit a round, and read the oldest: what it emits, for each session that is still here.

        The next one is queued before this is read, unless it is likely the last, or somebody's
        tokens are needed to choose the next.
        """
        if all(session.finished for session in self.sessions):
            return [(session, iter(())) for session in self.sessions]
        waits = any(session.waits for session in self.sessions)
        with uninterrupted():
            if not self._queue.in_flight:
                self._submit()
            if not waits and any(session.likely_goes_on for session in self.sessions):
                self._submit()
            longest = max(length for length in self._queue.lengths if length is not None)
            news, seconds = self._timer.read(self._queue, alone=waits)
        self._emitted += sum(map(len, news.tokens))
        if self._queue.drafts_nan and not self._warned:
            self._warned = True
            warnings.warn(NAN, stacklevel=2)
        emitted = []
        for row, slot in enumerate(news.slots):
            if slot is not None:
                session = self.slots[slot]
                session.statistics.seconds = self._timer.seconds - session.joined
                emitted.append((session, session.receive(news, row, longest, seconds)))
                # What a round took is learned once.
                seconds = None
        return emitted

    def _submit(self) -> None:
        queue = self._queue
        if self._emitted >= CLEAR_EVERY:
            mx.clear_cache()
            self._emitted = 0
        self._shrink()
        queue.state.committed = {
            slot: mx.array(session.seen)
            for slot, session in enumerate(self.slots)
            if session is not None and session.waits
        }
        queue.submit(self._block_size())
        for group in getattr(queue.chooser, "groups", ()):
            for slot in group.rows if group.error is not None else ():
                self.slots[slot].error = group.error

    def _block_size(self) -> int:
        """What suits all: texts that choose do so together, the others take what comes."""
        context = max(length for length in self._queue.lengths if length is not None)
        choosing = self._choosing()
        if not choosing:
            return max(session.sizes.choose(context) for session in self.sessions)
        return choose_together(choosing, context, len(self.sessions) - len(choosing))

    def _match_contexts(self, state: State) -> None:
        """Give the batch or the newcomer a context K/V, if only the other has one.

        It begins where its sequence stands: what lies before is not known to the drafter.
        """
        queue, drafter = self._queue, self._model.drafter
        if queue.state.context is None and state.context is not None:
            queue.drafter, queue.state.context = drafter, drafter.make_context(queue.state.offset)
        elif state.context is None and queue.state.context is not None:
            state.context = drafter.make_context(state.offset)

    def _shrink(self) -> None:
        """Give slots up that have long been free."""
        live, half = len(self.sessions), len(self.slots) // 2
        self._roomy = self._roomy + 1 if live <= half else 0
        if self._roomy > SHRINK_AFTER:
            rows = [slot for slot, session in enumerate(self.slots) if session is not None]
            self._resize([*rows, *[None] * (half - live)])

    def _resize(self, rows: Sequence[int | None]) -> None:
        self._queue.select(rows)
        self.slots = [None if row is None else self.slots[row] for row in rows]
        self._roomy = 0
        self._regroup()

    def _regroup(self) -> None:
        self._queue.chooser = _chooser(self.slots)
        costs = self._costs(len(self.slots)) if len(self.slots) > 1 else None
        for size in self._choosing():
            size.use(costs)

    def _choosing(self) -> list[BlockController]:
        """The block sizes that are chosen for each round."""
        sizes = (session.sizes for session in self.sessions)
        return [size for size in sizes if isinstance(size, BlockController)]


def _chooser(slots: Sequence[Session | None]) -> Chooser | MixedChooser:
    """What chooses for each session as its own options say."""
    groups: dict[object, list[int]] = {}
    for slot, session in enumerate(slots):
        if session is not None:
            groups.setdefault(session.choice, []).append(slot)
    made = []
    for rows in groups.values():
        options = slots[rows[0]].request.options
        # The options are both, a Sampling and Penalties.
        chooser = Chooser(
            options,
            options,
            options.logits_processors or (),
            keep_logprobs=options.logprobs,
            seeds=mx.concatenate([slots[row].seeds for row in rows]),
        )
        made.append(Group(rows, chooser, options.draft))
    if len(made) == 1 and len(made[0].rows) == len(slots):
        return made[0].chooser
    return MixedChooser(made, len(slots))
