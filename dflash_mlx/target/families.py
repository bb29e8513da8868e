"""Which mlx-lm families can be targets, and what their embeddings and heads do beyond a lookup."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from ..cache.adopt import unsupported
from ..errors import UserError


def _root(hidden: int, dtype: mx.Dtype) -> float:
    return hidden**0.5


def _bfloat16_root(hidden: int, dtype: mx.Dtype) -> mx.array:
    """Gemma 3 rounds the factor to bfloat16 whatever it runs in."""
    return mx.array(hidden**0.5, mx.bfloat16).astype(dtype)


@dataclass(frozen=True)
class Family:
    """What a family adds around the embedding table and the head.

    Attributes:
        embed_scale: what the stack multiplies embeddings by, from hidden size and dtype.
        softcap: the head squashes logits to ``final_logit_softcapping``.
        batched: its attention takes a mask a batch row. Gemma 2 groups the query heads in a
            dimension of their own, where such a mask would meet the wrong axis.
    """

    embed_scale: Callable[[int, mx.Dtype], float | mx.array] | None = None
    softcap: bool = False
    batched: bool = True


# By module of mlx_lm.models: its own remapping has already sent mistral to llama and so on.
FAMILIES = {
    "deepseek_v3": Family(),
    "deepseek_v32": Family(),
    "gemma": Family(embed_scale=_root),
    "gemma2": Family(embed_scale=_root, softcap=True, batched=False),
    "gemma3_text": Family(embed_scale=_bfloat16_root),
    "glm_moe_dsa": Family(),
    "gpt_oss": Family(),
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
        UserError: the model keeps a cache of a kind that is not supported, or its family is not.
    """
    name = type(model).__module__.rpartition(".")[2]
    if kinds := unsupported(make_prompt_cache(model)):
        raise UserError(
            f"The target's family {name!r} keeps a cache of kind {', '.join(kinds)}; this version "
            f"runs these families: {', '.join(FAMILIES)}."
        )
    if name not in FAMILIES:
        raise UserError(
            f"The target's family {name!r} is not among those that this version supports: "
            f"{', '.join(FAMILIES)}."
        )
    return FAMILIES[name]
