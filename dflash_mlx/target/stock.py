"""An mlx-lm model with the caches that mlx-lm makes for it; such a one can decode plainly."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from ..cache.protocol import StockCache, TargetBuffer
from ..cache.quantized import KVQuantization
from ..cache.stock import StockBuffer
from ..errors import UserError

# What mlx-lm's make_prompt_cache pins of a rotating cache.
KEEP = 4


class StockModel:
    """The caches of an mlx-lm model.

    Args:
        model: as mlx-lm loads it.
    """

    def __init__(self, model: nn.Module):
        self.model = model

    @property
    def takes_max_kv_size(self) -> bool:
        """Whether mlx-lm shapes this model's caches, and not the model itself."""
        return not hasattr(self.model, "make_cache")

    def make_cache(self, max_kv_size: int | None = None) -> list[StockCache]:
        """Empty stock caches, in the order of the layers that keep one.

        Args:
            max_kv_size: positions that a layer keeps at most: the first 4 and the last ones.

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


class PlainTarget(StockModel):
    """A target that a drafter cannot be put to: its rounds are plain, on mlx-lm's own caches.

    Args:
        model: as mlx-lm loads it.
        why_plain: why it cannot draft.

    Attributes:
        vocab_size, dtype: of its logits.
        batched: False: several sequences take turns.
    """

    batched = False

    def __init__(self, model: nn.Module, why_plain: str):
        super().__init__(model)
        self.why_plain = why_plain
        # Never computed; a family keeps these where it likes.
        logits, _ = self.forward(mx.array([[0]]), self.make_cache())
        self.vocab_size, self.dtype = logits.shape[-1], logits.dtype

    def forward(
        self, ids: mx.array, caches: Sequence[StockBuffer] | Sequence[StockCache]
    ) -> tuple[mx.array, None]:
        """One forward over ``ids [B, n]``: logits ``[B, n, vocab]``, and no features."""
        stock = [c.cache if isinstance(c, StockBuffer) else c for c in caches]
        return self.model(ids, cache=stock), None

    def take_over(
        self, caches: Sequence[StockCache], quantization: KVQuantization | None
    ) -> list[TargetBuffer]:
        """The buffers that rounds go on with after a prefill of stock ``caches``."""
        return [StockBuffer(c, quantization) for c in caches]

    def release(self) -> None:
        """There are no taps to undo."""
