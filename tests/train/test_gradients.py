"""The chunked gradients: against the loss's own differences, whatever the chunks; their memory."""

from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import dequantize_model
from support.training import (
    DRAFTERS,
    encode,
    logits_of,
    numbers,
    random_text,
    sums_of,
    tiny_learner,
)
from support.variants import DFLASH2

from dflash_mlx.train.blocks import make_blocks, sample_blocks
from dflash_mlx.train.training import forward_dtype

OBJECTIVES = {
    "decayed cross entropy": {},
    "D-PACE": {"weighting": "dpace"},
    "distillation": {"loss": "kl", "weighting": "uniform", "temperature": 2.0},
}
DIFFERENTIATED = {
    name: DRAFTERS[name]
    for name in ("full", "sliding by row", "mask embedding, bias and scales", "adapter")
}
# All tokens are candidates: a step must not change which are the likeliest.
DIFFERENTIATED["DFlash 2"] = DFLASH2 | {"selector_rank": 6, "selector_top_k": 97}


def case(learner, prefixes=False):
    """Parameters, a text as the target has it, and blocks of it."""
    text = random_text()
    blocks = sample_blocks(text, 8, 20, np.random.default_rng(0), prefixes)
    return learner.parameters(), encode(learner, text), blocks


def losses_of(learner, encoding, blocks):
    hidden = learner.hidden(blocks, learner.context(encoding.features))
    return learner.losses(hidden, learner.logits(hidden), blocks, encoding.hidden)


def wrong(found, expected):
    """The largest error of a gradient, relative to its length."""
    return max(
        (mx.linalg.norm(found[name] - x) / mx.linalg.norm(x)).item() for name, x in expected.items()
    )


@pytest.mark.parametrize("drafter", DIFFERENTIATED)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_against_finite_differences(objective, drafter):
    # Of the biases, which begin at random and not as the rest is made here.
    mx.random.seed(0)
    learner = tiny_learner(7, OBJECTIVES[objective], **DIFFERENTIATED[drafter])
    parameters, encoding, blocks = case(learner, prefixes=True)
    weights = np.array(losses_of(learner, encoding, blocks)[1], np.float64)
    gradients = sums_of(learner, parameters, encoding, blocks).gradients
    assert gradients.keys() == parameters.keys()
    for seed, (name, value) in enumerate(parameters.items()):
        # Along the gradient plus noise, so that neither a zero nor a wrong sign can hide.
        direction = gradients[name] / mx.linalg.norm(gradients[name])
        noise = mx.array(numbers(seed, *value.shape))
        direction = direction + 0.5 * noise / mx.linalg.norm(noise)
        step = 2e-3 * max(mx.linalg.norm(value).item(), 1.0) / mx.linalg.norm(direction).item()

        def along(steps, name=name, value=value, move=step * direction):
            """The loss there, with the positions' weights held."""
            learner.use(parameters | {name: value + steps * move})
            losses, _ = losses_of(learner, encoding, blocks)
            # In float32 the sum's rounding would be a percent of the smallest differences.
            return float((np.array(losses, np.float64) * weights).sum())

        # The five-point rule: what the curvature leaves of the simple difference is too much.
        slope = (8 * (along(1) - along(-1)) - (along(2) - along(-2))) / (12 * step)
        expected = (gradients[name] * direction).sum().item()
        assert slope == pytest.approx(expected, rel=0.02, abs=2e-3), name


@pytest.mark.parametrize("chunk", [1, 3, 8])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_chunks_change_nothing(objective, chunk):
    whole, parts = (tiny_learner(c, OBJECTIVES[objective]) for c in (64, chunk))
    given = case(whole)
    a, b = (sums_of(learner, *given) for learner in (whole, parts))
    assert mx.allclose(a.scalars, b.scalars, rtol=1e-5)
    for name in a.gradients:
        assert mx.allclose(a.gradients[name], b.gradients[name], rtol=1e-3, atol=1e-4), name


def test_sequences_add_up_and_the_parameters_and_the_target_stay():
    learner = tiny_learner()
    before = dict(tree_flatten(learner.target.model.parameters()))
    given = case(learner)
    once, twice = (sums_of(learner, *given, times=times) for times in (1, 2))
    assert mx.allclose(twice.scalars, 2 * once.scalars, rtol=1e-6)
    assert wrong(twice.gradients, {k: 2 * v for k, v in once.gradients.items()}) < 1e-5
    for expected, module in ((before, learner.target.model), (given[0], learner.drafter)):
        for name, value in tree_flatten(module.parameters()):
            assert mx.array_equal(value, expected[name]), name


def test_counts():
    learner = tiny_learner()
    parameters, encoding, blocks = case(learner)
    _, _, positions, correct = sums_of(learner, parameters, encoding, blocks).scalars.tolist()
    right = (
        np.array(mx.argmax(logits_of(learner, encoding, blocks), axis=-1)) == blocks.tokens[:, 1:]
    )
    assert positions == blocks.active.sum()
    assert correct == (right & blocks.active[:, 1:]).sum()


