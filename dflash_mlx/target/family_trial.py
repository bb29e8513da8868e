"""The trial of a family that nobody has looked at: does it run as one of the known ones does?"""

from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, make_prompt_cache

from ..cache.adopt import adopt, unsupported
from ..errors import UserError
from .families import FAMILIES, Family
from .recorder import Recorder
from .stack import Stack
from .swap import subclass, swapped

LENGTH, BLOCK = 8, 5

# What a forward that means something else raises, in mlx-lm's layers or in the trial itself.
_FAILURES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def family_of(model: nn.Module, stack: Stack, recorder: Recorder) -> Family:
    """The family of an mlx-lm model: from the table, or what a trial makes of it.

    Raises:
        UserError: no buffer takes over the model's caches, or the trial failed.
    """
    caches = make_prompt_cache(model)
    if kinds := unsupported(caches):
        raise UserError(
            f"The target's family {stack.name!r} keeps a cache of kind {', '.join(kinds)}, which "
            "this version cannot run rounds on."
        )
    if all(type(c) is ArraysCache for c in caches):
        raise UserError(
            f"The target's family {stack.name!r} is recurrent in every layer; this version needs "
            "at least one layer of attention, whose cache knows how many tokens it holds."
        )
    return FAMILIES.get(stack.name) or _tried(model, stack, recorder)


def _tried(model: nn.Module, stack: Stack, recorder: Recorder) -> Family:
    # Some attention takes no mask a batch row, and is fine with a single sequence.
    for batch in (2, 1):
        try:
            return _trial(model, stack, recorder, batch)
        except _FAILURES as error:
            failure = error
    raise UserError(
        f"The target's family {stack.name!r} is not among those that this version knows "
        f"({', '.join(FAMILIES)}), and does not run like them: {failure}"
    ) from failure


def _trial(model: nn.Module, stack: Stack, recorder: Recorder, batch: int) -> Family:
    """A plain forward, looked at from outside, and the same tokens in two rounds."""
    ids = (mx.arange(1, batch + 1)[:, None] * mx.arange(1, LENGTH + 1)) % stack.vocab_size
    seen = _Witness(stack)
    with swapped(seen.classes):
        plain = model(ids, cache=make_prompt_cache(model))
    seen.check_layers((*ids.shape, stack.hidden_size))
    if not _same(stack.head(seen.outputs[-1]), plain):
        raise ValueError("its head does more than a function of the last hidden state.")

    caches = [adopt([c] * batch) for c in make_prompt_cache(model)]
    accepted = mx.array([2, 1][:batch])
    at = (accepted + 1)[:, None] + mx.arange(BLOCK)
    with recorder.recording():
        for cache in caches:
            cache.reserve(LENGTH)
        first = model(ids[:, :BLOCK], cache=caches)
        for cache in caches:
            cache.commit(accepted + 1, accepted)
        second = model(mx.take_along_axis(ids, at, axis=1), cache=caches)
    if not _same(first, plain[:, :BLOCK]):
        raise ValueError("its forward through a round's buffers differs from its own.")
    if not _same(second, mx.take_along_axis(plain, at[..., None], axis=1)):
        raise ValueError("its forward after a partly accepted round differs from its own.")
    return replace(_embedding(stack.embedding(ids), seen.inputs[0]), batched=batch > 1)


class _Witness:
    """Sees what goes into and comes out of each layer, and out of the stack."""

    def __init__(self, stack: Stack):
        self.inputs: list[mx.array] = []
        self.outputs: list[mx.array] = []
        modules = (*stack.layers, stack.module)
        self.classes = [(m, self._watching(type(m))) for m in modules]

    def _watching(self, base: type[nn.Module]) -> type[nn.Module]:
        def call(module: nn.Module, x: mx.array, *args: object, **kwargs: object) -> object:
            output = base.__call__(module, x, *args, **kwargs)
            self.inputs.append(x)
            self.outputs.append(output[0] if isinstance(output, tuple) else output)
            return output

        return subclass(base, __call__=call)

    def check_layers(self, shape: tuple[int, ...]) -> None:
        if len(self.outputs) != len(self.classes):
            raise ValueError("its layers do not each run once in a forward.")
        if any(x.shape != shape for x in self.outputs):
            raise ValueError("its layers do not hand on one hidden state a token.")


def _same(a: mx.array, b: mx.array) -> bool:
    """Whether two forwards' logits come from the same computation.

    In float32 they agree but for rounding. In 16 bits, sums of another shape move logits by some
    units of 2^-8 and may send a token to another expert; a wrong mask or state moves all of them by
    about as much as they differ among themselves.
    """
    tolerance = 1e-4 if a.dtype == mx.float32 else 0.1
    a, b = a.astype(mx.float32), b.astype(mx.float32)
    spread = mx.abs(b - b.mean(axis=-1, keepdims=True)).mean()
    return (mx.abs(a - b).mean() <= tolerance * spread).item()


def _embedding(looked_up: mx.array, received: mx.array) -> Family:
    """A family by what becomes of the table's embeddings before the first layer receives them."""
    if mx.array_equal(looked_up, received):
        return Family()
    tolerance = 1e-5 if looked_up.dtype == mx.float32 else 1e-2
    looked_up, received = looked_up.astype(mx.float32), received.astype(mx.float32)
    scale = ((looked_up * received).sum() / (looked_up * looked_up).sum()).item()
    if mx.abs(received - scale * looked_up).max() > tolerance * mx.abs(received).max():
        raise ValueError("its first layer receives more than its scaled embeddings.")
    return Family(embed=lambda x, args: x * scale)
