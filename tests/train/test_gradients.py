"""The chunked gradients: against the loss's own differences, and whatever the chunks."""

from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import dequantize_model
from support.training import numbers, random_text, tiny_learner

from dflash_mlx.train.blocks import make_blocks, sample_blocks
from dflash_mlx.train.learner import Learner, Sums
from dflash_mlx.train.run import forward_dtype

OBJECTIVES = {
    "decayed cross entropy": {},
    "D-PACE": {"weighting": "dpace"},
    "distillation": {"loss": "kl", "weighting": "uniform", "temperature": 2.0},
}
DRAFTERS = {
    "full": {},
    "sliding and causal": {
        "layer_types": ("sliding_attention", "full_attention"),
        "sliding_window": 12,
        "causal_layers": (True, True),
    },
    "mask embedding, bias and softcap": {
        "has_mask_embedding": True,
        "attention_bias": True,
        "final_logit_softcapping": 5.0,
        "output_multiplier": 0.5,
        "input_embedding_scale": 2.0,
    },
    "DFlash 2": {
        "conv_kernel_size": 2,
        "conv_group_size": 8,
        "selector_rank": 6,
        # All tokens: a step must not change which are the likeliest.
        "selector_top_k": 97,
    },
}


def setup(learner, prefixes=False):
    text = random_text()
    blocks = sample_blocks(text, 8, 20, np.random.default_rng(0), prefixes)
    if learner.drafter.config.has_mask_embedding:
        # Zero, as it is built, would be scaled to any length by the norms.
        learner.drafter.mask_embedding = mx.array(numbers(5, 32))
    return learner.features(mx.array(text.tokens)), blocks, learner.parameters()


def add(learner, parameters, features, blocks):
    sums = Sums.zero()
    learner.add(parameters, features, blocks, sums)
    return sums


def loss_of(learner, parameters, features, blocks, weights):
    """The loss with the rows' weights held, whose gradient the trainer is to compute."""
    context = learner.context(parameters, features)
    hidden = learner.hidden(blocks, context)
    losses, _ = learner.losses(hidden, learner.logits(hidden), blocks, features.hidden)
    # In float32 the sum's rounding would be a percent of the smallest differences.
    return float((np.array(losses, np.float64) * np.array(weights, np.float64)).sum())


def test_small_gradients_pass_through_a_head_of_float16():
    """As of improbable tokens, of which a vocabulary has many, in rows of little weight."""
    half, full = (tiny_learner(objective={"gamma": 0.4}) for _ in range(2))
    half.target.model.set_dtype(mx.float16)
    weights = tree_map(lambda w: w.astype(mx.float32), half.target.model.parameters())
    full.target.model.update(weights)
    half = Learner(half.drafter, half.target, half.objective)
    features, blocks, parameters = setup(full)
    # The last rows alone, which weigh less than 1e-6.
    blocks = replace(blocks, active=blocks.active & (np.arange(8) == 7))
    found, expected = (add(x, parameters, features, blocks) for x in (half, full))
    assert half.target.dtype == mx.float16 and 0 < (found.weight / found.rows).item() < 1e-6
    assert mx.allclose(found.loss, expected.loss, rtol=1e-3)
    for name, wanted in expected.gradients.items():
        wrong = mx.linalg.norm(found.gradients[name] - wanted) / mx.linalg.norm(wanted)
        assert wrong < 0.01, (name, wrong)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_against_finite_differences(objective, drafter):
    # Of the biases, which begin at random and not as the rest is made here.
    mx.random.seed(0)
    learner = tiny_learner(7, OBJECTIVES[objective], **DRAFTERS[drafter])
    features, blocks, parameters = setup(learner, prefixes=True)
    hidden = learner.hidden(blocks, learner.context(parameters, features))
    _, weights = learner.losses(hidden, learner.logits(hidden), blocks, features.hidden)
    mx.eval(weights)
    gradients = add(learner, parameters, features, blocks).gradients
    assert gradients.keys() == parameters.keys()
    for seed, (name, value) in enumerate(parameters.items()):
        # Along the gradient plus noise, so that neither a zero nor a wrong sign can hide.
        direction = gradients[name] / mx.linalg.norm(gradients[name])
        noise = mx.array(numbers(seed, *value.shape))
        direction = direction + 0.5 * noise / mx.linalg.norm(noise)
        step = 2e-3 * max(mx.linalg.norm(value).item(), 1.0) / mx.linalg.norm(direction).item()

        def along(steps, name=name, value=value, move=step * direction):
            moved = parameters | {name: value + steps * move}
            return loss_of(learner, moved, features, blocks, weights)

        # The five-point rule: what the curvature leaves of the simple difference is too much.
        slope = (8 * (along(1) - along(-1)) - (along(2) - along(-2))) / (12 * step)
        expected = (gradients[name] * direction).sum().item()
        assert slope == pytest.approx(expected, rel=0.02, abs=2e-3), name


