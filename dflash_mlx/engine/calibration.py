"""Measure what a pair's rounds cost here, in a few seconds, without any text."""

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import mlx.core as mx

from ..cache.adopt import adopt
from ..drafter.proposal import Drafting, Proposal
from ..target.target import Target
from .choose import Chooser, Draft, Verdict
from .costs import GREEDY, CostTable
from .prefill import prefill
from .queue import RoundQueue
from .sampling import Sampling
from .state import State

# The two context lengths at which rounds are measured, where the target's own allows them.
CONTEXTS = (512, 4096)
# The block sizes measured at the longer context, which only tells how cost grows with length. On a
# GPU, attention kernels change after 1 row, and where rows times grouped heads pass 32: after 4, 5
# or 8 rows.
LONG_SIZES = (1, 2, 4, 5, 6, 8, 9)
# Before each context's measurements, rounds run for so long that clocks rise and kernels are
# compiled.
WARM_UP_SECONDS = 0.2
# So many rounds of each size are timed, and the median counts.
ROUNDS = 3
# If the slowest of them took so many times as long as the fastest, twice as many more are timed.
UNSTEADY = 1.3
# Beyond so many seconds at a context no more are: on a busy machine no times would be steady.
PATIENCE = 5.0
# After so many seconds in all, only what a table must have is timed, and in single rounds: a
# machine that gets busy meanwhile takes many times as long as planned.
TIME_LIMIT = 40.0
# Times of one thing that lie so many times apart, but for one hiccup, are not to be believed; nor
# is a block that takes so many times as long as a larger one.
UNBELIEVABLE = 1.5
# Plain decoding is timed again behind every so many sizes: all others are compared with it, and
# machines drift.
PLAIN_EVERY = 2
# So many drafts make up the time of a draft alone.
DRAFTS = 3
# The seconds that the rounds and the verifies of all sizes may take together, if one of any size
# took as long as a round of two rows; on a slow machine fewer sizes are measured. What is not
# counted here is small or bounded by PATIENCE and TIME_LIMIT: warming up, repeats, plain decoding's
# further times, drafts alone.
BUDGET = 18.0


def sizes_to_measure(largest: int, seconds: float) -> tuple[list[int], list[int]]:
    """The block sizes to measure, and those of them to measure at the longer context as well.

    Every size up to 16, where kernels' limits are close together, and some beyond; fewer where
    that takes too long.

    Args:
        largest: the largest block size.
        seconds: of a round of two rows.
    """
    every = [size for size in (*range(1, 17), 20, 24, 28, 32, 48, 64) if size < largest] + [largest]
    powers = [size for size in every if size.bit_count() == 1 or size == largest]
    # Rounds, two of them untimed, and a verify.
    runs = (ROUNDS + 2) + 1
    for sizes in (every, powers):
        some = [size for size in sizes if size in LONG_SIZES or size == largest]
        if (len(sizes) + len(some)) * runs * seconds <= BUDGET:
            return sizes, some
    few = sorted({1, 2, largest})
    return few, few


