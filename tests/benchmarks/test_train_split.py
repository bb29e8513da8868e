"""The split of a training step: its parts, and the operations that they are compared with."""

import numpy as np
import train
from support.training import random_text, tiny_learner

from dflash_mlx.train.blocks import sample_blocks


def test_parts_make_up_the_step():
    learner, text = tiny_learner(), random_text()
    blocks = sample_blocks(text, 8, 6, np.random.default_rng(0))
    parts = train.measure(learner, text, blocks, repeats=1)
    step = parts.pop("step")
    assert set(parts) == {"target forward", "drafter", "head loss", "update"}
    assert abs(sum(parts.values()) - step) < 1e-9


def test_operations_are_those_of_the_shapes():
    learner, text = tiny_learner(), random_text()
    blocks = sample_blocks(text, 8, 6, np.random.default_rng(0))
    counted = train.operations(learner, len(text.tokens), blocks)
    rows, context = 6 * 8, len(text.tokens)
    # Width 32: four query and two key/value heads of 8, an MLP of 48, two taps, two layers.
    projections = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)
    attention = 2 * 4 * rows * (blocks.anchors.mean() + 8) * 32
    taps = 64 * 32 + 2 * 2 * 32 * 16
    assert counted["drafter"] == 6 * rows * projections + 3 * attention + 8 * context * taps
    assert counted["head loss"] == 4 * (rows - 6) * 97 * 32
    target = 3 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)
    assert counted["target forward"] == 2 * context * target


def test_softmax_and_swiglu_are_timed_for_every_part_with_products():
    learner, text = tiny_learner(), random_text()
    blocks = sample_blocks(text, 8, 6, np.random.default_rng(0))
    timed = train.pointwise_seconds(learner, len(text.tokens), blocks, repeats=1)
    assert timed.keys() == train.operations(learner, len(text.tokens), blocks).keys()
    assert all(seconds > 0 for seconds in timed.values())
