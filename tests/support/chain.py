"""A target whose text a test can write: every token has one fixed successor."""

from collections.abc import Sequence
from itertools import pairwise

import mlx.core as mx
import mlx.nn as nn

from support.tiny import tiny_model


def chain_model(tokens: Sequence[int], vocab: int) -> nn.Module:
    """A llama that goes on with ``tokens``, all different, after the first of them; then repeats.

    Its layers add nothing to the embeddings, which are unit vectors; the head moves each to its
    successor.
    """
    assert len(set(tokens)) == len(tokens), "a token can have one successor only"
    width = -(-vocab // 8) * 8
    model = tiny_model(
        vocab_size=vocab,
        hidden_size=width,
        num_hidden_layers=1,
        head_dim=8,
        tie_word_embeddings=False,
    )
    for layer in model.layers:
        layer.self_attn.o_proj.weight = mx.zeros_like(layer.self_attn.o_proj.weight)
        layer.mlp.down_proj.weight = mx.zeros_like(layer.mlp.down_proj.weight)
    head = mx.zeros((vocab, width))
    for token, successor in pairwise([*tokens, tokens[0]]):
        head[successor, token] = 1.0
    model.model.embed_tokens.weight = mx.eye(vocab, width)
    model.model.norm.weight = mx.ones((width,))
    model.lm_head.weight = head
    mx.eval(model.parameters())
    return model
