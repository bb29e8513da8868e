"""Medians with their spread, from measured runs.

A ratio is taken prompt by prompt, between medians over the repetitions, so that a prompt which
happens to be slow in every arm does not move it.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from .arms import PLAIN
from .run import Run, grouped

_PROMPT = ("prompt", "context")
# Tokens; in fewer than these there are too few rounds for a mean.
_LEAST_BUCKET = 8


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of some values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread | None":
        """Of the values that are not None; None if there is no such value."""
        known = [value for value in values if value is not None]
        return cls(median(known), min(known), max(known)) if known else None


@dataclass(frozen=True)
class Summary:
    """What the runs of one arm come to.

    Attributes:
        arm: its name.
        runs: its runs.
        plain: those of plain decoding.
    """

    arm: str
    runs: Sequence[Run]
    plain: Sequence[Run]

    @property
    def prompts(self) -> int:
        """How many prompts were measured."""
        return len(grouped(self.runs, *_PROMPT))

    @property
    def ratio(self) -> Spread | None:
        """Decoding speed relative to plain, over prompts that both arms have."""
        speed, plain = (_medians(runs, "decode_tps") for runs in (self.runs, self.plain))
        return Spread.of(speed[key] / plain[key] for key in speed if key in plain)

    @property
    def different(self) -> int | None:
        """Prompts whose text is not plain's; None if that is not promised or not known."""
        if all(run.same_text is None for run in self.runs):
            return None
        return len(grouped((run for run in self.runs if run.same_text is False), *_PROMPT))

    @property
    def acceptance(self) -> list[float]:
        """Acceptance by position, the mean over the runs that reached the position."""
        rates = [run.acceptance for run in self.runs]
        return [fmean(r[j] for r in rates if len(r) > j) for j in range(max(map(len, rates)))]

    def spread(self, name: str) -> Spread | None:
        """Of a field of the runs, over prompts."""
        return Spread.of(_medians(self.runs, name).values())

    def tokens_per_round(self, most_buckets: int = 16) -> list[tuple[float, float]]:
        """Mean tokens a round, by how many tokens had been emitted before it.

        Returns:
            Pairs of emitted tokens, at the middle of a bucket, and mean tokens a round in it.
        """
        rounds: list[tuple[int, int]] = []
        for run in (run for run in self.runs if run.repeat == 0):
            # What a last round emitted may have been cut by the end of the text.
            counts = run.tokens_per_round[:-1]
            rounds += zip(itertools.accumulate(counts, initial=0), counts, strict=False)
        width = max((max(rounds, default=(0,))[0] + 1) / most_buckets, _LEAST_BUCKET)
        found: dict[int, list[int]] = {}
        for at, count in rounds:
            found.setdefault(int(at / width), []).append(count)
        return [((b + 0.5) * width, fmean(found[b])) for b in sorted(found)]


def summarize(runs: Sequence[Run], arms: Sequence[str]) -> list[Summary]:
    """A summary of each arm that has runs."""
    own = grouped(runs, "arm")
    return [Summary(arm, own[arm], own.get(PLAIN, [])) for arm in arms if arm in own]


def _medians(runs: Sequence[Run], name: str) -> dict[tuple[str, int], float]:
    """By prompt and context, the median over the repetitions of what is known."""
    known = (run for run in runs if getattr(run, name) is not None)
    by_prompt = grouped(known, *_PROMPT)
    return {key: median(getattr(run, name) for run in own) for key, own in by_prompt.items()}


def repeat_spread(runs: Sequence[Run]) -> float | None:
    """How far repetitions of one prompt by one arm lie apart, as a share; the median over all."""
    known = grouped((run for run in runs if run.decode_tps is not None), "arm", *_PROMPT)
    speeds = [[run.decode_tps for run in own] for own in known.values() if len(own) > 1]
    return median((max(v) - min(v)) / median(v) for v in speeds) if speeds else None
