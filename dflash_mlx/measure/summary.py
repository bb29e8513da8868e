"""Medians with their spread, from measured runs.

A ratio is taken prompt by prompt, between medians over the repetitions, so that a prompt which
happens to be slow in every arm does not move it.
"""

from collections.abc import Callable, Iterable, Sequence
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
        prompts: how many prompts were measured.
        ratio: decoding speed relative to plain, over prompts that both arms have.
        decode_tps: tokens a second of decoding, over prompts.
        prompt_tps: tokens a second of the prompt, over prompts.
        first_token_seconds: over prompts.
        tau: mean tokens a round, over prompts.
        peak_gb: greatest peak memory.
        working_gb: greatest memory on top of the models.
        different: prompts whose text is not plain's; None if that is not promised or not known.
    """

    arm: str
    prompts: int
    ratio: Spread | None
    decode_tps: Spread | None
    prompt_tps: Spread | None
    first_token_seconds: Spread | None
    tau: Spread | None
    peak_gb: float
    working_gb: float
    different: int | None


def summarize(runs: Sequence[Run], arms: Sequence[str]) -> list[Summary]:
    """A summary of each arm that has runs."""
    return [_summary(runs, arm) for arm in arms if any(run.arm == arm for run in runs)]


def _summary(runs: Sequence[Run], arm: str) -> Summary:
    own = [run for run in runs if run.arm == arm]
    speed, plain = medians(runs, arm, _decode), medians(runs, PLAIN, _decode)
    judged = [run for run in own if run.same_text is not None]
    return Summary(
        arm=arm,
        prompts=len(medians(runs, arm, lambda run: run.seconds)),
        ratio=Spread.of(speed[key] / plain[key] for key in speed if key in plain),
        decode_tps=Spread.of(speed.values()),
        prompt_tps=Spread.of(medians(runs, arm, lambda run: run.prompt_tps).values()),
        first_token_seconds=Spread.of(
            medians(runs, arm, lambda run: run.first_token_seconds).values()
        ),
        tau=Spread.of(medians(runs, arm, lambda run: run.tau).values()),
        peak_gb=max(run.peak_gb for run in own),
        working_gb=max(run.working_gb for run in own),
        different=len(unique(_key(r) for r in judged if not r.same_text)) if judged else None,
    )


def medians(
    runs: Sequence[Run], arm: str, value: Callable[[Run], float | None]
) -> dict[tuple[str, int], float]:
    """By prompt and context, the median over an arm's repetitions."""
    found: dict[tuple[str, int], list[float]] = {}
    for run in runs:
        if run.arm == arm and value(run) is not None:
            found.setdefault(_key(run), []).append(value(run))
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
            emitted = 0
            # What a last round emitted may have been cut by the end of the text.
            for count in run.tokens_per_round[:-1]:
                rounds.append((emitted, count))
                emitted += count
    if not rounds:
        return []
    length = max(at for at, _ in rounds) + 1
    width = max(length / most_buckets, _LEAST_BUCKET)
    found: dict[int, list[int]] = {}
    for at, count in rounds:
        found.setdefault(int(at / width), []).append(count)
    return [((b + 0.5) * width, fmean(found[b])) for b in sorted(found)]


def _decode(run: Run) -> float | None:
    return run.decode_tps


def _key(run: Run) -> tuple[str, int]:
    return run.prompt, run.context
