"""The drafter's forward for training: many blocks of one sequence at once.

The same sums as :class:`dflash_mlx.drafter.model.Drafter` makes for one block at a time, written
over its parameters as they are loaded, before its projections are stacked, so that gradients reach
them. The context K/V of a sequence are computed once and shared by all of its blocks.
"""

from functools import partial

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from ..cache.linear import round_up
from ..drafter.masks import layer_visibility
from ..drafter.model import Attention, Drafter
from ..drafter.rope import norm_rope, norm_weights
from ..errors import UserError
from ..target.target import Target
from .blocks import Blocks

Parameters = dict[str, mx.array]
KeysValues = tuple[mx.array, mx.array]

# Context is cut at a multiple of this, so that chunks share the shapes of their buffers.
CONTEXT_STEP = 64
# Stands for minus infinity where a difference of two of them must not become NaN.
_NEVER = -1e9


class BlockForward:
    """A drafter over blocks, with the target's embedding table and head.

    Args:
        drafter: with all its projections unquantized and not stacked, and nothing that
            :func:`check_trainable` refuses. Its parameters are only a place to put the arrays that
            :meth:`use` is given.
        target: embeds the blocks and turns hidden states into logits; gradients pass through.
        dtype: of the forward.
    """

    def __init__(self, drafter: Drafter, target: Target, dtype: mx.Dtype = mx.float32):
        self.drafter, self.target, self.dtype = drafter, target, dtype
        self.config = drafter.config
        self._visibility = layer_visibility(self.config)
        self._norm_rope = norm_rope(self.config)

    def use(self, parameters: Parameters) -> None:
        """Compute with these parameters from now on, rounded to the forward's dtype."""
        rounded = [(name, value.astype(self.dtype)) for name, value in parameters.items()]
        self.drafter.update(tree_unflatten(rounded))

    def context(self, features: mx.array) -> list[KeysValues]:
        """Keys and values of every layer, each ``[kv_heads, S, head_dim]``.

        Args:
            features: ``[S, taps * target_hidden]``, of the sequence from its first token on.
        """
        c = self.drafter.combine(features[None])[0]
        start = mx.zeros((1,), mx.int32)
        context = []
        for attention in (layer.self_attn for layer in self.drafter.layers):
            # A layer's two gradients are summed first, and then those of the layers.
            x = c[None]
            keys = self._heads(attention.k_proj(x), attention.k_norm, start)
            values = attention.v_proj(x).reshape(*x.shape[:2], -1, self.config.head_dim)
            context.append((keys[0], values[0].transpose(1, 0, 2)))
        return context

    def hidden(self, blocks: Blocks, context: list[KeysValues]) -> mx.array:
        """Hidden states ``[N, b - 1, hidden]`` after the final norm, without the anchors'."""
        anchors, x = mx.array(blocks.anchors), self._embed(blocks)
        keys = min(round_up(int(blocks.anchors[-1]) + 1, CONTEXT_STEP), context[0][0].shape[1])
        block_size = x.shape[1]
        # Context is visible strictly before the anchor: the target's features at the anchor do not
        # exist yet when the block is drafted. What is not yet there stands before the start. Other
        # blocks are no keys at all.
        before = mx.where(mx.arange(keys) < anchors[:, None], mx.arange(keys), -1)
        positions = mx.concatenate([before, anchors[:, None] + mx.arange(block_size)], axis=1)
        start = mx.zeros(anchors.shape, mx.int32)
        kinds = self._visibility
        masks = {sees: sees.mask(anchors, block_size, positions, start) for sees in kinds}
        for layer, sees, (k, v) in zip(self.drafter.layers, kinds, context, strict=True):
            near = (k[:, :keys], v[:, :keys])
            x = layer(x, partial(self._attend, layer.self_attn, anchors, near, masks[sees]))
        return self.drafter.norm(x)[:, 1:]

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits ``[N, b - 1, vocab]`` of hidden states, float32."""
        multiplier, cap = self.config.output_multiplier, self.config.final_logit_softcapping
        logits = self.target.head_raw(hidden.astype(self.target.dtype)).astype(mx.float32)
        if multiplier != 1.0:
            logits = logits * multiplier
        if cap is not None:
            logits = mx.tanh(logits / cap) * cap
        return self.only_known(logits)

    def only_known(self, logits: mx.array) -> mx.array:
        """Without the tokens of a padded table that the drafter was not trained on."""
        if self.config.vocab_size >= self.target.vocab_size:
            return logits
        return mx.where(mx.arange(logits.shape[-1]) < self.config.vocab_size, logits, _NEVER)

    def _embed(self, blocks: Blocks) -> mx.array:
        """Input embeddings ``[N, b, hidden]``: the given tokens, then the mask token."""
        config, target = self.config, self.target
        lookup = target.embed if config.embed_scale == "target" else target.embedding
        known = lookup(mx.array(blocks.tokens)) * config.input_embedding_scale
        if config.has_mask_embedding:
            mask = self.drafter.mask_embedding
        else:
            mask = lookup(mx.array([config.mask_token_id]))[0] * config.input_embedding_scale
        is_given = mx.arange(blocks.tokens.shape[1]) < mx.array(blocks.given)[:, None]
        return mx.where(is_given[..., None], known, mask).astype(self.dtype)

    def _heads(self, x: mx.array, norm: nn.RMSNorm, offset: mx.array) -> mx.array:
        """Normed and rotated heads ``[N, heads, n, head_dim]`` of products ``[N, n, …]``."""
        x = x.reshape(*x.shape[:2], -1, self.config.head_dim)
        return self._norm_rope(x, norm_weights(norm.weight, self.config.rope), offset)

    def _attend(
        self,
        attention: Attention,
        anchors: mx.array,
        context: KeysValues,
        mask: mx.array,
        x: mx.array,
    ) -> mx.array:
        """Attention of ``N`` blocks over the shared context and each block's own positions.

        The scores of the two are computed apart and normalized together, so that the positions of
        other blocks, most of all keys, are never multiplied at all.
        """
        N, b, _ = x.shape
        kv_heads, dim = self.config.num_key_value_heads, self.config.head_dim
        q = self._heads(attention.q_proj(x), attention.q_norm, anchors) * attention.scale
        k = self._heads(attention.k_proj(x), attention.k_norm, anchors)
        v = attention.v_proj(x).reshape(N, b, kv_heads, dim).transpose(2, 0, 1, 3)
        # Grouped queries become further positions of their key/value head.
        q = q.reshape(N, kv_heads, -1, dim).transpose(1, 0, 2, 3)
        k = k.transpose(1, 0, 2, 3)
        keys, values = context

        far = q.reshape(kv_heads, -1, dim) @ keys.swapaxes(-1, -2)
        far = far.reshape(*q.shape[:3], -1)
        scores = mx.concatenate([far, q @ k.swapaxes(-1, -2)], axis=-1)
        scores = scores.reshape(kv_heads, N, -1, b, scores.shape[-1])
        scores = mx.where(mask[None], scores, -mx.inf)
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
