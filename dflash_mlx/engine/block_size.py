"""The block size of each round: fixed, or the one that promises the most tokens a second.

What a round costs, the cost table knows; how many tokens it will emit is estimated here, from the
rounds of one text.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import mul

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
# The acceptance of a draft that is assumed for a pair before its first text.
FIRST_ACCEPTANCE = 0.7
# After so many drafted rounds of a text, the cost of a plain round is checked if no round of this
# process has confirmed it: if it was too high, drafting would seem to pay for ever.
CHECK_AFTER = 24
# That check takes so many plain rounds.
CHECK_ROUNDS = 6

# An observation counts 1/e after so many tokens, in one estimate each: the long memory is exact on
# a steady text, the short one follows a text that changes.
MEMORIES = (40, 200)
# The acceptance at one position is drawn towards that of all positions as if so many drafts there
# had shown the latter.
SHRINKAGE = 15.0
# The acceptance expected before the text counts as much as so many drafts at first …
PRIOR_WEIGHT = 4.0
# … and, however long the text, never less than so many.
LEAST_PRIOR_WEIGHT = 1.0
# How well an estimate foresaw the drafts of a round counts 1/e in its weight after so many later
# drafted rounds.
JUDGED = 8


class Acceptance:
    """How likely the draft at each position of a block is accepted, if those before it are.

    A round that accepts all its drafts says nothing of the positions after them, and one that
    rejects a draft says nothing of those behind it, so what is estimated is the rate at which a
    position is accepted *if it is reached*. Each position's rate is drawn towards the one pooled
    over all.

    Decided in the tests' simulator: ``benchmarks/acceptance.py`` compares two memories and this
    draw with one memory alone, with one pooled rate and with a weaker draw.

    Args:
        positions: drafts of the largest block.
        prior: how likely a draft is accepted before anything is known, between 0 and 1.
        memory: tokens after which an observation counts 1/e.

    Attributes:
        merit: log-likelihood that the estimate gave to the latest outcomes.
    """

    def __init__(self, positions: int, prior: float, memory: float):
        self.merit = 0.0
        self._memory = memory
        # At 0 or 1 the first surprise would be infinitely unlikely.
        self._prior = min(max(prior, 0.01), 0.99)
        self._prior_weight = PRIOR_WEIGHT
        self._accepted = [0.0] * positions
        self._examined = [0.0] * positions

    def observe(self, block_size: int, accepted: int) -> None:
        """Take in a round. In plain decoding, too, what was seen gets old."""
        keep = math.exp(-(accepted + 1) / self._memory)
        self._prior_weight = max(self._prior_weight * keep, LEAST_PRIOR_WEIGHT)
        self._accepted = [x * keep for x in self._accepted]
        self._examined = [x * keep for x in self._examined]
        if block_size == 1:
            return
        rates = self.rates()
        likelihood = sum(math.log(rate) for rate in rates[:accepted])
        if accepted < block_size - 1:
            likelihood += math.log1p(-rates[accepted])
        self.merit = self.merit * math.exp(-1 / JUDGED) + likelihood
        for j in range(min(accepted + 1, block_size - 1)):
            self._examined[j] += 1
            self._accepted[j] += j < accepted

    def rates(self) -> list[float]:
        """The estimate, first position first."""
        weight = self._prior_weight
        pooled = (sum(self._accepted) + weight * self._prior) / (sum(self._examined) + weight)
        return [
            (accepted + SHRINKAGE * pooled) / (examined + SHRINKAGE)
            for accepted, examined in zip(self._accepted, self._examined, strict=True)
        ]


def expected_tokens(estimates: Sequence[Acceptance]) -> list[float]:
    """Tokens that a round of block size 1, 2, … is expected to emit.

    They are the sum of the probabilities that each position is reached, averaged over the
    estimates by how well these foresaw the latest drafts: when the text changes, the one with the
    short memory takes over.
    """
    best = max(estimate.merit for estimate in estimates)
    weights = [math.exp(estimate.merit - best) for estimate in estimates]
    total = sum(weights)
    reached = [accumulate(estimate.rates(), mul, initial=1.0) for estimate in estimates]
    columns = zip(*map(accumulate, reached), strict=True)
    return [
        sum(w * tokens for w, tokens in zip(weights, column, strict=True)) / total
        for column in columns
    ]


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
    """

    auto = True

    def __init__(
        self,
        costs: CostTable,
        largest: int | None = None,
        choice: str = GREEDY,
        remember: Callable[[], None] = lambda: None,
    ):
        self._sizes = [size for size in costs.sizes if largest is None or size <= largest]
        super().__init__(self._sizes[-1])
        self._costs, self._choice, self._remember = costs, choice, remember
        prior = FIRST_ACCEPTANCE if costs.acceptance is None else costs.acceptance
        self._estimates = [Acceptance(self.largest - 1, prior, memory) for memory in MEMORIES]
        self._balance: float | None = None
        self._tokens = self._examined = self._accepted = self._drafted = self._pause = 0
        self._last = 1
        # Price of each round that was chosen and not observed.
        self._flight: deque[float] = deque()

    def choose(self, context: int) -> int:
        seconds = self._costs.column(context, self._choice)
        # In plain steps, what a round loses if all its drafts are wrong.
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
        self._costs.learn_acceptance(self._examined, self._accepted)
        self._remember()

    def _credit(self, prices: Mapping[int, float]) -> float:
        """What may be lost to begin with: little is risked for a little gain."""
        tokens = expected_tokens(self._estimates)
        gain = max(tokens[size - 1] / (1 + price) for size, price in prices.items()) - 1
        return min(LEAST_CREDIT + CREDIT_A_GAIN * gain, LARGEST_CREDIT)

    def _best(self, seconds: Mapping[int, float], sizes: Sequence[int]) -> int:
        tokens = expected_tokens(self._estimates)
        rates = {size: tokens[size - 1] / seconds[size] for size in sizes}
        best = max(rates, key=rates.__getitem__)
        if best > 1 and self._last in rates and rates[best] < HYSTERESIS * rates[self._last]:
            return self._last
        return best

    def _checks(self, context: int) -> bool:
        """Whether a round that would be drafted checks plain decoding instead."""
        if self._drafted == CHECK_AFTER and self._costs.confirmed(1, context, self._choice):
            self._drafted += CHECK_ROUNDS
        return CHECK_AFTER <= self._drafted < CHECK_AFTER + CHECK_ROUNDS

    def _probe(self, prices: Mapping[int, float]) -> int | None:
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
