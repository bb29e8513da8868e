"""Many generations at once, from any thread: one thread steps them and owns every MLX array."""

import atexit
import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from types import TracebackType

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..engine.request import Request
from ..engine.scheduler import Scheduler
from ..engine.session import EmittedToken, Session
from ..errors import UserError
from ..loading.pair import Pair
from .auto_size import batch_costs, remember_batches, sizes_for
from .options import Options
from .resolve import resolve
from .response import GenerationResponse, Responses


class EngineError(RuntimeError):
    """The engine cannot serve: it is closed, its queue is full, or its thread died."""


class Handle:
    """A generation that was submitted to an :class:`Engine`.

    Iterating yields its responses as they come, each once, from any one thread.
    """

    def __init__(self, engine: "Engine", request: Request, stop: Sequence[str]):
        self._engine = engine
        self._news: queue.SimpleQueue[GenerationResponse | Exception | None] = queue.SimpleQueue()
        self.request = request
        self.stop = stop
        # Of the engine's thread.
        self.session: Session | None = None
        self.responses: Responses | None = None
        self.done = False

    def __iter__(self) -> Iterator[GenerationResponse]:
        """Yield the responses; the last one has a ``finish_reason``, unless it was cancelled.

        Raises:
            EngineError: the engine was closed, or its thread died.
            Exception: what a function of the caller raised, or kept the generation from starting.
        """
        while (news := self._news.get()) is not None:
            if isinstance(news, Exception):
                # For whoever asks again.
                self._news.put(news)
                raise news
            yield news
        self._news.put(None)

    def text(self) -> str:
        """The text, when it is complete, of what was not iterated yet."""
        return "".join(response.text for response in self)

    def cancel(self) -> None:
        """End the generation after the tokens that it has by now. It may have ended already."""
        self._engine.cancel(self)

    def put(self, news: GenerationResponse | Exception | None) -> None:
        """Hand out a response, what went wrong, or the end. For the engine's thread."""
        self._news.put(news)


class Engine:
    """Generates many texts at once, each as :func:`~dflash_mlx.stream_generate` would alone.

    All methods can be called from any thread. Its own thread runs until :meth:`close`, or the end
    of a ``with`` block.

    Args:
        model: from :func:`dflash_mlx.load`.
        tokenizer: from :func:`dflash_mlx.load`.
        max_batch: generations that hold caches at a time.
        max_waiting: generations that may wait for them; further ones are refused.
        gap: seconds that a chunk of somebody's prompt may keep others from their next tokens.
    """

    def __init__(
        self,
        model: Pair,
        tokenizer: TokenizerWrapper,
        max_batch: int = 8,
        max_waiting: int = 256,
        gap: float = 0.1,
    ):
        if not isinstance(tokenizer, TokenizerWrapper):
            tokenizer = TokenizerWrapper(tokenizer)
        self._model, self._tokenizer = model, tokenizer
        self._scheduler = Scheduler(model, max_batch, gap, partial(batch_costs, model))
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._coming: deque[Handle] = deque()
        self._leaving: deque[Handle] = deque()
        self._handles: dict[Session, Handle] = {}
        self._closed = False
        self._death: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="dflash-mlx engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def submit(
        self,
        prompt: str | Sequence[int] | mx.array,
        options: Options | None = None,
        **keywords: object,
    ) -> Handle:
        """Ask for a text.

        Args:
            prompt: text, token ids, or a one-dimensional array of ids.
            options: of the generation; or its fields as keywords, as of
                :func:`~dflash_mlx.stream_generate`.

        Raises:
            UserError: an option is unknown, out of range, or cannot be honoured.
            EngineError: the engine is closed, its queue is full, or its thread died.
        """
        if options is not None and keywords:
            raise UserError("Give either `options` or keywords.")
        options = options or Options.from_keywords(keywords)
        handle = Handle(self, resolve(self._model, self._tokenizer, prompt, options), options.stop)
        with self._changed:
            if self._closed:
                raise self._refusal()
            if len(self._coming) + len(self._scheduler.waiting) >= self._max_waiting:
                raise EngineError(
                    f"{self._max_waiting} generations wait already; try again when some have ended."
                )
            self._coming.append(handle)
            self._changed.notify()
        return handle

    def cancel(self, handle: Handle) -> None:
        """End a generation, see :meth:`Handle.cancel`."""
        with self._changed:
            self._leaving.append(handle)
            self._changed.notify()

    def close(self) -> None:
        """End all generations and the thread, and wait for it."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            atexit.unregister(self.close)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _refusal(self) -> EngineError:
        """Why nothing can be had any more."""
        if self._death is None:
            return EngineError("The engine is closed.")
        error = EngineError(f"The engine's thread died: {self._death!r}")
        error.__cause__ = self._death
        return error

    def _run(self) -> None:
        """The engine's thread."""
        try:
            while self._turn():
                pass
            for session in self._handles:
                self._scheduler.remove(session)
            remember_batches(self._model)
        except BaseException as error:  # Told to everybody who asks; there is nobody else to raise.
            self._death = error
        with self._changed:
            self._closed = True
            waiting = [*self._handles.values(), *self._coming]
            self._handles, self._coming = {}, deque()
        for handle in waiting:
            handle.put(self._refusal())

    def _turn(self) -> bool:
        """Wait for something to do, and do a step of it; False when the engine is closed."""
        with self._changed:
            while not (self._closed or self._coming or self._leaving or self._handles):
                self._changed.wait()
            if self._closed:
                return False
            coming, leaving = list(self._coming), list(self._leaving)
            self._coming.clear()
            self._leaving.clear()
        for handle in coming:
            self._admit(handle)
        for handle in leaving:
            self._end(handle, None)
        for session, tokens in self._scheduler.step():
            # One that failed comes twice if its batch had a round.
            if session in self._handles:
                self._hand_out(self._handles[session], tokens)
        return True

    def _admit(self, handle: Handle) -> None:
        try:
            # The first text with this pair measures what rounds cost here.
            sizes = sizes_for(self._model, handle.request)
        except Exception as error:  # Theirs alone.
            handle.done = True
            handle.put(error)
            return
        handle.session = Session(self._model, handle.request, sizes)
        handle.responses = Responses(handle.session, self._tokenizer, handle.stop)
        self._handles[handle.session] = handle
        self._scheduler.add(handle.session)

    def _hand_out(self, handle: Handle, tokens: Iterator[EmittedToken]) -> None:
        """Pass a round's tokens on, and end the generation if they end it."""
        session, responses = handle.session, handle.responses
        if session.error is not None:
            self._end(handle, session.error)
            return
        for token in tokens:
            session.taken += 1
            if token.logprobs is not None:
                # Another thread cannot evaluate what is of this one.
                mx.eval(token.logprobs)
            response = responses.feed(token)
            if responses.ended:
                break
            handle.put(response)
        if responses.ended or session.finished:
            self._end(handle, None, responses)

    def _end(
        self, handle: Handle, error: Exception | None, responses: Responses | None = None
    ) -> None:
        if handle.done or handle.session is None:
            return
        handle.done = True
        del self._handles[handle.session]
        try:
            self._scheduler.remove(handle.session)
            handle.session.sizes.finish()
        except Exception as failed:  # The prompt cache cannot be completed; others go on.
            error = error or failed
        if error is not None:
            handle.put(error)
            return
        if responses is not None:
            handle.put(responses.last())
        handle.put(None)
