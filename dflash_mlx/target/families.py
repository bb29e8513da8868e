"""Which mlx-lm families can be targets, and what they do to their embeddings."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.models.base import BaseModelArgs


def _unchanged(x: mx.array, args: BaseModelArgs) -> mx.array:
    return x


def _rooted(x: mx.array, args: BaseModelArgs) -> mx.array:
    return x * args.hidden_size**0.5


def _bfloat16_rooted(x: mx.array, args: BaseModelArgs) -> mx.array:
    """Gemma 3 rounds the factor to bfloat16 whatever it runs in."""
    return x * mx.array(args.hidden_size**0.5, mx.bfloat16).astype(x.dtype)


def _normed(x: mx.array, args: BaseModelArgs) -> mx.array:
    return mx.fast.rms_norm(x, None, args.rms_norm_eps)


@dataclass(frozen=True)
class Family:
    """What a family does to its embeddings, and what it can take.

    Attributes:
        embed: what the first layer receives, from the table's embeddings and the model's args.
        batched: its attention takes a mask a batch row. Gemma 2 groups the query heads in a
            dimension of their own, where such a mask would meet the wrong axis.
    """

    embed: Callable[[mx.array, BaseModelArgs], mx.array] = _unchanged
    batched: bool = True


# By the module of mlx_lm.models that the language model comes from: mlx-lm's own remapping has
# already sent mistral to llama and so on. Any other family is tried when it is loaded.
FAMILIES = {
    "deepseek_v3": Family(),
    "deepseek_v32": Family(),
    "gemma": Family(embed=_rooted),
    "gemma2": Family(embed=_rooted, batched=False),
    "gemma3_text": Family(embed=_bfloat16_rooted),
    "gemma4_text": Family(embed=_rooted),
    "glm_moe_dsa": Family(),
    "gpt_oss": Family(),
    "kimi_k25": Family(),
    "llama": Family(),
    "minimax": Family(),
    "muse_glimmer": Family(embed=_normed),
    "qwen2": Family(),
    "qwen3": Family(),
    "qwen3_5": Family(),
    "qwen3_moe": Family(),
    "qwen3_next": Family(),
    "smollm3": Family(),
}
