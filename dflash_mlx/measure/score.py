"""What the rounds over some prompts came to together: τ, and acceptance by position."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from .run import Run, grouped


@dataclass(frozen=True)
class Score:
    """All rounds of some runs, counted as if they were one text's.

    Attributes:
        prompts: how many were answered.
        tokens: emitted tokens.
        rounds: that emitted them.
        tau: emitted tokens a round; in the last round of a text, those within the text.
        acceptance: how often the draft at each position was accepted, of the rounds whose block
            reached the position.
        tokens_per_second: while emitting them.
    """

    prompts: int
    tokens: int
    rounds: int
    tau: float
    acceptance: list[float]
    tokens_per_second: float

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Self:
        """The score of these runs, each of them with another prompt."""
        tokens = sum(run.tokens for run in runs)
        rounds = sum(run.rounds() for run in runs)
        seconds = sum(run.tokens / run.reported_decode_tps for run in runs)
        rates = []
        for j in range(max((len(run.acceptance) for run in runs), default=0)):
            deep = [run for run in runs if len(run.acceptance) > j]
            reached = sum(run.rounds(j + 1) for run in deep)
            kept = sum(round(run.acceptance[j] * run.rounds(j + 1)) for run in deep)
            rates.append(kept / reached)
        speed = tokens / max(seconds, 1e-9)
        return cls(len(runs), tokens, rounds, tokens / max(rounds, 1), rates, speed)


def by_kind(runs: Sequence[Run]) -> dict[str, Score]:
    """A score for each kind of prompt, in their order."""
    return {kind: Score.of(own) for kind, own in grouped(runs, "kind").items()}