def calibrate(
    target: Target,
    drafter: Drafting,
    largest: int,
    context_length: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    batch: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> CostTable:
    """Measure whole greedy rounds of every size, as generation runs them.

    A round's time is the interval between two reads while rounds of one size follow one another
    through the queue. That is the right time wherever the host waits: on Metal a read ends when
    its round does; on the CPU ``async_eval`` waits for most of the *next* round, which has the same
    size. A sum of stages timed apart would add a wait for each that no generation has, and hide
    that they overlap: the draft and the verify are timed alone as well, to say what a round spends
    its time on. Nothing is prefilled: buffers are moved to the context length as they are, because
    time does not depend on what they hold.

    Args:
        target: of the pair.
        drafter: of the pair.
        largest: the largest block size.
        context_length: positions the target was made for, if known.
        progress: called with measurements done and in all.
        batch: sequences in a round.
        clock: seconds.

    Returns:
        The table; :attr:`CostTable.uncertain` if what was timed twice did not agree.
    """
    begun, contexts = clock(), _contexts(context_length)
    rigs = [_Rig(target, drafter, context, clock, batch) for context in contexts]
    sizes_at = sizes_to_measure(largest, rigs[0].warm_up())
    total, done, steady = sum(map(len, sizes_at)), 0, True
    # Seconds by block size, at each context.
    rounds, drafts, verifies = ([{}, {}] for _ in range(3))
    for i, (rig, sizes) in enumerate(zip(rigs, sizes_at, strict=True)):
        rig.warm_up()
        plain, needed = [], {1, 2, largest}
        # These first, in case the time is over before the others.
        for size in sorted(sizes, key=lambda size: (size not in needed, size)):
            done += 1
            # Half of it for each context.
            hurry = clock() - begun > TIME_LIMIT * (i + 1) / len(rigs)
            if not hurry or size in needed:
                rounds[i][size] = rig.round(size, hurry)
                verifies[i][size] = rig.verify(size)
                if size > 1:
                    drafts[i][size] = rig.draft(size)
                if done % PLAIN_EVERY == 0 and not hurry:
                    plain.append(rig.round(1, hurry))
            progress(done, total)
        plain.append(rounds[i][1])
        rounds[i][1] = median(plain)
        steady = steady and _agree(plain) and _in_order(rounds[i])
    # The longer context tells how costs grow; it may have a size that the time was over for before.
    for shorter, longer in (rounds, drafts, verifies):
        for size in longer.keys() - shorter.keys():
            del longer[size]
    greedy, *alone = (_columns(*map(_ascending, part)) for part in (rounds, drafts, verifies))
    return CostTable(contexts, {GREEDY: greedy}, *alone, uncertain=not steady)


def _ascending(seconds: dict[int, float]) -> dict[int, float]:
    return dict(sorted(seconds.items()))


def _agree(times: list[float]) -> bool:
    """Whether times of one thing lie near one another; one of them may be a hiccup."""
    ordered = sorted(times)
    return ordered[-2 if len(times) > 2 else -1] <= UNBELIEVABLE * ordered[0]


def _in_order(seconds: dict[int, float]) -> bool:
    """Whether no block takes much longer than a larger one, by block size."""
    return all(
        seconds[small] <= UNBELIEVABLE * seconds[large]
        for small in seconds
        for large in seconds
        if small < large
    )


def _contexts(context_length: int | None) -> list[int]:
    """Two lengths to measure at, the longer one with room for the rounds below the target's own."""
    short, long = CONTEXTS
    if context_length is not None:
        long = max(min(long, context_length * 7 // 8), 32)
    return [min(short, long // 2), long]


def _columns(short: dict[int, float], long: dict[int, float]) -> dict[int, list[float]]:
    """Both columns of a table, by size.

    A size that was not measured at length grows as its neighbours do; none gets cheaper.
    """
    growth = {size: max(seconds - short[size], 0.0) for size, seconds in long.items()}
    columns = {}
    for size, seconds in short.items():
        below = max(s for s in growth if s <= size)
        above = min(s for s in growth if s >= size)
        part = (size - below) / max(above - below, 1)
        grown = growth[below] + (growth[above] - growth[below]) * part
        columns[size] = [seconds, seconds + grown]
    return columns


class _Rig:
    """Rounds of ``batch`` sequences of the pair, at one context length."""

    def __init__(
        self,
        target: Target,
        drafter: Drafting,
        context: int,
        clock: Callable[[], float],
        batch: int,
    ):
        caches = target.make_cache()
        context_kv = drafter.make_context(mx.array([0], mx.int32))
        prefill(target, drafter, [0, 0], caches, context_kv, 0, 2, lambda *_: None)
        self._target = target
        self._drafter = drafter
        self._state = State(
            anchor=mx.array([0], mx.int32),
            # Not the caches' offset but the round's: committing it moves the caches there.
            offset=mx.array([context - 1], mx.int32),
            caches=[adopt([c]) for c in caches],
            context=context_kv,
        )
        self._state.select([0] * batch)
        self._batch = batch
        self._random = _RandomTokens(target.vocab_size)
        self._queue = RoundQueue(target, drafter, self._random, self._state, [context] * batch)
        self._queue.submit(1)
        self._queue.read()
        self._clock = clock
        self._begun = clock()

    def warm_up(self) -> float:
        """Let clocks rise and kernels be compiled; seconds of a round of two rows, by itself."""
        self._begun, taken = self._clock(), []
        while len(taken) < 2 or self._clock() - self._begun < WARM_UP_SECONDS:
            started = self._clock()
            self._queue.submit(2)
            self._queue.read()
            taken.append(self._clock() - started)
        return min(taken)

    def round(self, size: int, hurry: bool) -> float:
        """Seconds of a round: of more rounds if some took much longer than others."""
        if hurry:
            return median(self._rounds(size, 1))
        taken = self._rounds(size, ROUNDS)
        patient = self._clock() - self._begun < PATIENCE
        if patient and max(taken) > UNSTEADY * min(taken):
            taken += self._rounds(size, 2 * ROUNDS)
        return median(taken)

    def _rounds(self, size: int, count: int) -> list[float]:
        self._queue.submit(size)
        self._queue.submit(size)
        self._queue.read()
        read = [self._clock()]
        for _ in range(count):
            self._queue.submit(size)
            self._queue.read()
            read.append(self._clock())
        self._queue.read()
        return [b - a for a, b in pairwise(read)]

    def verify(self, size: int) -> float:
        """Seconds of the target's forward alone; nothing of it is committed.

        Its kernels are warm from the rounds of this size.
        """
        state = self._state
        state.reserve(self._queue.lengths[0] + size)
        begun = self._clock()
        tokens = mx.repeat(self._random.take(size), self._batch, axis=0)
        logits, features = self._target.forward(tokens, state.caches)
        mx.eval(logits, features, *(array for cache in state.caches for array in cache.arrays()))
        return self._clock() - begun

    def draft(self, size: int) -> float:
        """Seconds of a draft alone, its choice included."""
        state, greedy = self._state, Chooser(Sampling())

        def draft() -> mx.array:
            proposal = self._drafter.draft(state.anchor, size, state.context)
            return greedy.draft(proposal, state).tokens

        mx.eval(draft())
        begun = self._clock()
        # In one evaluation, so that its own cost is shared.
        mx.eval([draft() for _ in range(DRAFTS)])
        return (self._clock() - begun) / DRAFTS


class _RandomTokens(Chooser):
    """Does all the work of a greedy choice, then takes random tokens and accepts no draft.

    Repeated tokens would send every row of a block to the same experts, and cost too little.
    """

    def __init__(self, vocab: int):
        super().__init__(Sampling())
        self._tokens = mx.random.randint(0, vocab, (1, 4096), key=mx.random.key(0))
        self._at = 0

    def draft(self, proposal: Proposal, state: State) -> Draft:
        draft = super().draft(proposal, state)
        draft.tokens = self._instead(draft.tokens)
        return draft

    def judge(self, draft: Draft | None, logits: mx.array, state: State) -> Verdict:
        verdict = super().judge(draft, logits, state)
        verdict.tokens = self._instead(verdict.tokens)
        verdict.accepted = verdict.accepted * 0
        return verdict

    def take(self, n: int) -> mx.array:
        """The next ``[1, n]`` of them."""
        begin = self._at
        self._at = (begin + n) % (self._tokens.shape[1] - 256)
        return self._tokens[:, begin : begin + n]

    def _instead(self, tokens: mx.array) -> mx.array:
        return tokens * 0 + self.take(tokens.shape[1]).astype(tokens.dtype)