def test_decay_counts_from_the_first_position_that_is_not_given():
    learner, text = tiny_learner(), random_text()
    blocks = make_blocks(text, np.array([12, 20]), 8, np.array([1, 3], np.int32))
    _, weights = losses_of(learner, encode(learner, text), blocks)
    for block, given in enumerate((1, 3)):
        expected = [np.exp(-(k - given) / 4.0) if k >= given else 0.0 for k in range(1, 8)]
        assert np.array(weights[block]) == pytest.approx(expected, rel=1e-5)


def test_distillation_compares_with_the_position_before():
    """A drafter that says what the target says of each next token has no divergence."""
    learner, text = tiny_learner(objective={"loss": "kl"}), random_text()
    blocks = make_blocks(text, np.array([12, 20]), 8)
    hidden = encode(learner, text).hidden
    said = learner.target.model(mx.array(text.tokens)[None])[0]
    at = mx.array(blocks.anchors)[:, None] + mx.arange(7)
    same, other = (learner.losses(None, said[i], blocks, hidden)[0] for i in (at, at + 1))
    assert mx.abs(same).max().item() < 1e-4 and other.min().item() > 1e-2


def test_small_gradients_pass_through_a_head_of_float16():
    """As of improbable tokens, of which a vocabulary has many, in positions of little weight."""
    half, full = (
        tiny_learner(objective={"gamma": 0.4}, target_dtype=dtype)
        for dtype in (mx.float16, mx.float32)
    )
    weights = tree_map(lambda w: w.astype(mx.float32), half.target.model.parameters())
    full.target.model.update(weights)
    parameters, encoding, blocks = case(full)
    # The last positions alone, which weigh less than 1e-6.
    blocks = replace(blocks, active=blocks.active & (np.arange(8) == 7))
    found, expected = (sums_of(x, parameters, encoding, blocks) for x in (half, full))
    loss, weight, positions, _ = found.scalars.tolist()
    assert half.target.dtype == mx.float16 and 0 < weight / positions < 1e-6
    assert loss == pytest.approx(expected.scalars[0].item(), rel=1e-3)
    assert wrong(found.gradients, expected.gradients) < 0.01


def test_sixteen_bit_gradients_are_near():
    exact, rounded = tiny_learner(), tiny_learner(dtype=mx.bfloat16)
    parameters, encoding, blocks = case(exact)
    expected = sums_of(exact, parameters, encoding, blocks).gradients
    found = sums_of(rounded, parameters, encode(rounded, random_text()), blocks).gradients
    assert {value.dtype for value in found.values()} == {mx.float32}
    assert 0 < wrong(found, expected) < 0.1


@pytest.mark.parametrize("target", [mx.float32, mx.bfloat16, mx.float16])
def test_gradients_of_the_largest_hidden_states(target, monkeypatch):
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    learner = tiny_learner(dtype=forward_dtype(target))
    parameters, encoding, blocks = case(learner)
    # Real targets have hidden states as large, which a float16 target can still hold.
    encoding = encoding._replace(features=1e4 * encoding.features)
    gradients = sums_of(learner, parameters, encoding, blocks).gradients
    assert all(mx.isfinite(value).all() for value in gradients.values())


def test_gradients_pass_through_a_quantized_head():
    quantized, dense = tiny_learner(), tiny_learner()
    for learner in (quantized, dense):
        nn.quantize(learner.target.model.model, 32, 8, class_predicate=lambda k, m: "embed" in k)
    dense.target.model.model.embed_tokens = dequantize_model(dense.target.model).model.embed_tokens
    given = case(dense)
    found, expected = (sums_of(learner, *given).gradients for learner in (quantized, dense))
    assert isinstance(quantized.target.model.model.embed_tokens, nn.QuantizedEmbedding)
    assert wrong(found, expected) < 1e-3


@pytest.mark.parametrize("loss, copies", [("ce", 4), ("kl", 8)])
def test_memory_is_that_of_a_chunk(loss, copies):
    """The logits of all of a sequence's blocks never exist at one time."""
    vocab, count = 20_000, 24
    logits = count * 7 * vocab * 4

    def peak(chunk_blocks):
        """Bytes beyond those before, at the worst moment of a sequence's gradients."""
        learner = tiny_learner(chunk_blocks, {"loss": loss}, vocab_size=vocab)
        text = random_text()
        blocks = sample_blocks(text, 8, count, np.random.default_rng(0))
        assert len(blocks) == count
        given = learner.parameters(), encode(learner, text), blocks
        mx.eval(given[0])
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        sums_of(learner, *given)
        return mx.get_peak_memory() - before

    assert peak(count) > 2 * logits
    assert peak(2) < copies * logits * 2 / count + 3e6
