"""Which mlx-lm families can be targets, and what they do to their embeddings."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx


def _root(hidden: int, dtype: mx.Dtype) -> float:
    return hidden**0.5


def _bfloat16_root(hidden: int, dtype: mx.Dtype) -> mx.array:
    """Gemma 3 rounds the factor to bfloat16 whatever it runs in."""
    return mx.array(hidden**0.5, mx.bfloat16).astype(dtype)


@dataclass(frozen=True)
class Family:
    """What a family adds around the embedding table, and what it can take.

    Attributes:
        embed_scale: what the stack multiplies embeddings by, from hidden size and dtype.
        batched: its attention takes a mask a batch row. Gemma 2 groups the query heads in a
            dimension of their own, where such a mask would meet the wrong axis.
    """

    embed_scale: Callable[[int, mx.Dtype], float | mx.array] | None = None
    batched: bool = True

    def scaled(self, embedded: mx.array) -> mx.array:
        """Rows of the embedding table as the first layer receives them."""
        if self.embed_scale is None:
            return embedded
        return embedded * self.embed_scale(embedded.shape[-1], embedded.dtype)


# By the module of mlx_lm.models that the language model comes from: mlx-lm's own remapping has
# already sent mistral to llama and so on. Any other family is tried when it is loaded.
FAMILIES = {
    "gemma": Family(embed_scale=_root),
    "gemma2": Family(embed_scale=_root, batched=False),
    "gemma3_text": Family(embed_scale=_bfloat16_root),
    "gemma4_text": Family(embed_scale=_root),
    "gpt_oss": Family(),
    "kimi_k25": Family(),
    "llama": Family(),
    "minimax": Family(),
    "qwen2": Family(),
    "qwen3": Family(),
    "qwen3_5": Family(),
    "qwen3_moe": Family(),
    "qwen3_next": Family(),
    "smollm3": Family(),
}
