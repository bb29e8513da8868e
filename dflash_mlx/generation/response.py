"""What a generation yields, and how it is reported."""

from dataclasses import dataclass

import mlx.core as mx

from ..engine.statistics import Statistics


@dataclass
class GenerationResponse:
    """One emitted token, and what was measured up to it.

    The fields are mlx-lm's, and three of a round.

    Attributes:
        text: text that became clear with this token; may be empty.
        token: its id, or None if no token was asked for.
        logprobs: ``[vocab]`` float32 when asked for, else None.
        from_draft: whether the drafter had guessed it.
        prompt_tokens: tokens of the prompt.
        prompt_tps: prompt tokens a second, up to the first token.
        generation_tokens: emitted tokens so far.
        generation_tps: emitted tokens a second.
        peak_memory: in GB.
        finish_reason: ``"stop"`` or ``"length"`` on the last response, else None.
        accepted: accepted drafts of the token's round.
        block_size: positions that the token's round verified, anchor included.
        tau: mean tokens a round so far, bonus included; a last round that is cut counts whole.
        statistics: counts over all rounds so far.
    """

    text: str
    token: int | None
    logprobs: mx.array | None
    from_draft: bool
    prompt_tokens: int
    prompt_tps: float
    generation_tokens: int
    generation_tps: float
    peak_memory: float
    finish_reason: str | None
    accepted: int
    block_size: int
    tau: float
    statistics: Statistics


def report(response: GenerationResponse, kernels: bool = False) -> str:
    """The statistics of a generation, for a person, from its last response.

    Args:
        response: the last one.
        kernels: whether to say which way the drafter's fused parts ran.
    """
    statistics = response.statistics
    return "\n".join(
        [
            f"Prompt: {response.prompt_tokens} tokens, {response.prompt_tps:.3f} tokens-per-sec",
            f"Generation: {response.generation_tokens} tokens, "
            f"{response.generation_tps:.3f} tokens-per-sec",
            statistics.summary(),
            *([f"Drafter: {statistics.kernels}"] if kernels and statistics.kernels else []),
            f"Peak memory: {response.peak_memory:.3f} GB",
            *([statistics.why_plain()] if statistics.switched_off else []),
        ]
    )
