"""The host loop: tokens from the rounds, detokenized, until something stops them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

import mlx.core as mx
from mlx_lm.generate import wired_limit
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..cache.protocol import StockCache
from ..engine.cache_options import GROUP_SIZE, QUANTIZED_START
from ..engine.choose import LogitsProcessor
from ..engine.interrupt import uninterrupted
from ..engine.request import AUTO, Request
from ..engine.scheduler import Scheduler
from ..engine.session import EmittedToken, Session
from ..loading.pair import Pair
from .auto_size import sizes_for
from .options import Options
from .resolve import resolve
from .response import GenerationResponse, Responses, report


def stream_generate(
    model: Pair,
    tokenizer: TokenizerWrapper,
    prompt: str | Sequence[int] | mx.array,
    max_tokens: int = 256,
    *,
    draft: bool = True,
    block_size: int | str | None = AUTO,
    temp: float = 0.0,
    top_p: float = 0.0,
    top_k: int = 0,
    min_p: float = 0.0,
    min_tokens_to_keep: int = 1,
    xtc_probability: float = 0.0,
    xtc_threshold: float = 0.1,
    xtc_special_tokens: Sequence[int] = (),
    seed: int | None = None,
    acceptance: str = "coupled",
    sampler: Callable[[mx.array], mx.array] | None = None,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    logit_bias: Mapping[int, float] | None = None,
    repetition_penalty: float | None = None,
    repetition_context_size: int = 20,
    presence_penalty: float | None = None,
    presence_context_size: int = 20,
    frequency_penalty: float | None = None,
    frequency_context_size: int = 20,
    stop: str | Sequence[str] = (),
    logprobs: bool = False,
    prompt_cache: list[StockCache] | None = None,
    max_kv_size: int | None = None,
    kv_bits: int | None = None,
    kv_group_size: int = GROUP_SIZE,
    quantized_kv_start: int = QUANTIZED_START,
    prefill_step_size: int = 2048,
    prompt_progress_callback: Callable[[int, int], None] | None = None,
    **unknown: object,
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
        block_size (int or str): tokens that one pass of the target checks, the last one of the text
            (the anchor) and the drafts after it; ``"auto"`` chooses for each round what is fastest
            here, plain decoding included, from costs that the first use of a pair measures for some
            seconds (see :func:`dflash_mlx.tune`). Default: ``"auto"``.
        temp, top_p, top_k, min_p (float): as in mlx-lm. Default: ``0``, which is greedy.
        min_tokens_to_keep (int), xtc_probability, xtc_threshold (float), xtc_special_tokens (list):
            as in ``mlx_lm.sample_utils.make_sampler``.
        seed (int): of the sampling. Default: drawn from ``mx.random``.
        acceptance (str): ``"coupled"``, whose text equals plain sampling with the same seed, or
            ``"rejection"``, which accepts more and is equal in distribution.
            Default: ``"coupled"``.
        sampler (callable): log-probabilities to tokens, as mlx-lm's ``make_sampler`` returns. The
            target's token is drawn with it, and drafts are accepted while they equal it.
        logits_processors (list): called as mlx-lm calls them, once for each position and in order,
            so they may keep a state, as those of grammar libraries do. Each round then waits for
            the last.
        logit_bias (dict), repetition_penalty, presence_penalty, frequency_penalty (float) and
            their ``…_context_size`` (int): as in ``mlx_lm.sample_utils.make_logits_processors``.
        stop (str or list): strings that end the text; they are not part of it.
        logprobs (bool): whether responses carry log-probabilities. Default: ``False``.
        prompt_cache (list): from ``model.make_prompt_cache()`` or from mlx-lm; continued, and
            afterwards holds the prompt and all emitted tokens. In between it is in use: its
            contents are elsewhere until the generation ends or is closed.
        max_kv_size (int): positions that a layer of the target keeps at most: the first 4 and the
            last ones, as in mlx-lm. Where prompt and ``max_tokens`` need more and the target's
            family shapes its own caches, it is refused. The drafter's context is not bounded by it.
        kv_bits (int): quantizes the target's keys and values, as mlx-lm does. Default: they are
            not.
        kv_group_size (int): of that quantization. Default: ``64``.
        quantized_kv_start (int): it begins once a cache holds so many positions. Default: ``5000``.
        prefill_step_size (int): prompt tokens a chunk. Default: ``2048``.
        prompt_progress_callback (callable): gets prompt tokens done and in all.

    Yields:
        A response a token. The last one has a ``finish_reason``.

    Raises:
        UserError: an option is unknown, out of range, or cannot be honoured.
    """
    options = Options.of(locals(), unknown)
    if not isinstance(tokenizer, TokenizerWrapper):
        tokenizer = TokenizerWrapper(tokenizer)
    return _stream(model, tokenizer, resolve(model, tokenizer, prompt, options), options.stop)


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


def _stream(
    model: Pair, tokenizer: TokenizerWrapper, request: Request, stop: Sequence[str]
) -> Iterator[GenerationResponse]:
    session = Session(model, request, sizes_for(model, request))
    responses = Responses(session, tokenizer, stop)
    with _wired(model), closing(emit(model, session)) as tokens:
        for token in tokens:
            step = responses.feed(token)
            if responses.ended:
                session.taken += 1
                break
            try:
                yield step
            finally:
                # Closed or thrown into, too, by somebody who has this token. An interrupt does not
                # come between the two lines above: Python looks for one at calls and jumps.
                session.taken += 1
    # The prompt cache is complete from here on, before the last response is seen.
    yield responses.last()


def emit(model: Pair, session: Session) -> Iterator[EmittedToken]:
    """A session's tokens one by one, stepped here; at the end, however it comes, it is handed back.

    Raises:
        Exception: what a function of the caller raised.
    """
    loop = Scheduler(model)
    loop.add(session)
    try:
        while not session.finished:
            for _, tokens in loop.step():
                if session.error is not None:
                    _raise(session)
                for token in tokens:
                    with loop.held_up():
                        yield token
    finally:
        interrupt, removed = None, False
        while not removed:
            try:
                with uninterrupted():
                    loop.remove(session)
                    session.sizes.finish()
                    removed = True
            except KeyboardInterrupt as error:
                # Before it was begun, or when it was done.
                interrupt = error
        if interrupt is not None:
            raise interrupt


def _raise(session: Session) -> None:
    error, session.error = session.error, None
    try:
        raise error
    finally:
        # Its trace has this frame: a cycle would hold the caches.
        del error


@contextmanager
def _wired(model: Pair) -> Iterator[None]:
    """mlx-lm's wired limit, for a generation that begins while no other one is running.

    The limit is the process's own, and moving it while something else computes has made macOS panic
    (https://github.com/ml-explore/mlx/issues/3186).
    """
    if not model.generating.acquire(blocking=False):
        yield
        return
    try:
        with wired_limit(model.model):
            yield
    finally:
        model.generating.release()
