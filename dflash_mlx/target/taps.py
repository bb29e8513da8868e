"""Taps: read the output of chosen layers without copying or wrapping them."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import mlx.core as mx
import mlx.nn as nn

from ..errors import UserError
from .swap import subclass


class Recording(threading.local):
    """What the taps hand out in the forward that this thread is in.

    Attributes:
        outputs: by layer id, or None outside a recording.
    """

    outputs: dict[int, mx.array] | None = None


class Taps:
    """Swaps the class of each tapped layer instance for a subclass that hands out its output.

    Parameter names, ``isinstance``, attributes, quantization and adapters stay as they were. The
    swapped layers do nothing more than before outside :meth:`recording`, and in other threads.

    Args:
        layers: the target's decoder layers, and the whole stack after them.
        ids: the tapped ones, 0-based; a tap reads the output.

    Raises:
        UserError: a layer is tapped already. Nothing is swapped then.
    """

    def __init__(self, layers: Sequence[nn.Module], ids: Sequence[int]):
        self.ids = tuple(ids)
        self._recording = Recording()
        self._released = False
        self._layers = {i: layers[i] for i in self.ids}
        self._classes = {i: type(layer) for i, layer in self._layers.items()}
        taken = [i for i, cls in self._classes.items() if hasattr(cls, "_tapped_class")]
        if taken:
            raise UserError(
                f"Layers {taken} of this model are tapped by another pair; release that one first."
            )
        for i, layer in self._layers.items():
            layer.__class__ = _tapped(i, self._classes[i], self._recording)

    @contextmanager
    def recording(self) -> Iterator[dict[int, mx.array]]:
        """Collect the taps' outputs of the forward inside the block, by layer id.

        Raises:
            UserError: the taps were released.
        """
        if self._released:
            raise UserError("This pair was released and cannot generate any more; load it again.")
        self._recording.outputs = outputs = {}
        try:
            yield outputs
        finally:
            self._recording.outputs = None

    def release(self) -> None:
        """Give every tapped layer its own class back, once: another pair may tap it then."""
        if not self._released:
            for i, layer in self._layers.items():
                layer.__class__ = self._classes[i]
        self._released = True


def _tapped(i: int, base: type[nn.Module], recording: Recording) -> type[nn.Module]:
    # The class must not know the layer, or the two would keep each other alive.
    def call(layer: nn.Module, *args: object, **kwargs: object) -> object:
        output = base.__call__(layer, *args, **kwargs)
        if recording.outputs is not None:
            # Gemma 4's layers return a tuple whose first element is the stream.
            recording.outputs[i] = output[0] if isinstance(output, tuple) else output
        return output

    return subclass(base, __call__=call, _tapped_class=base)
