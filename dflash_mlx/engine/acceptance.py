"""How many tokens a round will emit, estimated from the rounds of one text."""

import math
from collections.abc import Iterator

# Tokens after which an observation counts 1/e, one estimate each: in plain decoding, too, what was
# seen gets old. How well each foresaw the latest drafts decides how much it counts, so that the
# short one takes over when the text changes.
MEMORIES = (40, 200)
# Observations that the pooled rate is worth when a position's own rate is drawn towards it.
SHRINKAGE = 15.0
# Observations that the rate before the text is worth at first, and in the end.
PRIOR_WEIGHT = 4.0
LEAST_PRIOR_WEIGHT = 1.0
# Drafts after which the quality of a foresight counts 1/e.
JUDGED = 8


class _Estimate:
    """Acceptance by position, with one memory length."""

    def __init__(self, positions: int, prior: float, memory: float):
        self._memory = memory
        self._prior = prior
        self._prior_weight = PRIOR_WEIGHT
        self._accepted = [0.0] * positions
        self._examined = [0.0] * positions
        self.merit = 0.0

    def observe(self, rows: int, accepted: int) -> None:
        """Take in a round; what lies behind the first rejected draft was not examined."""
        keep = math.exp(-(accepted + 1) / self._memory)
        self._prior_weight = max(self._prior_weight * keep, LEAST_PRIOR_WEIGHT)
        self._accepted = [x * keep for x in self._accepted]
        self._examined = [x * keep for x in self._examined]
        if rows == 1:
            return
        self.merit = self.merit * math.exp(-1 / JUDGED) + self._log_likelihood(rows, accepted)
        for j in range(min(accepted + 1, rows - 1)):
            self._examined[j] += 1
            self._accepted[j] += j < accepted

    def rates(self) -> list[float]:
        """How likely the draft at each position is accepted if all before it are."""
        weight = self._prior_weight
        pooled = (sum(self._accepted) + weight * self._prior) / (sum(self._examined) + weight)
        return [
            (accepted + SHRINKAGE * pooled) / (examined + SHRINKAGE)
            for accepted, examined in zip(self._accepted, self._examined, strict=True)
        ]

    def emitted(self) -> Iterator[float]:
        """Expected tokens of a round of 1, 2, … rows."""
        reached, tokens = 1.0, 1.0
        yield tokens
        for rate in self.rates():
            reached *= rate
            tokens += reached
            yield tokens

    def _log_likelihood(self, rows: int, accepted: int) -> float:
        rates = self.rates()
        likelihood = sum(math.log(rate) for rate in rates[:accepted])
        if accepted < rows - 1:
            likelihood += math.log1p(-rates[accepted])
        return likelihood


class Acceptance:
    """Expected tokens of a round of any size, from censored observations of some sizes.

    A round of ``b`` rows that accepts all ``b - 1`` drafts says nothing of the position after them,
    so what is estimated is the rate at which the draft at a position is accepted *if it is
    reached*; the tokens of a round are the sum of the products of these rates. Each position's rate
    is drawn towards the one pooled over all.

    Decided in the tests' simulator: ``benchmarks/acceptance.py`` compares it with one pooled rate,
    with a weaker draw, and with either memory alone.

    Args:
        positions: drafts of the largest block.
        prior: how likely a draft is accepted before anything is known, between 0 and 1.
    """

    def __init__(self, positions: int, prior: float):
        # At 0 or 1 the first surprise would be infinitely unlikely.
        prior = min(max(prior, 0.01), 0.99)
        self._estimates = [_Estimate(positions, prior, memory) for memory in MEMORIES]

    def observe(self, rows: int, accepted: int) -> None:
        """Take in a round of ``rows`` rows of which ``accepted`` drafts were kept."""
        for estimate in self._estimates:
            estimate.observe(rows, accepted)

    def emitted(self) -> list[float]:
        """Expected tokens of a round of 1, 2, … rows."""
        best = max(estimate.merit for estimate in self._estimates)
        weights = [math.exp(estimate.merit - best) for estimate in self._estimates]
        columns = zip(*(estimate.emitted() for estimate in self._estimates), strict=True)
        return [
            sum(w * tokens for w, tokens in zip(weights, column, strict=True)) / sum(weights)
            for column in columns
        ]
