"""One measured generation."""

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import mlx.core as mx

from ..generation.response import GenerationResponse
from .arms import Arm, Response


@dataclass
class Run:
    """What one generation came to. Every arm is timed by the same clock, in the same way.

    Attributes:
        arm: which way of generating.
        prompt: the prompt's id.
        kind: the prompt's kind.
        context: tokens that the prompt was padded to, or 0 if it was taken as it is.
        repeat: 0 for the first repetition.
        prompt_tokens: tokens of the prompt.
        tokens: emitted tokens, the end token included.
        finish_reason: ``"stop"`` or ``"length"``.
        seconds: until the last token was there.
        first_token_seconds: until the first token was there.
        prompt_tps: prompt tokens a second, until the first token was there.
        decode_tps: tokens a second after the first round, over the time after it; None if the text
            ended there. The tokens of a first round come all at once and would flatter it.
        reported_prompt_tps: as the library itself says.
        reported_decode_tps: as the library itself says.
        peak_gb: peak memory in GB, with everything that this process has loaded.
        working_gb: how much of it came on top of the loaded models.
        tau: mean tokens a round, bonus included.
        acceptance: how often the draft at each position was accepted, first position first.
        block_rounds: rounds by block size.
        tokens_per_round: emitted tokens of each round, in order.
        kernels: which way the drafter's fused parts ran, or empty.
        differs_at: index of the first token that is not the plain arm's, or None.
        same_text: whether the text is the plain arm's; None if it need not be or is not known.
    """

    arm: str
    prompt: str
    kind: str
    context: int
    repeat: int
    prompt_tokens: int
    tokens: int
    finish_reason: str
    seconds: float
    first_token_seconds: float
    prompt_tps: float
    decode_tps: float | None
    reported_prompt_tps: float
    reported_decode_tps: float
    peak_gb: float
    working_gb: float
    tau: float
    acceptance: list[float]
    block_rounds: dict[str, int]
    tokens_per_round: list[int] = field(default_factory=list)
    kernels: str = ""
    differs_at: int | None = None
    same_text: bool | None = None

    def rounds(self, drafts: int = 0) -> int:
        """Rounds whose block had at least so many drafts."""
        return sum(n for size, n in self.block_rounds.items() if int(size) > drafts)


def grouped(runs: Iterable[Run], *names: str) -> dict[Any, list[Run]]:
    """Runs by the value of a field, or by the values of several, in the order of the first ones."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(attrgetter(*names)(run), []).append(run)
    return groups


@dataclass(frozen=True)
class Case:
    """A prompt at one length.

    Attributes:
        prompt: the prompt's id.
        kind: the prompt's kind.
        context: tokens that it was padded to, or 0.
        tokens: the prompt's tokens.
    """

    prompt: str
    kind: str
    context: int
    tokens: list[int]


def measure(arm: Arm, case: Case, max_tokens: int, repeat: int) -> tuple[Run, list[int]]:
    """Generate once, and time it.

    Returns:
        The measured run, and the emitted tokens.
    """
    # What an earlier run left behind, a round in flight or a buffer, is not this run's.
    mx.synchronize()
    mx.clear_cache()
    resident = mx.get_active_memory()
    mx.reset_peak_memory()
    begun = time.perf_counter()
    first, tokens, drafted = None, [], []
    # The responses are not kept: mlx-lm's hold the log-probabilities of the whole vocabulary.
    for last in arm.stream(case.tokens, max_tokens):
        ended = time.perf_counter()
        first = first or ended
        tokens.append(last.token)
        drafted.append(last.from_draft)
    peak = mx.get_peak_memory()

    rounds = tokens_per_round(drafted)
    later = len(tokens) - rounds[0]
    run = Run(
        arm=arm.name,
        prompt=case.prompt,
        kind=case.kind,
        context=case.context,
        repeat=repeat,
        prompt_tokens=len(case.tokens),
        tokens=len(tokens),
        finish_reason=last.finish_reason,
        seconds=ended - begun,
        first_token_seconds=first - begun,
        prompt_tps=len(case.tokens) / (first - begun),
        decode_tps=later / (ended - first) if later else None,
        reported_prompt_tps=last.prompt_tps,
        reported_decode_tps=last.generation_tps,
        peak_gb=peak / 1e9,
        working_gb=(peak - resident) / 1e9,
        tokens_per_round=rounds,
        **_rounds(last, rounds),
    )
    return run, tokens


def _rounds(last: Response, rounds: Sequence[int]) -> dict[str, object]:
    """What is known of the rounds: from our statistics, or from mlx-lm's marks on its tokens."""
    if isinstance(last, GenerationResponse):
        statistics = last.statistics
        return {
            "tau": statistics.tau,
            "acceptance": statistics.acceptance(),
            "block_rounds": {str(size): n for size, n in sorted(statistics.rounds.items())},
            "kernels": statistics.kernels,
        }
    return {
        "tau": sum(rounds) / len(rounds),
        "acceptance": [sum(n > j for n in rounds) / len(rounds) for j in range(1, max(rounds))],
        "block_rounds": {},
    }


def tokens_per_round(from_draft: Sequence[bool]) -> list[int]:
    """Emitted tokens of each round: accepted drafts, and the bonus that ends it."""
    rounds, count = [], 0
    for drafted in from_draft:
        count += 1
        if not drafted:
            rounds.append(count)
            count = 0
    return rounds + ([count] if count else [])


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Index of the first token that differs, or None if the two are equal."""
    pairs = itertools.zip_longest(ours, theirs)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), None)
