"""How many rows the next round verifies: the number that promises the most tokens a second.

Nothing here knows MLX or a clock: costs are a function, rounds are two integers each.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from .acceptance import Acceptance

# Of every plain step, the share that may be lost by probing while plain decoding is best, and the
# further share that may be lost by drafts that seem to pay.
PROBE_ALLOWANCE = 0.018
DRAFT_ALLOWANCE = 0.008
# Plain steps that may be lost before any were earned: where drafting is not expected to pay; how
# many more for each token that it is expected to gain in a plain step's time; and at most.
DOUBTFUL_CREDIT = 0.5
CREDIT_A_GAIN = 20.0
CREDIT = 2.0
# Gains that are remembered, in plain steps: a long good stretch does not pay for a long bad one.
LARGEST_BALANCE = 32.0
# A draft may lose one part in so many of what may be lost: one unlucky block does not end drafting.
STAKES = 2
# Probes are as long as is best on a text whose drafts are right so often, if one can be afforded
# every so many plain steps.
PROBE_ACCEPTANCE = 0.8
PROBE_EVERY = 24
# Plain rounds after a draft that did not pay, at least: where one costs nearly nothing, the
# allowance would be spent on a probe every round.
PROBE_PAUSE = 6
# Smaller advantages over the size in use do not change it, unless it is plain decoding that has
# them: costs are learned where sizes stay.
HYSTERESIS = 1.02
FIRST_ACCEPTANCE = 0.7
# Once in a text, after so many drafted rounds, so many plain ones check the cost that all others
# are compared with, if nothing has confirmed it: nobody would notice that it was too high.
CHECK_AFTER = 24
CHECK_ROUNDS = 6


class BlockSize(Protocol):
    """Chooses the size of each round; told of each round's outcome one round late."""

    def choose(self, context: int) -> int: ...

    def observe(self, rows: int, accepted: int) -> None: ...


class FixedBlock:
    """The same size always."""

    def __init__(self, rows: int):
        self._rows = rows

    def choose(self, context: int) -> int:
        """Rows of the next round."""
        return self._rows

    def observe(self, rows: int, accepted: int) -> None:
        """Nothing is learned."""


class BlockController:
    """Chooses each round's rows from measured costs and from this text's own acceptance.

    The rate of a size is the tokens it is expected to emit divided by its seconds, and the best
    rate wins; plain decoding is one of the sizes. What keeps the promise never to be much slower
    than plain decoding is not the estimate but an account, in plain steps: a round of ``b`` rows
    costs ``seconds(b) / seconds(1)`` and earns the tokens it emits, and a round is drafted only if
    the account can bear that all its drafts are wrong. On any text whatsoever, and if the costs are
    right, ``n`` tokens are late by at most ``0.026 n + 2`` plain steps; by ``0.018 n + 0.5`` if no
    draft ever seems to pay.

    While plain decoding is best, the same account pays for probes: the smaller their price, the
    sooner the next. A probe that is accepted earns what pays for the next one at once, and counts
    in an estimate with a short memory, so that a text that changes is noticed within a few rounds.

    Args:
        sizes: rows to choose from, 1 among them.
        costs: from the context length to the seconds of a round, by rows.
        acceptance: how likely a draft is accepted to begin with.
        confirmed: whether the cost of a plain round at a context length is beyond doubt.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        costs: Callable[[int], Mapping[int, float]],
        acceptance: float = FIRST_ACCEPTANCE,
        confirmed: Callable[[int], bool] = lambda context: True,
    ):
        self._sizes = tuple(sorted(sizes))
        self._costs = costs
        self._acceptance = Acceptance(self._sizes[-1] - 1, acceptance)
        self._balance: float | None = None
        self._tokens = 0
        self._last = 1
        self._pause = 0
        self._confirmed = confirmed
        self._drafted = 0
        # Price of each round that was chosen and not observed.
        self._flight: deque[float] = deque()

    def choose(self, context: int) -> int:
        """Rows of the next round, after ``context`` committed tokens."""
        seconds = self._costs(context)
        prices = {size: seconds[size] / seconds[1] - 1 for size in self._sizes}
        if self._balance is None:
            self._balance = self._credit(prices)
        free = self._balance - sum(self._flight)
        purse = (free + DRAFT_ALLOWANCE * self._tokens) / STAKES
        size = self._best(seconds, [s for s in self._sizes if s == 1 or prices[s] <= purse])
        if size == 1 and not self._pause and not any(self._flight):
            probe = self._probe(prices)
            if probe is not None and prices[probe] <= free:
                size = probe
        if size > 1:
            self._drafted += 1
            if self._checks(context):
                size = 1
        self._last = size
        self._flight.append(prices[size])
        return size

    def observe(self, rows: int, accepted: int) -> None:
        """Take the oldest unobserved round into account."""
        price = self._flight.popleft()
        self._tokens += accepted + 1
        earned = accepted + PROBE_ALLOWANCE * (accepted + 1)
        self._balance = min(self._balance + earned - price, LARGEST_BALANCE)
        self._acceptance.observe(rows, accepted)
        if rows == 1:
            self._pause = max(self._pause - 1, 0)
        else:
            self._pause = 0 if accepted > price else PROBE_PAUSE

    def _credit(self, prices: Mapping[int, float]) -> float:
        """What may be lost to begin with: little is risked for a little gain."""
        emitted = self._acceptance.emitted()
        gain = max(emitted[size - 1] / (1 + price) for size, price in prices.items()) - 1
        return min(DOUBTFUL_CREDIT + CREDIT_A_GAIN * gain, CREDIT)

    def _best(self, seconds: Mapping[int, float], sizes: Sequence[int]) -> int:
        emitted = self._acceptance.emitted()
        rates = {size: emitted[size - 1] / seconds[size] for size in sizes}
        best = max(rates, key=rates.__getitem__)
        if best > 1 and self._last in rates and rates[best] < HYSTERESIS * rates[self._last]:
            return self._last
        return best

    def _checks(self, context: int) -> bool:
        """Whether a round that would be drafted checks plain decoding instead."""
        if self._drafted == CHECK_AFTER and self._confirmed(context):
            self._drafted += CHECK_ROUNDS
        return CHECK_AFTER <= self._drafted < CHECK_AFTER + CHECK_ROUNDS

    def _probe(self, prices: dict[int, float]) -> int | None:
        """The size that asks whether drafting pays by now, or None if it never could."""
        hoped = {size: _geometric(PROBE_ACCEPTANCE, size) / (1 + p) for size, p in prices.items()}
        paying = [size for size in prices if size > 1 and hoped[size] > HYSTERESIS]
        frequent = [s for s in paying if prices[s] <= PROBE_EVERY * PROBE_ALLOWANCE]
        if frequent:
            return max(frequent, key=hoped.__getitem__)
        return min(paying, key=prices.__getitem__, default=None)


def _geometric(acceptance: float, rows: int) -> float:
    """Expected tokens of a round whose drafts are right with the same probability each."""
    return sum(acceptance**j for j in range(rows))
