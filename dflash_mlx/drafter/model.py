"""The DFlash drafter: a few Qwen3-like layers that attend to the target's features.

``h = x + o(attention(q from norm(x); k, v from [context ; norm(x)]))``, then the MLP; the context
is ``hidden_norm(fc(features))`` without any per-layer norm. Everything else is switched on by the
configuration. Parameter names mirror the checkpoint.
"""

from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu

from ..cache.context import LinearContext, WindowContext
from ..cache.protocol import ContextBuffer
from ..kernels.block_heads import BlockHeads
from ..kernels.context_kv import ContextKV
from .config import DrafterConfig
from .convolution import DynamicConvolution
from .masks import layer_visibility
from .projections import split_linear, stack_linears
from .rope import norm_rope, norm_weights
from .selector import CandidateSelector

# Hidden states come near the largest float16 number, and their sums go beyond it. A power of two
# before a sum loses nothing: the norm after it makes nothing of it, or float32 takes it back.
_FLOAT16_SCALE = 2.0**-6


def _into_residual(linear: nn.Module, x: mx.array) -> mx.array:
    """``linear(x)``, in float32 where float16 might not hold it: then so is the residual."""
    if x.dtype != mx.float16 or "bias" in linear:
        return linear(x)
    return linear(x * _FLOAT16_SCALE).astype(mx.float32) / _FLOAT16_SCALE


def _normed(norm: nn.RMSNorm, x: mx.array) -> mx.array:
    return norm(x).astype(norm.weight.dtype)


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

    def stack(self, kv_proj: nn.Module, block_heads: BlockHeads) -> None:
        """Take K and V from one projection, K first, instead of the two that were loaded."""
        del self.k_proj, self.v_proj
        self.kv_proj = kv_proj
        self.block_heads = block_heads

    def __call__(self, x: mx.array, mask: mx.array, context: ContextBuffer) -> mx.array:
        B, n, _ = x.shape
        q, k, v = self.block_heads(self.q_proj(x), self.kv_proj(x), context.offset)
        k, v = context.update_and_fetch(k, v)
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=self.scale, mask=mask)
        return _into_residual(self.o_proj, out.transpose(0, 2, 1, 3).reshape(B, n, -1))


class MLP(nn.Module):
    def __init__(self, config: DrafterConfig):
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return _into_residual(self.down_proj, swiglu(self.gate_proj(x), self.up_proj(x)))


class DecoderLayer(nn.Module):
    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        if config.conv_kernel_size is not None:
            self.attention_conv = DynamicConvolution(config)
            self.mlp_conv = DynamicConvolution(config)

    def __call__(self, x: mx.array, attend: Callable[[mx.array], mx.array]) -> mx.array:
        h = _normed(self.input_layernorm, x)
        x = x + (self.attention_conv(attend, h) if "attention_conv" in self else attend(h))
        h = _normed(self.post_attention_layernorm, x)
        return x + (self.mlp_conv(self.mlp, h) if "mlp_conv" in self else self.mlp(h))


