"""Medians with their spread, from measured runs.

A ratio is taken prompt by prompt, between medians over the repetitions, so that a prompt which
happens to be slow in every arm does not move it.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from .arms import PLAIN
from .report import unique
from .run import Run

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
        return len(unique(map(_key, self.runs)))

    @property
    def ratio(self) -> Spread | None:
        """Decoding speed relative to plain, over prompts that both arms have."""
        speed, plain = (_medians(runs, "decode_tps") for runs in (self.runs, self.plain))
        return Spread.of(speed[key] / plain[key] for key in speed if key in plain)

    @property
    def different(self) -> int | None:
        """Prompts whose text is not plain's; None if that is not promised or not known."""
        judged = [run for run in self.runs if run.same_text is not None]
        return len(unique(_key(run) for run in judged if not run.same_text)) if judged else None

    def spread(self, name: str) -> Spread | None:
        """Of a field of the runs, over prompts."""
        return Spread.of(_medians(self.runs, name).values())


def summarize(runs: Sequence[Run], arms: Sequence[str]) -> list[Summary]:
    """A summary of each arm that has runs."""
    by_arm = {arm: [run for run in runs if run.arm == arm] for arm in (*arms, PLAIN)}
    return [Summary(arm, by_arm[arm], by_arm[PLAIN]) for arm in arms if by_arm[arm]]


def _medians(runs: Sequence[Run], name: str) -> dict[tuple[str, int], float]:
    """By prompt and context, the median over the repetitions of what is known."""
    found: dict[tuple[str, int], list[float]] = {}
    for run in runs:
        if getattr(run, name) is not None:
            found.setdefault(_key(run), []).append(getattr(run, name))
    return {key: median(values) for key, values in found.items()}


def repeat_spread(runs: Sequence[Run]) -> float | None:
    """How far repetitions of one prompt by one arm lie apart, as a share; the median over all."""
    found: dict[tuple[str, str, int], list[float]] = {}
    for run in runs:
        if run.decode_tps is not None:
            found.setdefault((run.arm, *_key(run)), []).append(run.decode_tps)
    shares = [(max(v) - min(v)) / median(v) for v in found.values() if len(v) > 1]
    return median(shares) if shares else None


def acceptance(runs: Sequence[Run], arm: str) -> list[float]:
    """Acceptance by position, the mean over an arm's runs that reached the position."""
    rates = [run.acceptance for run in runs if run.arm == arm]
    longest = max(map(len, rates), default=0)
    return [fmean(r[j] for r in rates if len(r) > j) for j in range(longest)]


def tokens_per_round_over_time(
    runs: Sequence[Run], arm: str, most_buckets: int = 16
) -> list[tuple[float, float]]:
    """Mean tokens a round, by how many tokens had been emitted before it.

    Returns:
        Pairs of emitted tokens, at the middle of a bucket, and mean tokens a round in it.
    """
    rounds = []
    for run in runs:
        if run.arm == arm and run.repeat == 0:
            # What a last round emitted may have been cut by the end of the text.
            counts = run.tokens_per_round[:-1]
            rounds += zip(itertools.accumulate(counts, initial=0), counts, strict=False)
    if not rounds:
        return []
    width = max((max(at for at, _ in rounds) + 1) / most_buckets, _LEAST_BUCKET)
    found: dict[int, list[int]] = {}
    for at, count in rounds:
        found.setdefault(int(at / width), []).append(count)
    return [((b + 0.5) * width, fmean(found[b])) for b in sorted(found)]


def _key(run: Run) -> tuple[str, int]:
    return run.prompt, run.context
