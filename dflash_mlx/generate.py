"""The host loop: queue a round, read the one before it, detokenize, stop."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.generate import wired_limit
from mlx_lm.models.cache import KVCache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .cache.linear import LinearCache
from .cache.prompt import PromptCache
from .decode.choose import Chooser
from .decode.history import History
from .decode.prefill import prefill
from .decode.queue import RoundQueue
from .decode.state import State
from .pair import Pair
from .request import Request, make_request
from .statistics import Statistics
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
        block_size: rows the token's round verified, anchor included.
        tau: mean tokens a round so far, bonus included.
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


@dataclass
class _Token:
    """A token between the round loop and the detokenizer."""

    id: int | None
    logprobs: mx.array | None
    from_draft: bool
    accepted: int
    block_size: int


def stream_generate(
    model: Pair,
    tokenizer: TokenizerWrapper,
    prompt: str | Sequence[int] | mx.array,
    max_tokens: int = 256,
    **options: object,
) -> Iterator[GenerationResponse]:
    """Generate text, one response a token, as ``mlx_lm.stream_generate`` does.

    The text is the target's own: drafting changes only the speed. Options are checked before the
    first token is asked for.

    Args:
        model: from :func:`dflash_mlx.load`.
        tokenizer: from :func:`dflash_mlx.load`.
        prompt: text, token ids, or a one-dimensional array of ids.
        max_tokens: how many tokens to emit at most; -1 for no limit but the target's context.
        draft (bool): False decodes plainly. Default: ``True``.
        block_size (int): rows a round verifies, anchor included. Default: the drafter's.
        temp, top_p, top_k, min_p (float): as in mlx-lm. Default: ``0``, which is greedy.
        seed (int): of the sampling. Default: drawn from ``mx.random``.
        acceptance (str): ``"coupled"``, whose text equals plain sampling with the same seed, or
            ``"rejection"``, which accepts more and is equal in distribution.
            Default: ``"coupled"``.
        sampler (callable): log-probabilities to tokens, as mlx-lm's ``make_sampler`` returns. The
            target's token is drawn with it, and drafts are accepted while they equal it.
        logits_processors (list): called as mlx-lm calls them, as functions of the tokens so far
            alone: a row may be asked for more than once. Each round then waits for the last.
        logit_bias (dict), repetition_penalty, presence_penalty, frequency_penalty (float) and
            their ``…_context_size`` (int): as in ``mlx_lm.sample_utils.make_logits_processors``.
        stop (str or list): strings that end the text; they are not part of it.
        logprobs (bool): whether responses carry log-probabilities. Default: ``False``.
        prompt_cache (list): from ``model.make_prompt_cache()`` or from mlx-lm; continued, and
            afterwards holds the prompt and all emitted tokens.
        max_kv_size (int): accepted when prompt and ``max_tokens`` fit in it, else refused.
        prefill_step_size (int): prompt rows a chunk. Default: ``2048``.
        prompt_progress_callback (callable): gets prompt tokens done and in all.

    Yields:
        A response a token. The last one has a ``finish_reason``.

    Raises:
        UserError: an option is unknown, out of range, or cannot be honoured.
    """
    if not isinstance(tokenizer, TokenizerWrapper):
        tokenizer = TokenizerWrapper(tokenizer)
    request = make_request(model, tokenizer, prompt, max_tokens=max_tokens, **options)
    return _stream(model, tokenizer, request)


def generate(
    model: Pair,
    tokenizer: TokenizerWrapper,
    prompt: str | Sequence[int] | mx.array,
    verbose: bool = False,
    **options: object,
) -> str:
    """Generate a complete text, as ``mlx_lm.generate`` does.

    Args:
        model: from :func:`dflash_mlx.load`.
        tokenizer: from :func:`dflash_mlx.load`.
        prompt: text, token ids, or a one-dimensional array of ids.
        verbose: print the text as it comes, and the statistics.
        options: see :func:`stream_generate`.

    Raises:
        UserError: an option is unknown, out of range, or cannot be honoured.
    """
    pieces, response = [], None
    if verbose:
        print("=" * 10)
    for response in stream_generate(model, tokenizer, prompt, **options):
        pieces.append(response.text)
        if verbose:
            print(response.text, end="", flush=True)
    if verbose:
        print("\n" + "=" * 10)
        print(report(response))
    return "".join(pieces)


def report(response: GenerationResponse) -> str:
    """The statistics of a generation, for a person, from its last response."""
    return "\n".join(
        [
            f"Prompt: {response.prompt_tokens} tokens, {response.prompt_tps:.3f} tokens-per-sec",
            f"Generation: {response.generation_tokens} tokens, "
            f"{response.generation_tps:.3f} tokens-per-sec",
            response.statistics.summary(),
            f"Peak memory: {response.peak_memory:.3f} GB",
        ]
    )


class _Clock:
    """Times the prompt and the rounds apart."""

    def __init__(self, prompt_tokens: int):
        self._prompt_tokens = prompt_tokens
        self._begun = time.perf_counter()
        self._decoding = self._begun
        self.tokens = 0

    def start_decoding(self) -> None:
        self._decoding = time.perf_counter()

    @property
    def prompt_tps(self) -> float:
        return self._prompt_tokens / max(self._decoding - self._begun, 1e-9)

    @property
    def generation_tps(self) -> float:
        return self.tokens / max(time.perf_counter() - self._decoding, 1e-9)


def _stream(
    model: Pair, tokenizer: TokenizerWrapper, request: Request
) -> Iterator[GenerationResponse]:
    detokenizer, stops = tokenizer.detokenizer, StopStrings(request.stop)
    statistics, clock = Statistics(), _Clock(len(request.prompt))

    def response(token: _Token, text: str, reason: str | None = None) -> GenerationResponse:
        return GenerationResponse(
            text=text,
            token=token.id,
            logprobs=token.logprobs,
            from_draft=token.from_draft,
            prompt_tokens=len(request.prompt),
            prompt_tps=clock.prompt_tps,
            generation_tokens=clock.tokens,
            generation_tps=clock.generation_tps,
            peak_memory=mx.get_peak_memory() / 1e9,
            finish_reason=reason,
            accepted=token.accepted,
            block_size=token.block_size,
            tau=statistics.tau,
            statistics=statistics,
        )

    token, text, stopped = _Token(None, None, False, 0, request.block_size), "", False
    with wired_limit(model.model), closing(_tokens(model, request, statistics, clock)) as tokens:
        for token in tokens:
            ended = token.id in tokenizer.eos_token_ids
            if not ended:
                detokenizer.add_token(token.id)
                text, stopped = stops.feed(detokenizer.last_segment)
            if ended or stopped or clock.tokens >= request.max_tokens:
                break
            yield response(token, text)
            text = ""
    # The prompt cache is complete from here on, before the last response is seen.
    if not stopped:
        detokenizer.finalize()
        tail, stopped = stops.feed(detokenizer.last_segment)
        text += tail if stopped else tail + stops.flush()
    stopped = stopped or token.id in tokenizer.eos_token_ids
    yield response(token, text, "stop" if stopped else "length")


def _tokens(
    model: Pair, request: Request, statistics: Statistics, clock: _Clock
) -> Iterator[_Token]:
    """Emit tokens one by one; at the end, however it comes, complete the prompt cache."""
    queue = _start(model, request)
    clock.start_decoding()
    end = queue.lengths[0] + 1
    seen = list(request.prompt)
    # User's processors are Python functions of the tokens so far: their rounds wait for the host.
    waits = bool(request.processors)
    try:
        while clock.tokens < request.max_tokens:
            # Each round in flight emits at least one token, so no round is queued in vain.
            ahead = 0 if waits else 1
            while queue.in_flight <= ahead and clock.tokens + queue.in_flight < request.max_tokens:
                queue.state.committed = mx.array(seen) if waits else None
                queue.submit(request.block_size)
            news = queue.read()
            if not statistics.total:
                request.progress(len(request.prompt), len(request.prompt))
            accepted = news.accepted[0]
            statistics.add(news.block_size, accepted)
            for j, token in enumerate(news.tokens[0]):
                clock.tokens += 1
                seen.append(token)
                logprobs = None if news.logprobs is None else news.logprobs[0, j]
                yield _Token(token, logprobs, j < accepted, accepted, news.block_size)
                if clock.tokens >= request.max_tokens:
                    break
    finally:
        if request.cache is not None:
            _hand_back(queue, end + clock.tokens, request.cache)


def _start(model: Pair, request: Request) -> RoundQueue:
    """Prefill all of the prompt but its last token, which is the first round's anchor."""
    target, drafter = model.target, model.drafter if request.draft else None
    caches = model.make_prompt_cache() if request.cache is None else request.cache
    begin = caches[0].offset
    context = None
    if isinstance(caches, PromptCache):
        context = caches.take_context(begin)
    if drafter is None:
        context = None
    elif context is None:
        context = drafter.make_context(mx.array([begin], mx.int32))

    *prompt, anchor = request.prompt
    prefill(target, drafter, prompt, caches, context, request.prefill_step_size, request.progress)
    length = begin + len(prompt)
    history = None
    if request.penalties.look_back:
        history = History([request.prompt], mx.array([begin], mx.int32))
    state = State(
        anchor=mx.array([anchor], mx.int32),
        offset=mx.array([length], mx.int32),
        caches=[LinearCache.adopt([c]) for c in caches],
        context=context,
        history=history,
    )
    chooser = Chooser(
        request.sampling,
        request.penalties,
        request.processors,
        keep_logprobs=request.logprobs,
    )
    return RoundQueue(target, drafter, chooser, state, [length])


def _hand_back(queue: RoundQueue, length: int, caches: list[KVCache]) -> None:
    """Leave the first ``length`` tokens in the caller's prompt cache."""
    if length > queue.lengths[0]:
        queue.write_anchor()
    state = queue.state
    for ours, stock in zip(state.caches, caches, strict=True):
        ours.hand_back(0, length, stock)
    if isinstance(caches, PromptCache):
        caches.keep_context(state.context, length)
    mx.eval([c.state[:2] for c in caches])
