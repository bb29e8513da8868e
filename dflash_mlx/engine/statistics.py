"""What the rounds of one generation came to."""

from collections import Counter
from dataclasses import dataclass, field

# Fewer drafts than this do not tell whether a drafter fits its target.
ENOUGH_DRAFTS = 64
# A drafter of whose drafts a smaller share is accepted does not seem to fit its target.
HARDLY_ANY = 0.02
# Drafting counts as switched off if at least this share of a text's tokens was decoded plainly.
MOSTLY = 0.75


@dataclass
class Statistics:
    """Counts over the rounds that were read.

    Attributes:
        rounds: rounds by block size; 1 is plain decoding.
        accepted: rounds by number of accepted drafts.
        kernels: which way the drafter's fused parts run and why, or empty without drafting.
        auto: whether the block size was chosen for each round.
        seconds: what the rounds took, without the time in which a consumer had their tokens.
        plain_seconds: what plain decoding of the same tokens would have taken, by the pair's
            measured costs; 0 if they are not known.
    """

    rounds: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    kernels: str = ""
    auto: bool = False
    seconds: float = 0.0
    plain_seconds: float = 0.0

    def add(self, block_size: int, accepted: int) -> None:
        """Count a round."""
        self.rounds[block_size] += 1
        self.accepted[accepted] += 1

    @property
    def total(self) -> int:
        """All rounds."""
        return self.rounds.total()

    @property
    def tokens(self) -> int:
        """Tokens of all rounds, those of a last round that was cut included."""
        return sum((n + 1) * count for n, count in self.accepted.items())

    @property
    def tau(self) -> float:
        """Mean tokens a round, bonus included; 0 before the first round."""
        return self.tokens / self.total if self.total else 0.0

    @property
    def gain(self) -> float | None:
        """Estimated speed relative to plain decoding, or None if costs are not known."""
        if not (self.plain_seconds and self.seconds):
            return None
        # No round is cheaper than a plain one: a larger quotient only says that the machine was
        # busier when plain decoding was timed.
        return min(self.plain_seconds / self.seconds, self.tau)

    @property
    def switched_off(self) -> bool:
        """Whether plain decoding was chosen for most of the text."""
        return self.auto and self.rounds[1] >= MOSTLY * self.tokens > 0

    @property
    def misfit(self) -> bool:
        """Whether hardly any draft was accepted, of enough to tell."""
        drafts = sum((size - 1) * count for size, count in self.rounds.items())
        accepted = sum(n * count for n, count in self.accepted.items())
        return drafts >= ENOUGH_DRAFTS and accepted < HARDLY_ANY * drafts

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
        """What there is to say to a person, a line each."""
        lines = [self._rounds()]
        if self.gain is not None:
            lines.append(f"Estimated gain: {self.gain:.2f} times the speed without drafting")
        if self.misfit:
            lines.append(
                "Hardly any draft was accepted: this drafter does not seem to fit this target; was "
                "it made for this very model?"
            )
        return "\n".join(lines)

    def why_plain(self) -> str:
        """Of a text for which drafting was :attr:`switched_off`, that it was, and why."""
        if self.rounds[1] == self.total:
            return "Drafting was switched off for the whole text: no block size promised to pay."
        return (
            f"Drafting was switched off for most of this text ({self.rounds[1]} of {self.tokens} "
            "tokens), because it did not pay."
        )

    def _rounds(self) -> str:
        if max(self.rounds, default=1) == 1:
            return f"Rounds: {self.total}{' plain' if self.auto else ', plain decoding'}"
        sizes = ", ".join(
            f"{count} of block {size}" if size > 1 else f"{count} plain"
            for size, count in sorted(self.rounds.items())
        )
        rates = " ".join(f"{r:.2f}" for r in self.acceptance())
        return f"Rounds: {sizes}, τ {self.tau:.2f}, accepted by position {rates}"
