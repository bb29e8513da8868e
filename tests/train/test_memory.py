"""The logits of all of a sequence's blocks never exist at one time."""

import mlx.core as mx
import numpy as np
from support.pairs import tiny_drafter
from support.tiny import tiny_model
from support.training import random_text

from dflash_mlx.target.target import Target
from dflash_mlx.train.blocks import sample_blocks
from dflash_mlx.train.learner import Learner, Sums
from dflash_mlx.train.losses import Objective

VOCAB, BLOCKS, ROWS = 20_000, 24, 7


def peak(chunk_blocks: int, loss: str) -> float:
    """Bytes beyond those before, at the worst moment of a sequence's gradients."""
    drafter = tiny_drafter(vocab_size=VOCAB)
    model = tiny_model("llama", vocab_size=VOCAB)
    target = Target(model, drafter.config.target_layer_ids)
    learner = Learner(drafter, target, Objective(4.0, loss=loss), chunk_blocks)
    text = random_text()
    blocks = sample_blocks(text, 8, BLOCKS, np.random.default_rng(0))
    assert len(blocks) == BLOCKS
    features, parameters = learner.features(mx.array(text.tokens)), learner.parameters()
    mx.eval(parameters)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    learner.add(parameters, features, blocks, Sums.zero())
    return mx.get_peak_memory() - before


def test_memory_is_that_of_a_chunk():
    logits = BLOCKS * ROWS * VOCAB * 4
    for loss, copies in (("ce", 4), ("kl", 8)):
        whole, part = peak(BLOCKS, loss), peak(2, loss)
        assert whole > 2 * logits
        assert part < copies * logits * 2 / BLOCKS + 3e6, (loss, part)
