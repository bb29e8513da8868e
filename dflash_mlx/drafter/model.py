"""The DFlash drafter (z-lab v1): a few Qwen3-like layers that attend to the target's features.

``h = x + o(attention(q from norm(x); k, v from [context ; norm(x)]))``, then the MLP; the context
is ``hidden_norm(fc(features))`` without any per-layer norm. Parameter names mirror the checkpoint.
"""

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu

from ..cache.linear import LinearCache
from ..kernels.path import Path
from .config import DrafterConfig
from .context import ContextProjection, split_linear, stack_linears
from .heads import BlockHeads
from .rope import RoPE


class Attention(nn.Module):
    def __init__(self, config: DrafterConfig):
        super().__init__()
        hidden, head_dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.scale = head_dim**-0.5

        self.q_proj = nn.Linear(hidden, self.heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * head_dim, hidden, bias=bias)
        self.q_norm = nn.RMSNorm(head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(head_dim, eps=config.rms_norm_eps)

    def stack(self, kv_proj: nn.Module, rope: RoPE) -> None:
        """Take K and V from one projection, K first, instead of the two that were loaded."""
        del self.k_proj, self.v_proj
        self.kv_proj = kv_proj
        self._heads = BlockHeads(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps, rope)

    def warm_up(self, dtype: mx.Dtype) -> None:
        """Compile the pipelines that blocks of this dtype need."""
        self._heads.warm_up(dtype, self.heads, self.kv_heads)

    def block_path(self, dtype: mx.Dtype) -> Path:
        """How the heads of a block of this dtype are normed and rotated, and why."""
        return self._heads.path(dtype)

    def __call__(self, x: mx.array, mask: mx.array, context: LinearCache) -> mx.array:
        B, n, _ = x.shape
        q, k, v = self._heads(self.q_proj(x), self.kv_proj(x), context.offset)
        k, v = context.update_and_fetch(k, v)
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=self.scale, mask=mask)
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(B, n, -1))


class MLP(nn.Module):
    def __init__(self, config: DrafterConfig):
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class DecoderLayer(nn.Module):
    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, x: mx.array, mask: mx.array, context: LinearCache) -> mx.array:
        h = x + self.self_attn(self.input_layernorm(x), mask, context)
        return h + self.mlp(self.post_attention_layernorm(h))


class Drafter(nn.Module):
    """The drafter's weights and its two forwards: over a block, and over new context.

    Freshly built, the parameter tree is the checkpoint's. :meth:`stack_context` must be called
    once after loading and before either forward.
    """

    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.config = config
        taps = len(config.target_layer_ids)
        self.fc = nn.Linear(taps * config.target_hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = [DecoderLayer(config) for _ in range(config.num_hidden_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        if config.has_mask_embedding:
            self.mask_embedding = mx.zeros((config.hidden_size,))

    def stack_context(self) -> None:
        """Stack every layer's K and V projection into one product, and drop the originals.

        A block's own K and V then come from views of the stacked weights: one copy in memory.
        Doing it again changes nothing.
        """
        if "kv_proj" in self.layers[0].self_attn:
            return
        attentions = [layer.self_attn for layer in self.layers]
        stacked = stack_linears([p for a in attentions for p in (a.k_proj, a.v_proj)])
        norms = mx.stack([a.k_norm.weight for a in attentions])
        mx.eval(stacked.parameters(), norms)
        rope = RoPE(self.config.head_dim, self.config.rope)
        for attention, kv in zip(attentions, split_linear(stacked, len(attentions)), strict=True):
            attention.stack(kv, rope)
            attention.warm_up(self.dtype)
        self._context = ContextProjection(stacked, norms, self.config.rms_norm_eps, rope)
        self._context.warm_up(self.dtype)

    def context_path(self, rows: int) -> Path:
        """How the context K/V of ``rows`` rows (all batch rows together) is computed, and why."""
        return self._context.path(rows, self.dtype)

    def block_path(self) -> Path:
        """How the heads of a block are normed and rotated, and why."""
        return self.layers[0].self_attn.block_path(self.dtype)

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype of the drafter's activations, and of the context K/V."""
        return self.hidden_norm.weight.dtype

    def make_context(self, start: mx.array) -> list[LinearCache]:
        """Empty context K/V, one buffer a layer, whose first row is at position ``start`` [B].

        One buffer a layer and not one for all: a write into an array that an unfinished read
        still holds copies the array, and a draft writes every layer in turn.
        """
        return [LinearCache(None, None, start, start) for _ in self.layers]

    def write_context(self, features: mx.array, context: list[LinearCache]) -> None:
        """Project ``features [B, n, taps * target_hidden]`` into every layer's context K/V.

        The rows are written at the context's offset and not committed.
        """
        c = self.hidden_norm(self.fc(features.astype(self.dtype)))
        # Iterating splits them into views, where an index would launch a gather each.
        for cache, keys, values in zip(context, *self._context(c, context[0].offset), strict=True):
            cache.write(keys, values)

    def __call__(self, x: mx.array, context: list[LinearCache]) -> mx.array:
        """Hidden states ``[B, n, hidden]`` after the final norm, of one block.

        Args:
            x: the block's input embeddings ``[B, n, hidden]``, the anchor first.
            context: context K/V; the block's own K and V are written at its offset.
        """
        x = x.astype(self.dtype)
        mask = context[0].block_mask(x.shape[1])
        for layer, cache in zip(self.layers, context, strict=True):
            x = layer(x, mask, cache)
        return self.norm(x)
