"""Which mlx-lm families can be targets, and what their embeddings and heads do beyond a lookup."""

from dataclasses import dataclass

import mlx.nn as nn
from mlx_lm.models.cache import KVCache, make_prompt_cache

from ..errors import UserError


@dataclass(frozen=True)
class Family:
    """What a family adds around the embedding table and the head.

    Attributes:
        embed_scale: the stack multiplies embeddings by ``sqrt(hidden_size)``.
        softcap: the head squashes logits to ``final_logit_softcapping``.
        batched: its attention takes a mask a batch row. Gemma 2 groups the query heads in a
            dimension of their own, where such a mask would meet the wrong axis.
    """

    embed_scale: bool = False
    softcap: bool = False
    batched: bool = True


# By module of mlx_lm.models: its own remapping has already sent mistral to llama and so on.
FAMILIES = {
    "gemma": Family(embed_scale=True),
    "gemma2": Family(embed_scale=True, softcap=True, batched=False),
    "llama": Family(),
    "minimax": Family(),
    "qwen2": Family(),
    "qwen3": Family(),
    "qwen3_moe": Family(),
    "smollm3": Family(),
}


def family_of(model: nn.Module) -> Family:
    """The family of an mlx-lm model.

    Raises:
        UserError: the model keeps a cache other than ``KVCache``, or its family is not supported.
    """
    name = type(model).__module__.rpartition(".")[2]
    kinds = sorted({type(c).__name__ for c in make_prompt_cache(model)} - {KVCache.__name__})
    if kinds:
        raise UserError(
            f"The target's family {name!r} keeps a cache of kind {', '.join(kinds)}; this version "
            f"runs targets whose caches are all KVCache: {', '.join(FAMILIES)}."
        )
    if name not in FAMILIES:
        raise UserError(
            f"The target's family {name!r} (cache kind KVCache) is not among those that this "
            f"version supports: {', '.join(FAMILIES)}."
        )
    return FAMILIES[name]
