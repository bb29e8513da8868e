"""The rounds of one generation: start them, emit their tokens, hand the caches back."""

from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx

from ..cache.adopt import adopt, hand_back, release
from ..cache.prompt import PromptCache
from ..errors import UserError
from ..generation.kv import cached_tokens
from ..generation.request import Request
from ..generation.response import Clock
from ..loading.pair import Pair
from .block_size import BlockSizes
from .choose import Chooser
from .history import History
from .prefill import prefill
from .queue import RoundQueue
from .state import State
from .statistics import Statistics
from .timing import RoundTimer

# Outgrown buffers are kept for reuse until they are cleared; mlx-lm does so as often.
CLEAR_EVERY = 256


@dataclass
class EmittedToken:
    """A token between the round loop and the detokenizer."""

    id: int | None
    logprobs: mx.array | None
    from_draft: bool
    accepted: int
    block_size: int


def emit_tokens(
    model: Pair, request: Request, sizes: BlockSizes, statistics: Statistics, clock: Clock
) -> Iterator[EmittedToken]:
    """Emit tokens one by one; at the end, however it comes, complete the prompt cache."""
    queue = _start(model, request)
    clock.start_decoding()
    end = queue.lengths[0] + 1
    seen = list(request.prompt)
    # User's processors are Python functions of the tokens so far: their rounds wait for the host.
    waits = bool(request.processors)
    timer = RoundTimer(alone=waits)
    try:
        if request.cache is not None:
            release(request.cache)
        if not request.max_tokens:
            request.progress(len(request.prompt), len(request.prompt))
        while clock.tokens < request.max_tokens:
            if not queue.in_flight:
                queue.state.committed = mx.array(seen) if waits else None
                queue.submit(sizes.choose(queue.lengths[0]))
            # The next round is queued before this one is read, unless this is likely the last.
            likely = clock.tokens + max(statistics.tau, 1)
            if not waits and likely < request.max_tokens:
                queue.submit(sizes.choose(queue.lengths[0]))
            context = queue.lengths[0]
            news, seconds = timer.read(queue)
            if not statistics.total:
                request.progress(len(request.prompt), len(request.prompt))
            accepted = news.accepted[0]
            sizes.observe(news.block_size, accepted, context, seconds)
            statistics.add(news.block_size, accepted)
            statistics.plain_seconds = sizes.plain_seconds
            statistics.seconds = timer.seconds
            for j, token in enumerate(news.tokens[0]):
                clock.tokens += 1
                if clock.tokens % CLEAR_EVERY == 0:
                    mx.clear_cache()
                seen.append(token)
                logprobs = None if news.logprobs is None else news.logprobs[0, j]
                with timer.held_up():
                    yield EmittedToken(token, logprobs, j < accepted, accepted, news.block_size)
                if clock.tokens >= request.max_tokens:
                    break
    finally:
        if request.cache is not None:
            _hand_back(queue, end + clock.tokens, model, request)
        sizes.finish()


def _start(model: Pair, request: Request) -> RoundQueue:
    """Prefill all of the prompt but its last token, which is the first round's anchor."""
    target, drafter = model.target, model.drafter if request.draft else None
    caches, begin = request.cache, request.cached_tokens
    if caches is None:
        caches = target.make_cache(request.max_kv_size)
    elif cached_tokens(target, caches) != begin:
        raise UserError(
            "The prompt cache has changed since this generation was asked for; ask again."
        )
    context = None
    if drafter is not None:
        if isinstance(caches, PromptCache):
            context = caches.take_context(begin, drafter)
        context = context or drafter.make_context(mx.array([begin], mx.int32))

    *prompt, anchor = request.prompt
    step, progress = request.prefill_step_size, request.progress
    kv = request.quantization
    prefill(target, drafter, prompt, caches, context, begin, step, progress, kv)
    length = begin + len(prompt)
    history = None
    if request.penalties.look_back:
        history = History([request.prompt], mx.array([begin], mx.int32))
    state = State(
        anchor=mx.array([anchor], mx.int32),
        offset=mx.array([length], mx.int32),
        caches=[adopt([c], kv) for c in caches],
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


def _hand_back(queue: RoundQueue, length: int, model: Pair, request: Request) -> None:
    """Leave the first ``length`` tokens in the caller's prompt cache."""
    caches, written = request.cache, min(length, queue.lengths[0])
    try:
        if length > written:
            queue.write_anchor()
            written = length
    finally:
        # Even if that failed, the caller gets back what was committed.
        hand_back(queue.state.caches, written, caches, request.quantization)
        if isinstance(caches, PromptCache):
            caches.keep_context(queue.state.context, written, model.drafter)
        mx.eval([c.state for c in caches])
