"""A target: an mlx-lm model, its taps, and the few calls that a round makes of it."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from ..cache.adopt import Buffer, StockCache
from ..errors import UserError
from .families import family_of
from .taps import Taps


class Target:
    """An mlx-lm model that also hands out the hidden states of its tapped layers.

    Args:
        model: as mlx-lm loads it. Its parameters and behaviour stay as they are.
        taps: layers whose output is read, 0-based, in the drafter's order; the number of layers
            stands for the final norm. None for plain decoding.

    Raises:
        UserError: the family is not supported; the model is left untapped.
    """

    def __init__(self, model: nn.Module, taps: Sequence[int] = ()):
        self.family = family_of(model)
        self.model = model
        self._stack = model.model
        self._taps = Taps([*self._stack.layers, self._stack.norm], taps)

    @property
    def num_layers(self) -> int:
        return len(self._stack.layers)

    @property
    def hidden_size(self) -> int:
        return self.model.args.hidden_size

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table, padding included."""
        return self._stack.embed_tokens.weight.shape[0]

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype of the hidden states."""
        return self._stack.norm.weight.dtype

    def embed(self, ids: mx.array) -> mx.array:
        """Input embeddings of ``ids``, as the target's first layer receives them."""
        x = self.embed_raw(ids)
        scale = self.family.embed_scale
        return x * scale(self.hidden_size, x.dtype) if scale else x

    def embed_raw(self, ids: mx.array) -> mx.array:
        """The embedding table's rows of ``ids``, unscaled."""
        return self._stack.embed_tokens(ids)

    def head(self, hidden: mx.array) -> mx.array:
        """Logits of hidden states that are already normed, softcapped as the target's own are."""
        logits = self.head_raw(hidden)
        if self.family.softcap:
            cap = self.model.args.final_logit_softcapping
            logits = mx.tanh(logits / cap) * cap
        return logits

    def head_raw(self, hidden: mx.array) -> mx.array:
        """The head's product alone, before any scale or softcap of the target's own."""
        if "lm_head" in self.model:
            return self.model.lm_head(hidden)
        return self._stack.embed_tokens.as_linear(hidden)

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
        with self._taps.recording() as outputs:
            logits = self.model(ids, cache=caches)
        if not self._taps.ids:
            return logits, None
        return logits, mx.concatenate([outputs[i] for i in self._taps.ids], axis=-1)

    def make_cache(self) -> list[StockCache]:
        """Empty stock caches, one a layer."""
        return make_prompt_cache(self.model)

    def release(self) -> None:
        """Undo the taps."""
        self._taps.release()