@pytest.mark.parametrize("chunk", [1, 3, 8])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_chunks_change_nothing(objective, chunk):
    whole, parts = (tiny_learner(c, OBJECTIVES[objective]) for c in (64, chunk))
    features, blocks, parameters = setup(whole)
    a, b = (add(learner, parameters, features, blocks) for learner in (whole, parts))
    for x, y in zip(a.scalars(), b.scalars(), strict=True):
        assert x.item() == pytest.approx(y.item(), rel=1e-5)
    for name in parameters:
        assert mx.allclose(a.gradients[name], b.gradients[name], rtol=1e-3, atol=1e-4), name


def test_sequences_add_up():
    learner = tiny_learner()
    features, blocks, parameters = setup(learner)
    once = add(learner, parameters, features, blocks)
    twice = add(learner, parameters, features, blocks)
    learner.add(parameters, features, blocks, twice)
    assert twice.loss.item() == pytest.approx(2 * once.loss.item(), rel=1e-6)
    for name in parameters:
        assert mx.allclose(twice.gradients[name], 2 * once.gradients[name], rtol=1e-5, atol=1e-6)


def test_the_target_is_left_alone():
    learner = tiny_learner()
    before = [mx.array(w) for _, w in tree_flatten(learner.target.model.parameters())]
    features, blocks, parameters = setup(learner)
    add(learner, parameters, features, blocks)
    after = [w for _, w in tree_flatten(learner.target.model.parameters())]
    assert all(mx.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_module_holds_the_given_parameters_afterwards():
    learner = tiny_learner()
    features, blocks, parameters = setup(learner)
    add(learner, parameters, features, blocks)
    for name, value in tree_flatten(learner.drafter.parameters()):
        assert mx.array_equal(value, parameters[name])


def test_counts():
    learner = tiny_learner()
    features, blocks, parameters = setup(learner)
    sums = add(learner, parameters, features, blocks)
    assert sums.rows.item() == blocks.active.sum()
    logits = learner.logits(learner.hidden(blocks, learner.context(parameters, features)))
    right = np.array(mx.argmax(logits, axis=-1)) == blocks.tokens[:, 1:]
    assert sums.correct.item() == (right & blocks.active[:, 1:]).sum()


def test_decay_counts_from_the_first_row_that_is_not_given():
    learner = tiny_learner()
    text = random_text()
    blocks = make_blocks(text, np.array([12, 20]), 8, np.array([1, 3], np.int32))
    features = learner.features(mx.array(text.tokens))
    hidden = learner.hidden(blocks, learner.context(learner.parameters(), features))
    _, weights = learner.losses(hidden, learner.logits(hidden), blocks, None)
    for block, given in enumerate((1, 3)):
        expected = [np.exp(-(k - given) / 4.0) if k >= given else 0.0 for k in range(1, 8)]
        assert np.array(weights[block]) == pytest.approx(expected, rel=1e-5)


def test_distillation_compares_with_the_position_before():
    """A drafter that says what the target says of each next token has no divergence."""
    learner = tiny_learner(objective={"loss": "kl"})
    text = random_text()
    blocks = make_blocks(text, np.array([12, 20]), 8)
    features = learner.features(mx.array(text.tokens))
    said = learner.target.model(mx.array(text.tokens)[None])[0]
    rows = mx.array(blocks.anchors)[:, None] + mx.arange(7)
    losses, _ = learner.losses(None, said[rows], blocks, features.hidden)
    assert mx.abs(losses).max().item() < 1e-4
    losses, _ = learner.losses(None, said[rows + 1], blocks, features.hidden)
    assert losses.min().item() > 1e-2


def test_sixteen_bit_gradients_are_near():
    exact, rounded = tiny_learner(), tiny_learner()
    rounded.dtype = mx.bfloat16
    features, blocks, parameters = setup(exact)
    expected = add(exact, parameters, features, blocks).gradients
    got = add(rounded, parameters, rounded.features(mx.array(random_text().tokens)), blocks)
    for name, value in got.gradients.items():
        assert value.dtype == mx.float32
        error = mx.linalg.norm(value - expected[name]) / mx.linalg.norm(expected[name])
        assert error.item() < 0.1, name


@pytest.mark.parametrize("target", [mx.float32, mx.bfloat16, mx.float16])
def test_gradients_of_the_largest_hidden_states(target, monkeypatch):
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    learner = tiny_learner()
    learner.dtype = forward_dtype(target)
    features, blocks, parameters = setup(learner)
    # Real targets have hidden states as large, which a float16 target can still hold.
    features = features._replace(taps=1e4 * features.taps)
    gradients = add(learner, parameters, features, blocks).gradients
    assert all(mx.isfinite(value).all() for value in gradients.values())


def test_gradients_pass_through_a_quantized_head():
    quantized, dense = tiny_learner(), tiny_learner()
    for learner in (quantized, dense):
        nn.quantize(learner.target.model.model, 32, 8, class_predicate=lambda k, m: "embed" in k)
    dense.target.model.model.embed_tokens = dequantize_model(dense.target.model).model.embed_tokens
    features, blocks, parameters = setup(dense)
    a, b = (add(learner, parameters, features, blocks).gradients for learner in (quantized, dense))
    assert isinstance(quantized.target.model.model.embed_tokens, nn.QuantizedEmbedding)
    for name in parameters:
        assert mx.allclose(a[name], b[name], rtol=1e-3, atol=1e-3), name
