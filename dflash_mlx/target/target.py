"""A target: an mlx-lm model, its taps, and the few calls that a round makes of it."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from ..cache.adopt import adopt
from ..cache.protocol import StockCache, TargetBuffer
from ..cache.quantized import KVQuantization
from ..errors import UserError
from .families import Family
from .family_trial import family_of
from .recorder import Recorder
from .stack import Stack
from .taps import Taps


class Target(Stack):
    """An mlx-lm model that also hands out the hidden states of its tapped layers.

    Args:
        model: as mlx-lm loads it. Its parameters and behaviour stay as they are.
        taps: layers whose output is read, 0-based, in the drafter's order; the number of layers
            stands for the final norm. None for plain decoding.
        family: of another target of the same model; None finds it out.

    Raises:
        UserError: the family is not supported; the model is left untapped.
    """

    def __init__(self, model: nn.Module, taps: Sequence[int] = (), family: Family | None = None):
        super().__init__(model)
        self._recorder = Recorder(self.layers)
        self.family = family or family_of(model, self, self._recorder)
        self._taps = Taps([*self.layers, self.module], taps)

    def embed(self, ids: mx.array) -> mx.array:
        """Input embeddings of ``ids``, as the target's first layer receives them."""
        return self.family.embed(self.embedding(ids), self.args)

    @property
    def batched(self) -> bool:
        """Whether it takes several sequences at once."""
        return self.family.batched

    def forward(
        self, ids: mx.array, caches: Sequence[TargetBuffer] | Sequence[StockCache]
    ) -> tuple[mx.array, mx.array | None]:
        """One forward over ``ids [B, n]``.

        Works on our buffers and on mlx-lm's own caches. Nothing is computed until it is used, so
        a prefill that drops the logits never computes them.

        Raises:
            UserError: a batch was given and the family cannot take one.

        Returns:
            Logits ``[B, n, vocab]``, and features ``[B, n, taps * hidden]`` (None without taps).
        """
        if ids.shape[0] > 1 and not self.batched:
            raise UserError("This target's family takes a single sequence, not a batch.")
        with self._taps.recording() as outputs, self._recorder.recording():
            logits = self.model(ids, cache=caches)
        if not self._taps.ids:
            return logits, None
        return logits, mx.concatenate([outputs[i] for i in self._taps.ids], axis=-1)

    def encode(self, ids: mx.array) -> tuple[mx.array, mx.array]:
        """One forward over whole texts ``ids [B, n]``, without caches and without logits.

        Returns:
            Hidden states ``[B, n, hidden]`` after the final norm, for :meth:`head`, and features
            ``[B, n, taps * hidden]``.
        """
        with self._taps.recording() as outputs:
            hidden = self.module(ids)
        return hidden, mx.concatenate([outputs[i] for i in self._taps.ids], axis=-1)

    def take_over(
        self, caches: Sequence[StockCache], quantization: KVQuantization | None
    ) -> list[TargetBuffer]:
        """The buffers that rounds go on with after a prefill of stock ``caches``."""
        return [adopt([c], quantization) for c in caches]

    def release(self) -> None:
        """Undo the taps."""
        self._taps.release()
