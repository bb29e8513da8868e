"""The drafter's forward for training: many blocks of one sequence at once.

The same sums as :class:`dflash_mlx.drafter.model.Drafter` makes for one block at a time, written
over its parameters as they are loaded, before its projections are stacked, so that gradients reach
them. The context K/V of a sequence are computed once and shared by all of its blocks.
"""

import mlx.core as mx
import mlx.nn as nn

from ..drafter.config import DrafterConfig
from ..drafter.masks import layer_visibility
from ..drafter.model import DecoderLayer, Drafter
from ..drafter.rope import RoPE
from ..errors import UserError
from ..kernels.norm_rope import norm_rope
from .masks import visible

ContextKV = list[tuple[mx.array, mx.array]]


class BlockForward:
    """The two halves of the forward, over a drafter whose context is not stacked.

    Args:
        drafter: its parameters may be replaced between calls, as differentiation does.
    """

    def __init__(self, drafter: Drafter):
        self._drafter = drafter
        self._config: DrafterConfig = drafter.config
        self._visibility = layer_visibility(drafter.config)
        self._rope = RoPE(drafter.config.head_dim, drafter.config.rope)

    def context(self, features: mx.array) -> ContextKV:
        """Keys and values of every layer, each ``[kv_heads, S, head_dim]``.

        Args:
            features: ``[S, taps * target_hidden]``, of the sequence from its first token on.
        """
        drafter, c = self._drafter, features
        if "hidden_dim_adapter" in drafter:
            taps = c.reshape(len(c), -1, self._config.target_hidden_size)
            c = drafter.hidden_dim_adapter(taps).reshape(len(c), -1)
        c = drafter.hidden_norm(drafter.fc(c) if "fc" in drafter else c)
        start = mx.zeros((1,), mx.int32)
        return [self._keys_values(layer.self_attn, c[None], start) for layer in drafter.layers]

    def __call__(self, x: mx.array, anchors: mx.array, context: ContextKV) -> mx.array:
        """Hidden states ``[N, b, hidden]`` after the final norm.

        Args:
            x: the blocks' input embeddings ``[N, b, hidden]``.
            anchors: ``[N]`` int32, the positions of their first rows.
            context: keys and values up to the last anchor at least.
        """
        kinds, keys = self._visibility, context[0][0].shape[1]
        masks = {sees: visible(sees, anchors, x.shape[1], keys) for sees in kinds}
        for layer, sees, kv in zip(self._drafter.layers, kinds, context, strict=True):
            x = self.layer(layer, x, anchors, kv, masks[sees])
        return self._drafter.norm(x)

    def layer(
        self,
        layer: DecoderLayer,
        x: mx.array,
        anchors: mx.array,
        context: tuple[mx.array, mx.array],
        mask: mx.array,
    ) -> mx.array:
        """One layer's ``[N, b, hidden]``, of its context and a mask of :func:`.masks.visible`."""

        def attend(h: mx.array) -> mx.array:
            return self._attend(layer.self_attn, h, anchors, context, mask)

        h = layer.input_layernorm(x)
        x = x + (layer.attention_conv(attend, h) if "attention_conv" in layer else attend(h))
        h = layer.post_attention_layernorm(x)
        return x + (layer.mlp_conv(layer.mlp, h) if "mlp_conv" in layer else layer.mlp(h))

    def _heads(self, x: mx.array, norm: nn.RMSNorm, offset: mx.array) -> mx.array:
        """Normed and rotated heads ``[N, heads, n, head_dim]`` of products ``[N, n, …]``."""
        x = x.reshape(*x.shape[:2], -1, self._config.head_dim)
        weight = norm.weight.astype(mx.float32) * self._rope.amplitude
        return norm_rope(x, weight, self._rope.periods, offset, norm.eps, self._rope.traditional)

    def _keys_values(
        self, attention: nn.Module, c: mx.array, offset: mx.array
    ) -> tuple[mx.array, mx.array]:
        """K and V of context rows ``c [1, S, hidden]``, each ``[kv_heads, S, head_dim]``."""
        keys = self._heads(attention.k_proj(c), attention.k_norm, offset)
        values = attention.v_proj(c).reshape(*c.shape[:2], -1, self._config.head_dim)
        return keys[0], values[0].transpose(1, 0, 2)

    def _attend(
        self,
        attention: nn.Module,
        x: mx.array,
        anchors: mx.array,
        context: tuple[mx.array, mx.array],
        mask: mx.array,
    ) -> mx.array:
        """Attention of ``N`` blocks over the shared context and each block's own rows.

        The scores of the two are computed apart and normalized together, so that the rows of other
        blocks, most of all keys, are never multiplied at all.
        """
        N, b, _ = x.shape
        kv_heads, dim = self._config.num_key_value_heads, self._config.head_dim
        q = self._heads(attention.q_proj(x), attention.q_norm, anchors) * attention.scale
        k = self._heads(attention.k_proj(x), attention.k_norm, anchors)
        v = attention.v_proj(x).reshape(N, b, kv_heads, dim).transpose(2, 0, 1, 3)
        # Grouped queries become further rows of their key/value head.
        q = q.reshape(N, kv_heads, -1, dim).transpose(1, 0, 2, 3)
        k = k.transpose(1, 0, 2, 3)
        keys, values = context

        far = q.reshape(kv_heads, -1, dim) @ keys.swapaxes(-1, -2)
        far = far.reshape(*q.shape[:3], -1)
        scores = mx.concatenate([far, q @ k.swapaxes(-1, -2)], axis=-1)
        scores = scores.reshape(kv_heads, N, -1, b, scores.shape[-1])
        scores = mx.where(mask[None, :, None], scores, -mx.inf)
        weights = mx.softmax(scores, axis=-1, precise=True).reshape(*q.shape[:3], -1)

        far, own = weights[..., : keys.shape[1]], weights[..., keys.shape[1] :]
        out = far.reshape(kv_heads, -1, keys.shape[1]) @ values
        out = out.reshape(q.shape) + own @ v
        out = out.reshape(kv_heads, N, -1, b, dim).transpose(1, 3, 0, 2, 4)
        return attention.o_proj(out.reshape(N, b, -1))


def check_trainable(drafter: Drafter) -> None:
    """Check that a drafter has only parts that this trainer knows.

    Raises:
        UserError: it has others.
    """
    config = drafter.config
    obstacles = {
        "an embedding table of its own": config.has_embed_tokens,
        "a head of its own": config.has_lm_head,
        "rows that predict the token after them (sample_from_anchor)": config.sample_from_anchor,
    }
    if found := [name for name, there in obstacles.items() if there]:
        raise UserError(
            f"A drafter with {' and '.join(found)} cannot be trained by this version; start from "
            "another one, or without --init-from."
        )
