"""What a generation yields, and how it is reported."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..engine.session import EmittedToken, Session
from ..engine.statistics import Statistics
from .text import StopStrings


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


class Responses:
    """Makes responses of a session's tokens, and knows when the text ends.

    Args:
        session: whose tokens they are.
        tokenizer: its end-of-text tokens end the text as well.
        stop: strings that end it.

    Attributes:
        ended: whether the text has ended with the last token.
    """

    def __init__(self, session: Session, tokenizer: TokenizerWrapper, stop: Sequence[str]):
        self.ended = False
        self._session = session
        self._eos = tokenizer.eos_token_ids
        self._detokenizer, self._stops = tokenizer.detokenizer, StopStrings(stop)
        self._token = EmittedToken(None, None, False, 0, session.sizes.largest)
        self._text, self._stopped = "", False

    def feed(self, token: EmittedToken) -> GenerationResponse | None:
        """The response to a token, or None if the text has ended: then :meth:`last` has it."""
        self._token, self._text = token, ""
        ends = token.token in self._eos
        if not ends:
            self._detokenizer.add_token(token.token)
            self._text, self._stopped = self._stops.feed(self._detokenizer.last_segment)
        self.ended = ends or self._stopped or self._session.finished
        return None if self.ended else self._response(self._text)

    def last(self) -> GenerationResponse:
        """The response to the last token, with what was held back, and why the text ended."""
        text = self._text
        if not self._stopped:
            self._detokenizer.finalize()
            tail, self._stopped = self._stops.feed(self._detokenizer.last_segment)
            text += tail if self._stopped else tail + self._stops.flush()
        stopped = self._stopped or self._token.token in self._eos
        return self._response(text, "stop" if stopped else "length")

    def _response(self, text: str, reason: str | None = None) -> GenerationResponse:
        session = self._session
        clock, statistics = session.clock, session.statistics
        return GenerationResponse(
            **vars(self._token),
            text=text,
            prompt_tokens=len(session.request.prompt),
            prompt_tps=clock.prompt_tps,
            generation_tokens=clock.tokens,
            generation_tps=clock.generation_tps,
            peak_memory=mx.get_peak_memory() / 1e9,
            finish_reason=reason,
            tau=statistics.tau,
            statistics=statistics,
        )


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
