"""The block size of each round: fixed, or the one that promises the most tokens a second.

What a round costs, the cost table knows; how many tokens it will emit, each text's estimates.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from .acceptance import FIRST_ACCEPTANCE, MEMORIES, Acceptance, expected_tokens
from .costs import GREEDY, CostTable

# Where plain decoding is best, probes (drafts that only ask whether drafting pays by now) may lose
# this share of the time that plain decoding of the text takes.
PROBE_ALLOWANCE = 0.018
# Drafts that seemed to pay, and did not, may lose this share of that time beyond the probes'.
DRAFT_ALLOWANCE = 0.008
# A text may lose so many plain steps before drafts have earned any, if drafting is expected to be
# no faster than plain decoding.
LEAST_CREDIT = 0.5
# For each 100% of speed that drafting is expected to gain, so many more plain steps may be lost
# before any were earned.
CREDIT_A_GAIN = 20.0
# Before any were earned, no text may lose more plain steps than this.
LARGEST_CREDIT = 2.0
# No more plain steps than this are kept as earned: a long good stretch must not pay for a long bad
# one.
LARGEST_BALANCE = 32.0
# One draft may risk at most what may be lost, divided by this: a single unlucky block does not end
# drafting.
STAKES = 2
# Probes have the block size that would be best if each draft were accepted with this probability.
PROBE_ACCEPTANCE = 0.8
# A probe must not cost more than the allowance of so many plain steps, unless every one does.
PROBE_EVERY = 24
# At least so many plain rounds lie between a draft that did not pay and the next probe: where a
# probe costs next to nothing, the allowance alone would pay for one every round.
PROBE_PAUSE = 6
# Another block size replaces the last round's only if it promises more tokens a second by this
# factor, because a cost can only be learned while the size stays; plain decoding needs no lead. A
# probe must be able to beat plain decoding by as much.
HYSTERESIS = 1.02
# After so many drafted rounds of a text, the cost of a plain round is checked if no round of this
# process has confirmed it: if it was too high, drafting would seem to pay for ever.
CHECK_AFTER = 24
# That check takes so many plain rounds.
CHECK_ROUNDS = 6


class BlockSizes:
    """The block sizes of one text: here, the same for every round.

    Attributes:
        largest: the largest block size that a round may have.
        auto: whether sizes follow costs and acceptance.
        plain_seconds: what plain decoding of the tokens so far would have taken; 0 if not known.
    """

    auto = False
    plain_seconds = 0.0

    def __init__(self, block_size: int):
        self.largest = block_size

    def choose(self, context: int) -> int:
        """The block size of the next round, after ``context`` committed tokens."""
        return self.largest

    def observe(
        self, block_size: int, accepted: int, context: int, seconds: float | None = None
    ) -> None:
        """Take in the oldest round not observed yet, and its time if that is known."""

    def finish(self) -> None:
        """Remember what the text has taught."""


class BlockController(BlockSizes):
    """Chooses each round's size from measured costs and from this text's own acceptance.

    The rate of a size is the tokens it is expected to emit divided by its seconds, and the best
    rate wins; plain decoding is one of the sizes. What keeps the promise never to be much slower
    than plain decoding is not the estimate but an account, in plain steps: a round of block size
    ``b`` costs ``seconds(b) / seconds(1)`` and earns the tokens it emits, and a round is drafted
    only if the account can bear that all its drafts are wrong. On any text whatsoever, and if the
    costs are right, ``n`` tokens are late by at most ``0.026 n + 2`` plain steps; by
    ``0.018 n + 0.5`` if no draft ever seems to pay.

    While plain decoding is best, the same account pays for probes: the smaller their price, the
    sooner the next. A probe that is accepted earns what pays for the next one at once, and counts
    in an estimate with a short memory, so that a text that changes is noticed within a few rounds.

    Args:
        costs: what rounds cost; corrected by those whose time is told.
        largest: the largest block size allowed. Default: the largest with a known cost.
        choice: how the text's tokens are chosen, as the table names it.
        remember: called at the end of the text, when ``costs`` has learned all of it.

    Attributes:
        last: the last round's size.
    """

    auto = True

    def __init__(
        self,
        costs: CostTable,
        largest: int | None = None,
        choice: str = GREEDY,
        remember: Callable[[], None] = lambda: None,
    ):
        super().__init__(max(n for n in costs.sizes if largest is None or n <= largest))
        self._costs = self._alone = costs
        self._choice, self._remember = choice, remember
        prior = FIRST_ACCEPTANCE if costs.acceptance is None else costs.acceptance
        self._estimates = [Acceptance(self.largest - 1, prior, memory) for memory in MEMORIES]
        self._balance: float | None = None
        self._tokens = self._examined = self._accepted = self._drafted = self._pause = 0
        self.last = 1
        # Price of each round that was chosen and not observed.
        self._flight: deque[float] = deque()

    def choose(self, context: int) -> int:
        return choose_together([self], context)

    def use(self, costs: CostTable | None) -> None:
        """Go on with the costs of rounds of several texts; None for those of this text alone."""
        self._costs = costs or self._alone

    def observe(
        self, block_size: int, accepted: int, context: int, seconds: float | None = None
    ) -> None:
        price = self._flight.popleft()
        self._tokens += accepted + 1
        earned = accepted + PROBE_ALLOWANCE * (accepted + 1)
        self._balance = min(self._balance + earned - price, LARGEST_BALANCE)
        for estimate in self._estimates:
            estimate.observe(block_size, accepted)
        if block_size == 1:
            self._pause = max(self._pause - 1, 0)
        else:
            self._pause = 0 if accepted > price else PROBE_PAUSE
        self._examined += min(accepted + 1, block_size - 1)
        self._accepted += accepted
        if seconds is not None:
            self._costs.learn(block_size, context, seconds, self._choice)
        self.plain_seconds += (accepted + 1) * self._costs.column(context, self._choice)[1]

    def finish(self) -> None:
        self._alone.learn_acceptance(self._examined, self._accepted)
        self._remember()

    def _credit(self, prices: Mapping[int, float]) -> float:
        """What may be lost to begin with: little is risked for a little gain."""
        tokens = expected_tokens(self._estimates)
        gain = max(tokens[size - 1] / (1 + price) for size, price in prices.items()) - 1
        return min(LEAST_CREDIT + CREDIT_A_GAIN * gain, LARGEST_CREDIT)

    def begin(self, prices: Mapping[int, float]) -> None:
        """Before the first round: credit, as far as the costs promise a gain."""
        if self._balance is None:
            self._balance = self._credit(prices)

    def seconds(self, context: int) -> dict[int, float]:
        """What a round of each size costs after ``context`` committed tokens."""
        return self._costs.column(context, self._choice)

    @property
    def tokens(self) -> list[float]:
        """Tokens that a round of block size 1, 2, … is expected to emit."""
        return expected_tokens(self._estimates)

    @property
    def free(self) -> float:
        """What may be lost, if all drafts in flight are wrong."""
        return self._balance - sum(self._flight)

    @property
    def purse(self) -> float:
        """What one draft may risk."""
        return (self.free + DRAFT_ALLOWANCE * self._tokens) / STAKES

    @property
    def probes(self) -> bool:
        """Whether a probe may be made by now."""
        return not self._pause and not any(self._flight)

    def checks(self, context: int) -> bool:
        """Whether a round that would be drafted checks plain decoding instead."""
        self._drafted += 1
        if self._drafted == CHECK_AFTER and self._costs.confirmed(1, context, self._choice):
            self._drafted += CHECK_ROUNDS
        return CHECK_AFTER <= self._drafted < CHECK_AFTER + CHECK_ROUNDS

    def submitted(self, block_size: int, price: float) -> None:
        """A round of this size and price was submitted, and will be observed."""
        self.last = block_size
        self._flight.append(price)


def choose_together(texts: Sequence[BlockController], context: int, plain: int = 0) -> int:
    """The block size of the next round of one or more texts.

    The size with the most tokens a second in all wins, of those whose price every text can bear.

    Args:
        texts: with the same costs.
        context: committed tokens of the longest.
        plain: how many more texts are in the round and take a single token from it.
    """
    largest = min(text.largest for text in texts)
    seconds = {n: cost for n, cost in texts[0].seconds(context).items() if n <= largest}
    # In plain steps, what a round loses if all its drafts are wrong.
    prices = {size: cost / seconds[1] - 1 for size, cost in seconds.items()}
    for text in texts:
        text.begin(prices)
    purse = min(text.purse for text in texts)
    tokens = [sum(column) + plain for column in zip(*(text.tokens for text in texts), strict=False)]
    rates = {
        size: tokens[size - 1] / seconds[size]
        for size in seconds
        if size == 1 or prices[size] <= purse
    }
    size, last = max(rates, key=rates.__getitem__), max(text.last for text in texts)
    if size > 1 and last in rates and rates[size] < HYSTERESIS * rates[last]:
        size = last
    if size == 1 and all(text.probes for text in texts):
        probe = _probe(prices)
        if probe is not None and prices[probe] <= min(text.free for text in texts):
            size = probe
    if size > 1 and any([text.checks(context) for text in texts]):
        size = 1
    for text in texts:
        text.submitted(size, prices[size])
    return size


def _probe(prices: Mapping[int, float]) -> int | None:
    """The size that asks whether drafting pays by now, or None if it never could."""
    hoped = {
        size: sum(PROBE_ACCEPTANCE**j for j in range(size)) / (1 + price)
        for size, price in prices.items()
    }
    paying = [size for size in prices if size > 1 and hoped[size] > HYSTERESIS]
    frequent = [s for s in paying if prices[s] <= PROBE_EVERY * PROBE_ALLOWANCE]
    if frequent:
        return max(frequent, key=hoped.__getitem__)
    # Of sizes of one price, the one that may emit the most.
    return min(paying, key=lambda size: (prices[size], -hoped[size]), default=None)
