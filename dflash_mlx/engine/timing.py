"""The time of rounds, from the reads of a loop that does not wait for being timed."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from .queue import HostRound, RoundQueue

# The interval between two reads is a round's time if a consumer held the loop up for less than this
# share of it.
HELD_UP = 0.05
# A read that waited for more than this share of the interval shows that the device was busy all
# along, whatever the consumer did.
WAITED = 0.1
# What a round of a size takes is the median of so many.
LATELY = 3


class RoundTimer:
    """Reads rounds, and takes their time where it can be told.

    The interval between two reads is a round's time when rounds of one size follow one another:
    on Metal it is what the round that is read took, on the CPU, where ``async_eval`` waits for most
    of what it is given, rather what the one queued behind it took. A round between two of another
    size, such as a probe among plain ones, took what both intervals around it took together, less
    what such rounds take, wherever the host waited. Time in which a consumer has the
    tokens counts only if the device was at work meanwhile, which is so when both reads waited.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._begun = clock()
        self._read: float | None = None
        self._held = 0.0
        self._all_held = 0.0
        self._waited = False
        # The size and the time of the round before, if its interval is one of the two around this.
        self._before: tuple[int, float] | None = None
        self._lately: dict[int, deque[float]] = {}

    @property
    def seconds(self) -> float:
        """Seconds so far, without those in which a consumer had the tokens."""
        return self._clock() - self._begun - self._all_held

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Around what a consumer does."""
        begun = self._clock()
        try:
            yield
        finally:
            held = self._clock() - begun
            self._held += held
            self._all_held += held

    def disturbed(self) -> None:
        """Something else was computed since the last read: the interval tells nothing."""
        self._read = None

    def read(self, queue: RoundQueue, alone: bool) -> tuple[HostRound, float | None]:
        """Read the oldest round.

        Args:
            queue: of the rounds.
            alone: whether each round is read before the next is queued.

        Returns:
            The round, and its seconds, or None if they cannot be told.
        """
        begun = self._clock()
        news = queue.read()
        now = self._clock()
        seconds, before, size = None, self._before, news.block_size
        self._before = None
        if self._read is not None:
            interval = now - self._read
            waited = now - begun > WAITED * interval
            if self._held <= HELD_UP * interval or (waited and self._waited):
                seconds = interval if alone else self._told(size, interval, queue.next_size, before)
                self._before = size, interval
            self._waited = waited
        self._read, self._held = now, 0.0
        return news, seconds

    def _told(
        self, size: int, interval: float, following: int | None, before: tuple[int, float] | None
    ) -> float | None:
        """What an interval tells of the round that ended it, if anything."""
        if following == size:
            self._lately.setdefault(size, deque(maxlen=LATELY)).append(interval)
            return interval
        if before is None or before[0] != following or following not in self._lately:
            return None
        seconds = before[1] + interval - median(self._lately[following])
        return seconds if seconds > 0 else None


class Clock:
    """Times the prompt and the rounds apart."""

    def __init__(self, prompt_tokens: int):
        self._prompt_tokens = prompt_tokens
        self._begun = time.perf_counter()
        self._decoding = self._begun
        self.tokens = 0

    def start_decoding(self) -> None:
        self._decoding = time.perf_counter()

    @property
    def prompt_tps(self) -> float:
        return self._prompt_tokens / max(self._decoding - self._begun, 1e-9)

    @property
    def generation_tps(self) -> float:
        return self.tokens / max(time.perf_counter() - self._decoding, 1e-9)
