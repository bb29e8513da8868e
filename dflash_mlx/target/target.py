"""A target: an mlx-lm model, its taps, and the few calls that a round makes of it."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import BaseModelArgs
from mlx_lm.models.cache import make_prompt_cache

from ..cache.adopt import Buffer, StockCache
from ..errors import UserError
from .families import Family
from .recorder import Recorder
from .stack import Stack
from .taps import Taps
from .trial import family_of

# What mlx-lm's make_prompt_cache pins of a rotating cache.
KEEP = 4


class Target:
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
        self.model = model
        self._stack = Stack(model)
        self._recorder = Recorder(self._stack.layers)
        self.family = family or family_of(model, self._stack, self._recorder)
        self._taps = Taps([*self._stack.layers, self._stack.module], taps)

    @property
    def args(self) -> BaseModelArgs:
        """The language model's configuration, as mlx-lm has read it."""
        return self._stack.args

    @property
    def layers(self) -> list[nn.Module]:
        """The decoder layers."""
        return self._stack.layers

    @property
    def num_layers(self) -> int:
        return len(self._stack.layers)

    @property
    def hidden_size(self) -> int:
        return self.embed_raw(mx.array([0])).shape[-1]

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table, padding included."""
        return self._stack.embedding.weight.shape[0]

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype of the hidden states."""
        return self.embed_raw(mx.array([0])).dtype

    def embed(self, ids: mx.array) -> mx.array:
        """Input embeddings of ``ids``, as the target's first layer receives them."""
        return self.family.embed(self.embed_raw(ids), self._stack.args)

    def embed_raw(self, ids: mx.array) -> mx.array:
        """The embedding table's rows of ``ids``, unscaled."""
        return self._stack.embedding(ids)

    def head(self, hidden: mx.array) -> mx.array:
        """Logits of hidden states that are already normed, softcapped as the target's own are."""
        return self._stack.head(hidden)

    def head_raw(self, hidden: mx.array) -> mx.array:
        """The head's product alone, before any scale or softcap of the target's own."""
        return self._stack.head_raw(hidden)

    def forward(
        self, ids: mx.array, caches: Sequence[Buffer] | Sequence[StockCache]
    ) -> tuple[mx.array, mx.array | None]:
        """One forward over ``ids [B, n]``.

        Works on our buffers and on mlx-lm's own caches. Nothing is computed until it is used, so
        a prefill that drops the logits never computes them.

        Raises:
            UserError: a batch was given and the family cannot take one.

        Returns:
            Logits ``[B, n, vocab]``, and features ``[B, n, taps * hidden]`` (None without taps).
        """
        if ids.shape[0] > 1 and not self.family.batched:
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
            hidden = self._stack.module(ids)
        return hidden, mx.concatenate([outputs[i] for i in self._taps.ids], axis=-1)

    @property
    def takes_max_kv_size(self) -> bool:
        """Whether mlx-lm shapes this model's caches, and not the model itself."""
        return not hasattr(self.model, "make_cache")

    def make_cache(self, max_kv_size: int | None = None) -> list[StockCache]:
        """Empty stock caches, in the order of the layers that keep one.

        Args:
            max_kv_size: rows that a layer keeps at most: the first 4 and the last ones.

        Raises:
            UserError: the size cannot be had.
        """
        if max_kv_size is None:
            return make_prompt_cache(self.model)
        if not self.takes_max_kv_size:
            raise UserError(
                "`max_kv_size` cannot be set: this target's family shapes its own caches, and "
                "mlx-lm would not heed it."
            )
        if max_kv_size <= KEEP:
            raise UserError(
                f"`max_kv_size` {max_kv_size} is too small: the first {KEEP} tokens always stay, "
                f"so it must be {KEEP + 1} or more."
            )
        return make_prompt_cache(self.model, max_kv_size)

    def release(self) -> None:
        """Undo the taps."""
        self._taps.release()
