"""Random drafters of every kind, and what they draft."""

import mlx.core as mx
import mlx.nn as nn

from .pairs import tiny_drafter

SLIDING = ("sliding_attention", "sliding_attention")
CONVOLVED = {"conv_kernel_size": 2, "conv_group_size": 8}
DFLASH2 = CONVOLVED | {"selector_rank": 32, "selector_top_k": 4}
OWN = {"embed_scale": "raw", "has_embed_tokens": True, "has_lm_head": True}
REDUCED = {"has_lm_head": True, "draft_vocab_size": 40}
PASSES = {"draft_passes": 2, "draft_prefix": 3}


def drafter_of(**changes):
    """A random drafter; a reduced vocabulary is every other token."""
    drafter = tiny_drafter(**changes)
    if drafter.config.draft_vocab_size:
        drafter.d2t = 2 * mx.arange(drafter.config.draft_vocab_size, dtype=mx.int32) + 1
    return drafter


def quantized(drafter, bits, group_size):
    """All of the drafter that can be, as the converter does it."""

    def fits(path, module):
        return hasattr(module, "to_quantized") and module.weight.shape[-1] % group_size == 0

    nn.quantize(drafter, group_size=group_size, bits=bits, class_predicate=fits)
    return drafter


def context_of(pair, scale=1.0):
    """Five random rows of context."""
    context = pair.drafter.make_context(mx.array([0], mx.int32))
    for cache in context:
        cache.reserve(32)
    config = pair.drafter._drafter.config
    width = max(len(config.target_layer_ids), 1) * config.target_hidden_size
    rows = scale * mx.random.normal((1, 5, width), key=mx.random.key(1))
    pair.drafter.write_context(rows.astype(pair.target.dtype), context)
    for cache in context:
        cache.offset = mx.array([5], mx.int32)
    return context


def draft_of(pair, scale=1.0, block_size=8):
    """The proposal after five random rows of context."""
    return pair.drafter.draft(mx.array([4], mx.int32), block_size, context_of(pair, scale))


class Spied:
    """A drafter that remembers what it was called with and what it answered."""

    def __init__(self, drafter):
        self._drafter = drafter
        self.blocks, self.hidden = [], []

    @classmethod
    def of(cls, pair):
        """In the place of the pair's."""
        pair.drafter._drafter = cls(pair.drafter._drafter)
        return pair.drafter._drafter

    def __getattr__(self, name):
        return getattr(self._drafter, name)

    def __call__(self, x, context):
        self.blocks.append(x)
        self.hidden.append(self._drafter(x, context))
        return self.hidden[-1]
