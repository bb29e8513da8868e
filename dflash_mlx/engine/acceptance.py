"""How many tokens a round of each block size will emit, estimated from the rounds of one text."""

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

# The acceptance of a draft that is assumed for a pair before its first text.
FIRST_ACCEPTANCE = 0.7
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
