"""The rounds of one generation: start them, emit their tokens, hand the caches back."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx

from ..cache.adopt import hand_back, release
from ..cache.prompt import PromptCache
from ..errors import UserError
from ..loading.pair import Pair
from .block_size import BlockSizes
from .cache_options import cached_tokens
from .choose import Chooser
from .history import History
from .interrupt import uninterrupted
from .prefill import prefill
from .queue import RoundQueue
from .request import Request
from .state import State
from .statistics import Statistics
from .timing import Clock, RoundTimer

# Outgrown buffers are kept for reuse until they are cleared; mlx-lm does so as often.
CLEAR_EVERY = 256

_NAN = (
    "The drafter's logits are not numbers (NaN), so its drafts are worth nothing; the text is the "
    "target's own all the same. Its weights may be damaged, or too large for float16: convert it "
    "again, with dtype bfloat16 or float32."
)


@dataclass
class EmittedToken:
    """A token between the round loop and the detokenizer."""

    token: int | None
    logprobs: mx.array | None
    from_draft: bool
    accepted: int
    block_size: int


class Session:
    """One generation, from its prompt to what it leaves in the prompt cache.

    Args:
        model: the pair.
        request: what it is asked for.
        sizes: the block size of each round.

    Attributes:
        statistics: counts over the rounds so far.
        clock: what was emitted, and in which time.
        taken: how many of the emitted tokens somebody has got. The prompt cache holds these in the
            end, whatever else the rounds have come to; whoever takes tokens counts them here.
    """

    def __init__(self, model: Pair, request: Request, sizes: BlockSizes):
        self._model = model
        self._request = request
        self._sizes = sizes
        kernels = model.drafter.kernels(sizes.largest) if sizes.largest > 1 else ""
        self.statistics = Statistics(kernels=kernels, auto=sizes.auto)
        self.clock = Clock(len(request.prompt))
        self.taken = 0

    def emit(self) -> Iterator[EmittedToken]:
        """Emit tokens one by one; at the end, however it comes, complete the prompt cache."""
        request, options = self._request, self._request.options
        sizes, statistics, clock = self._sizes, self.statistics, self.clock
        progress, prompt = options.prompt_progress_callback, len(request.prompt)
        queue = self._start()
        clock.start_decoding()
        end = queue.lengths[0] + 1
        seen = list(request.prompt)
        # User's processors are Python functions of the tokens so far: their rounds wait for the
        # host.
        waits = bool(options.logits_processors)
        timer, drafted = RoundTimer(alone=waits), False
        try:
            if options.prompt_cache is not None:
                release(options.prompt_cache)
            if not request.room:
                progress(prompt, prompt)
            while clock.tokens < request.room:
                with uninterrupted():
                    if not queue.in_flight:
                        queue.state.committed = mx.array(seen) if waits else None
                        queue.submit(sizes.choose(queue.lengths[0]))
                    # The next one is queued before this is read, unless this is likely the last.
                    likely = clock.tokens + max(statistics.tau, 1)
                    if not waits and likely < request.room:
                        queue.submit(sizes.choose(queue.lengths[0]))
                    context = queue.lengths[0]
                    news, seconds = timer.read(queue)
                if not statistics.total:
                    progress(prompt, prompt)
                if news.block_size > 1 and not drafted:
                    drafted = True
                    if queue.drafts_nan:
                        warnings.warn(_NAN, stacklevel=2)
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
                    if clock.tokens >= request.room:
                        break
        finally:
            interrupt, done = None, False
            while not done:
                try:
                    with uninterrupted():
                        if options.prompt_cache is not None:
                            self._hand_back(queue, end + self.taken)
                        sizes.finish()
                        done = True
                except KeyboardInterrupt as error:
                    # Before it was begun, or when it was done.
                    interrupt = error
            if interrupt is not None:
                raise interrupt

    def _start(self) -> RoundQueue:
        """Prefill all of the prompt but its last token, which is the first round's anchor."""
        request, options, target = self._request, self._request.options, self._model.target
        drafter = self._model.drafter if options.draft else None
        caches, begin = options.prompt_cache, request.cached_tokens
        if caches is None:
            caches = target.make_cache(request.rotating_size)
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
        kv = request.quantization
        step, progress = options.prefill_step_size, options.prompt_progress_callback
        prefill(target, drafter, prompt, caches, context, begin, step, progress, kv)
        length = begin + len(prompt)
        history = None
        if options.look_back:
            history = History([request.prompt], mx.array([begin], mx.int32))
        state = State(
            anchor=mx.array([anchor], mx.int32),
            offset=mx.array([length], mx.int32),
            caches=target.take_over(caches, kv),
            context=context,
            history=history,
        )
        # The options are both, a Sampling and Penalties.
        chooser = Chooser(
            options, options, options.logits_processors or (), keep_logprobs=options.logprobs
        )
        return RoundQueue(target, drafter, chooser, state, [length])

    def _hand_back(self, queue: RoundQueue, length: int) -> None:
        """Leave the first ``length`` tokens in the caller's prompt cache."""
        caches, written = self._request.options.prompt_cache, min(length, queue.lengths[0])
        try:
            if length > written:
                queue.write_anchor()
                written = length
        finally:
            # Even if that failed, the caller gets back what was committed.
            hand_back(queue.state.caches, written, caches, self._request.quantization)
            if isinstance(caches, PromptCache):
                caches.keep_context(queue.state.context, written, self._model.drafter)
            mx.eval([c.state for c in caches])