class Drafter(nn.Module):
    """The drafter's weights and its two forwards: over a block, and over new context.

    Freshly built, the parameter tree is the checkpoint's. :meth:`stack_context` must be called
    once after loading and before either forward.
    """

    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.config = config
        hidden, width = config.hidden_size, config.target_hidden_size
        if config.has_hidden_dim_adapter:
            self.hidden_dim_adapter = nn.Linear(width, hidden, bias=False)
            width = hidden
        if taps := len(config.target_layer_ids):
            self.fc = nn.Linear(taps * width, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        self.layers = [DecoderLayer(config) for _ in range(config.num_hidden_layers)]
        self.norm = nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        if config.has_mask_embedding:
            self.mask_embedding = mx.zeros((hidden,))
        if config.has_embed_tokens:
            self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        if config.has_lm_head:
            self.lm_head = nn.Linear(
                hidden, config.draft_vocab_size or config.vocab_size, bias=False
            )
        if config.draft_vocab_size is not None:
            self.d2t = mx.arange(config.draft_vocab_size, dtype=mx.int32)
        if config.selector_top_k is not None:
            self.candidate_selector = CandidateSelector(config)
        self._visibility = layer_visibility(config)

    def stack_context(self) -> None:
        """Stack every layer's K and V projection into one product, and drop the originals.

        A block's own K and V then come from views of the stacked weights: one copy in memory.
        Doing it again changes nothing.
        """
        if "kv_proj" in self.layers[0].self_attn:
            return
        attentions = [layer.self_attn for layer in self.layers]
        stacked = stack_linears([p for a in attentions for p in (a.k_proj, a.v_proj)])
        norms = [mx.stack([a.q_norm.weight, a.k_norm.weight]) for a in attentions]
        norms = [norm_weights(weights, self.config.rope) for weights in norms]
        k_norm = mx.stack([k for _, k in norms])
        mx.eval(stacked.parameters(), norms, k_norm)
        rope = norm_rope(self.config)
        kv_projs = split_linear(stacked, len(attentions))
        for attention, kv_proj, weights in zip(attentions, kv_projs, norms, strict=True):
            attention.stack(kv_proj, BlockHeads(weights, rope))
            attention.block_heads.warm_up(self.dtype, attention.heads, attention.kv_heads)
        # Views cost nothing, but one that is not evaluated belongs to this thread alone.
        mx.eval(self.parameters())
        self.context_kv = ContextKV(stacked, k_norm, rope)
        self.context_kv.warm_up(self.dtype)

    def kernels(self, block_size: int) -> str:
        """Which way the fused parts run in a round of one sequence, and why."""
        block_heads = self.layers[0].self_attn.block_heads
        context = self.context_kv.route(block_size, self.dtype)
        return f"context K/V {context}, block {block_heads.route(self.dtype)}"

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype of the drafter's activations, and of the context K/V."""
        return self.hidden_norm.weight.dtype

    def make_context(self, start: mx.array) -> list[ContextBuffer]:
        """Empty context K/V, one buffer a layer, whose first position is ``start [B]``.

        One buffer a layer and not one for all: a write into an array that an unfinished read
        still holds copies the array, and a draft writes every layer in turn.
        """
        return [
            LinearContext(start)
            if sees.window is None
            else WindowContext(start, sees.window, self.config.block_size)
            for sees in self._visibility
        ]

    def write_context(self, features: mx.array, context: Sequence[ContextBuffer]) -> None:
        """Project ``features`` into every layer's context K/V.

        They are written at the context's offset and not committed.

        Args:
            features: ``[B, n, taps * target_hidden]``, or ``[B, n, target_hidden]`` without taps.
            context: one buffer a layer, all at the same offset.
        """
        c = self.combine(features)
        # Iterating splits them into views, where an index would launch a gather each.
        for cache, keys, values in zip(
            context, *self.context_kv(c, context[0].offset), strict=True
        ):
            cache.write(keys, values)

    def combine(self, features: mx.array) -> mx.array:
        """What every layer projects, ``[B, n, hidden]``: the norm of the taps' combination."""
        norm, scale = self.hidden_norm, 1.0
        if self.dtype == mx.float16:
            scale = _FLOAT16_SCALE
            features = features * scale
        c = features.astype(self.dtype)
        if "hidden_dim_adapter" in self:
            taps = c.reshape(*c.shape[:2], -1, self.config.target_hidden_size)
            c = self.hidden_dim_adapter(taps).reshape(*c.shape[:2], -1)
        c = self.fc(c) if "fc" in self else c
        return mx.fast.rms_norm(c, norm.weight, norm.eps * scale**2)

    def __call__(self, x: mx.array, context: Sequence[ContextBuffer]) -> mx.array:
        """Hidden states ``[B, n, hidden]`` after the final norm, of one block.

        Args:
            x: the block's input embeddings ``[B, n, hidden]``, the anchor first.
            context: context K/V; the block's own K and V are written at its offset.
        """
        x = x.astype(self.dtype)
        n, kinds = x.shape[1], dict(zip(self._visibility, context, strict=True))
        masks = {
            sees: sees.mask(cache.offset, n, cache.positions(n), cache.start)
            for sees, cache in kinds.items()
        }
        for layer, sees, cache in zip(self.layers, self._visibility, context, strict=True):
            x = layer(x, partial(layer.self_attn, mask=masks[sees], context=cache))
        return _normed(self.norm, x)
