"""Record what recurrent layers are given, so that a round can be replayed as far as it counts."""

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType

import mlx.core as mx
import mlx.nn as nn

from ..cache.recurrent import Recurrence, RecurrentCache, Tape
from .swap import subclass, swapped

# mlx-lm's recurrences: (output, state) from arguments that a mask can stop at any token.
RECURRENCES = ("gated_delta_update", "ssm_update")


class _Tapes(threading.local):
    """The tape of the mixer that this thread is in, or None."""

    running: Tape | None = None


class Recorder:
    """Listens to the mixers of recurrent layers during our own forwards, and only then.

    A mixer is a module that is called with a ``cache`` and owns a convolution. For the length of
    a forward it and its convolutions have a subclass of their own class. In its methods the name
    of the recurrence means a function that also notes its arguments; mlx-lm's modules and every
    other model stay as they are.

    Args:
        layers: the target's decoder layers.
    """

    def __init__(self, layers: Sequence[nn.Module]):
        mixers = [mixer for layer in layers for mixer in _mixers(layer)]
        self._classes = [pair for mixer in mixers for pair in _listening(mixer)]
        self._taken = threading.Lock()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside this context, a :class:`RecurrentCache` learns what its states came from.

        A module has one class at a time, so threads build their forwards one after another.
        """
        with self._taken, swapped(self._classes):
            yield


def _mixers(layer: nn.Module) -> list[nn.Module]:
    """The innermost modules of a layer that are called with a cache and own a convolution."""
    owners = [
        module
        for module in layer.modules()
        if module is not layer
        and "cache" in inspect.signature(type(module).__call__).parameters
        and any(isinstance(m, nn.Conv1d) for m in module.modules())
    ]

    def wraps(a: nn.Module, b: nn.Module) -> bool:
        return a is not b and any(m is b for m in a.modules())

    return [a for a in owners if not any(wraps(a, b) for b in owners)]


def _listening(mixer: nn.Module) -> list[tuple[nn.Module, type[nn.Module]]]:
    tapes = _Tapes()
    base = type(mixer)
    methods = _rebound(base, tapes)
    run = methods.pop("__call__", base.__call__)

    def call(mixer: nn.Module, *args: object, **kwargs: object) -> object:
        ours = [x for x in (*args, *kwargs.values()) if isinstance(x, RecurrentCache)]
        if not ours:
            return base.__call__(mixer, *args, **kwargs)
        tapes.running = tape = Tape()
        try:
            output = run(mixer, *args, **kwargs)
        finally:
            tapes.running = None
        ours[0].record(tape)
        return output

    convolutions = [m for m in mixer.modules() if isinstance(m, nn.Conv1d)]
    heard = [(conv, _heard(type(conv), tapes)) for conv in convolutions]
    return [(mixer, subclass(base, __call__=call, **methods)), *heard]


def _heard(base: type[nn.Conv1d], tapes: _Tapes) -> type[nn.Conv1d]:
    def call(conv: nn.Conv1d, x: mx.array) -> mx.array:
        if tapes.running is not None:
            tapes.running.windows.append(x)
        return base.__call__(conv, x)

    return subclass(base, __call__=call)


def _rebound(base: type[nn.Module], tapes: _Tapes) -> dict[str, FunctionType]:
    """Those methods of ``base`` that call a recurrence, calling one that notes its arguments.

    The code is the class's own; only the function's globals are a copy with one name changed.
    """
    methods = {}
    for cls in reversed(base.__mro__):
        for name, method in vars(cls).items():
            if not isinstance(method, FunctionType):
                continue
            names = set(RECURRENCES) & set(method.__code__.co_names) & method.__globals__.keys()
            if names:
                noted = {n: _noting(method.__globals__[n], tapes) for n in names}
                copy = FunctionType(
                    method.__code__,
                    method.__globals__ | noted,
                    name,
                    method.__defaults__,
                    method.__closure__,
                )
                copy.__kwdefaults__ = method.__kwdefaults__
                methods[name] = copy
    return methods


def _noting(function: Callable, tapes: _Tapes) -> Callable:
    names = list(inspect.signature(function).parameters)

    def recurrence(*args: object, **kwargs: object) -> tuple[mx.array, mx.array]:
        output, state = function(*args, **kwargs)
        if tapes.running is not None:
            given = dict(zip(names, args, strict=False)) | kwargs
            for name in ("state", "mask", "lengths"):
                given.pop(name, None)
            n = output.shape[1]
            kept = state if n == 1 else None
            note = Recurrence(function, given, "lengths" in names, n, kept)
            tapes.running.recurrences.append((state, note))
        return output, state

    return recurrence
