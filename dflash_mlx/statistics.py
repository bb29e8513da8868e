"""What the rounds of one generation came to."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Statistics:
    """Counts over the rounds that were read.

    Attributes:
        rounds: rounds by block size; 1 is plain decoding.
        accepted: rounds by number of accepted drafts.
        kernels: which way the drafter's fused parts run and why, or empty without drafting.
    """

    rounds: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    kernels: str = ""

    def add(self, block_size: int, accepted: int) -> None:
        """Count a round."""
        self.rounds[block_size] += 1
        self.accepted[accepted] += 1

    @property
    def total(self) -> int:
        """All rounds."""
        return self.rounds.total()

    @property
    def tau(self) -> float:
        """Mean tokens a round, bonus included; 0 before the first round."""
        emitted = sum((n + 1) * count for n, count in self.accepted.items())
        return emitted / self.total if self.total else 0.0

    def acceptance(self) -> list[float]:
        """How often the draft at each position of a block was accepted, first position first.

        A position counts only in the rounds whose block reached it.
        """
        rates = []
        for j in range(1, max(self.rounds, default=1)):
            reached = sum(count for size, count in self.rounds.items() if size > j)
            kept = sum(count for n, count in self.accepted.items() if n >= j)
            rates.append(kept / reached)
        return rates

    def summary(self) -> str:
        """One line for a person."""
        drafted = {size: count for size, count in self.rounds.items() if size > 1}
        if not drafted:
            return f"Rounds: {self.total}, plain decoding"
        sizes = ", ".join(f"{count} of block {size}" for size, count in sorted(drafted.items()))
        rates = " ".join(f"{r:.2f}" for r in self.acceptance())
        return f"Rounds: {sizes}, τ {self.tau:.2f}, accepted by position {rates}"
