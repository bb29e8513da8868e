"""One generation, from its prompt to what it leaves in the prompt cache."""

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import mlx.core as mx

from ..cache.adopt import hand_back, release
from ..cache.prompt import PromptCache
from ..cache.protocol import ContextBuffer, StockCache
from ..errors import UserError
from ..loading.pair import Pair
from .block_size import BlockSizes
from .cache_options import cached_tokens
from .history import History
from .noise import row_seeds
from .penalties import Penalties
from .prefill import chunks
from .queue import HostRound
from .request import Request
from .sampling import Sampling
from .state import State
from .statistics import Statistics
from .timing import Clock


@dataclass
class EmittedToken:
    """A token between the round loop and the detokenizer."""

    token: int | None
    logprobs: mx.array | None
    from_draft: bool
    accepted: int
    block_size: int


class Session:
    """One generation: its prefill, its tokens as rounds bring them, and its end.

    It does nothing by itself: a :class:`Scheduler` steps it.

    Args:
        model: the pair.
        request: what it is asked for.
        sizes: the block size of each round.

    Attributes:
        request, sizes: as given.
        statistics: counts over the rounds so far.
        clock: what was emitted, and in which time.
        seen: all tokens, prompt and rounds.
        taken: how many of the emitted tokens somebody has got. The prompt cache holds these in the
            end, whatever else the rounds have come to; whoever takes tokens counts them here.
        started: whether its prompt is complete, and its caches are the rounds'.
        length: positions that prefill has computed so far, those of a prompt cache included.
        joined: seconds that its batch had decoded when it joined.
        error: what a user's function raised in a batch, where it must not stop the others.
    """

    def __init__(self, model: Pair, request: Request, sizes: BlockSizes):
        self._model = model
        self.request = request
        self.sizes = sizes
        kernels = model.drafter.kernels(sizes.largest) if sizes.largest > 1 else ""
        self.statistics = Statistics(kernels=kernels, auto=sizes.auto)
        self.clock = Clock(len(request.prompt))
        self.seen = list(request.prompt)
        self.taken = 0
        self.started = False
        self.length = request.cached_tokens
        self.joined = 0.0
        self.error: Exception | None = None

    @property
    def drafts(self) -> bool:
        """Whether its tokens are drafted at all."""
        return self.request.options.draft

    @property
    def waits(self) -> bool:
        """Whether its rounds wait for the host: user's processors are functions of the tokens."""
        return bool(self.request.options.logits_processors)

    @property
    def prompt_left(self) -> int:
        """Tokens of the prompt that prefill has not computed yet."""
        return self.request.cached_tokens + len(self.request.prompt) - 1 - self.length

    @functools.cached_property
    def seeds(self) -> mx.array:
        """``[1, 3]``, of its noise, which is the same in any company."""
        return row_seeds(self.request.options.seed, 1)

    @functools.cached_property
    def choice(self) -> object:
        """Equal for sessions whose tokens one chooser can draw, each from its own seed."""
        options = self.request.options
        if options.logits_processors or options.sampler is not None:
            # A user's function is called for one sequence.
            return id(self)
        names = [f.name for part in (Sampling, Penalties) for f in fields(part) if f.name != "seed"]
        values = [getattr(options, name) for name in names]
        return options.draft, options.logprobs, repr(values)

    @property
    def finished(self) -> bool:
        """Whether it needs no more rounds, for there is no room for more tokens."""
        return self.started and self.clock.tokens >= self.request.room

    @property
    def likely_goes_on(self) -> bool:
        """Whether a round beyond those in flight will probably be needed."""
        return self.clock.tokens + max(self.statistics.tau, 1) < self.request.room

    def prefill(self, step_size: Callable[[], float]) -> Iterator[int]:
        """Run all of the prompt but its last token, which is the first round's anchor.

        Args:
            step_size: tokens of a chunk, asked before each; the request may want less.

        Yields:
            The tokens done, after each chunk.

        Raises:
            UserError: the prompt cache is not the one that was asked for any more.
        """
        request, options, target = self.request, self.request.options, self._model.target
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
        self._caches, self._context = caches, context
        progress, most = options.prompt_progress_callback, options.prefill_step_size
        for done in chunks(
            target,
            drafter,
            request.prompt[:-1],
            caches,
            context,
            begin,
            lambda: min(step_size(), most),
            progress,
            request.quantization,
        ):
            self.length = begin + done
            yield done

    def start(self) -> State:
        """The state of the first round; caches and context are the rounds' from now on."""
        request, options = self.request, self.request.options
        history = None
        if options.look_back:
            history = History([request.prompt], mx.array([request.cached_tokens], mx.int32))
        caches, context = self._caches, self._context
        self._caches = self._context = None
        state = State(
            anchor=mx.array([request.prompt[-1]], mx.int32),
            offset=mx.array([self.length], mx.int32),
            caches=self._model.target.take_over(caches, request.quantization),
            context=context,
            history=history,
        )
        if options.prompt_cache is not None:
            release(options.prompt_cache)
        self.started = True
        self.clock.start_decoding()
        if not request.room:
            options.prompt_progress_callback(len(request.prompt), len(request.prompt))
        return state

    def receive(
        self, news: HostRound, row: int, context: int, seconds: float | None
    ) -> Iterator[EmittedToken]:
        """Count a round, and emit its tokens as far as there is room.

        Args:
            news: the round.
            row: this session's batch row in it.
            context: committed positions before the round.
            seconds: what the round took, if that can be told.
        """
        options, statistics, clock = self.request.options, self.statistics, self.clock
        if not statistics.total:
            prompt = len(self.request.prompt)
            options.prompt_progress_callback(prompt, prompt)
        accepted = news.accepted[row]
        self.sizes.observe(news.block_size, accepted, context, seconds)
        statistics.add(news.block_size, accepted)
        statistics.plain_seconds = self.sizes.plain_seconds
        logprobs = None if news.logprobs is None else news.logprobs[row]
        for j, token in enumerate(news.tokens[row]):
            clock.tokens += 1
            self.seen.append(token)
            one = None if logprobs is None else logprobs[j]
            yield EmittedToken(token, one, j < accepted, accepted, news.block_size)
            if self.finished:
                return

    def hand_back(self, state: State, row: int, written: int, more: bool) -> None:
        """Leave what was taken in the caller's prompt cache.

        Args:
            state: with the sequence in batch row ``row``; nothing is pending.
            row: its batch row.
            written: positions that were committed in the rounds read.
            more: whether a round behind these has written its anchor as well.
        """
        request, caches = self.request, self.request.options.prompt_cache
        if caches is None:
            return
        wanted = request.cached_tokens + len(request.prompt) + self.taken
        length = min(wanted, written + more)
        context = _row_of(state.context, row)
        try:
            hand_back(state.caches, row, length, caches, request.quantization)
            if length < wanted:
                self._write_last(caches, context, length)
                length += 1
        finally:
            if isinstance(caches, PromptCache):
                caches.keep_context(context, length, self._model.drafter)
            mx.eval([c.state for c in caches])

    def _write_last(
        self, caches: list[StockCache], context: list[ContextBuffer] | None, length: int
    ) -> None:
        """Write the last token taken, the one that no round has begun with."""
        token = self.seen[length - self.request.cached_tokens]
        _, features = self._model.target.forward(mx.array([[token]]), caches)
        if self.request.quantization is not None:
            self.request.quantization.apply(caches)
        for cache in context or ():
            cache.reserve(length + 1)
        if context is not None:
            self._model.drafter.write_context(features, context)


def _row_of(context: Sequence[ContextBuffer] | None, row: int) -> list[ContextBuffer] | None:
    """One batch row's context, which nothing else holds if it is the only row."""
    if context is None or context[0].offset.shape[0] == 1:
        return context
    alone = [copy.copy(buffer) for buffer in context]
    for buffer in alone:
        buffer.select([row])
    return alone
