"""Losses and weights against NumPy, in float64 and one number at a time."""

import mlx.core as mx
import numpy as np
import pytest
from support.pairs import tiny_selector
from support.training import numbers

from dflash_mlx.errors import UserError
from dflash_mlx.train.losses import (
    Objective,
    candidates_with,
    cross_entropy,
    default_gamma,
    divergence,
    dpace_weights,
    selector_loss,
)

ACTIVE = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 1, 0, 1]], bool)
GIVEN = np.array([0, 2, 0, 0])
K, VOCAB = 4, 97


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def weights(**objective):
    ones = mx.zeros(ACTIVE.shape)
    made = Objective(**({"gamma": 4.0} | objective))
    return np.array(made.weights(ones, mx.array(GIVEN), mx.array(ACTIVE)))


def test_cross_entropy():
    logits, tokens = numbers(0, 4, 5, 9) * 3, np.random.default_rng(1).integers(0, 9, (4, 5))
    got = np.array(cross_entropy(mx.array(logits), mx.array(tokens)))
    for at in np.ndindex(4, 5):
        p = softmax(logits[at].astype(np.float64))[tokens[at]]
        assert got[at] == pytest.approx(-np.log(p), rel=1e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_divergence(temperature):
    q, p = (numbers(seed, 4, 5, 9).astype(np.float64) * 3 for seed in (0, 1))
    got = np.array(divergence(mx.array(q, mx.float32), mx.array(p, mx.float32), temperature))
    for at in np.ndindex(4, 5):
        a, b = softmax(p[at] / temperature), softmax(q[at] / temperature)
        expected = temperature**2 * (a * np.log(a / b)).sum()
        assert got[at] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_divergence_of_equals_is_zero_and_its_gradient_too():
    logits = mx.array(numbers(0, 9))
    loss, gradient = mx.value_and_grad(lambda q: divergence(q, logits, 2.0))(logits)
    assert abs(loss.item()) < 1e-6 and mx.abs(gradient).max().item() < 1e-6


@pytest.mark.parametrize("alpha", [0.3, 0.5, 1.0])
def test_dpace_weights(alpha):
    ce = np.abs(numbers(3, *ACTIVE.shape)) * 2
    got = np.array(dpace_weights(mx.array(ce), mx.array(ACTIVE), alpha))
    confidence = np.where(ACTIVE, (1 - alpha) * np.exp(-ce) + alpha, 1.0)
    for i, j in np.ndindex(ACTIVE.shape):
        terms = [confidence[i, : m + 1].prod() * ACTIVE[i, m] for m in range(j, ACTIVE.shape[1])]
        assert got[i, j] == pytest.approx(sum(terms) * ACTIVE[i, j], rel=1e-5)


def test_dpace_without_smoothing_is_the_gradient_of_the_expected_accepted_length():
    def expected_length(log_q):
        return mx.cumprod(mx.exp(log_q)).sum()

    log_q = -mx.abs(mx.array(numbers(4, 6)))
    found = dpace_weights(-log_q[None], mx.ones((1, 6), mx.bool_), 0.0)[0]
    assert mx.allclose(found, mx.grad(expected_length)(log_q), rtol=1e-5)


def test_no_gradient_passes_through_the_weights():
    def total(ce):
        return dpace_weights(ce, mx.array(ACTIVE), 0.5).sum()

    assert not mx.grad(total)(mx.array(numbers(0, *ACTIVE.shape))).any().item()


def test_decay_begins_anew_after_what_is_given_and_uniform_weights_do_not():
    decayed = np.exp(-(np.arange(5) - GIVEN[:, None]) / 4.0) * ACTIVE
    assert weights() == pytest.approx(decayed, rel=1e-6)
    assert weights(weighting="uniform").tolist() == ACTIVE.tolist()


def test_gamma_of_the_paper():
    assert [default_gamma(b) for b in (16, 10, 8)] == [7, 5, 4]
    assert 0 < default_gamma(2) < default_gamma(4) < 4 and default_gamma(32) == 7


@pytest.mark.parametrize(
    "field, value", [("gamma", 0.0), ("alpha", 0.0), ("alpha", 1.5), ("temperature", -1.0)]
)
def test_values_out_of_range(field, value):
    with pytest.raises(UserError, match=rf"{field}` must.*{value}"):
        weights(**{field: value})


def test_the_weakest_candidate_makes_room():
    logits = mx.array([[5.0, 1.0, 4.0, 3.0, 2.0, 0.0]] * 2)
    ids = candidates_with(logits, mx.array([2, 5]), 3)
    assert [sorted(row) for row in ids.tolist()] == [[0, 2, 3], [0, 2, 5]]


def test_selector_loss():
    selector = tiny_selector(VOCAB, K)
    hidden, logits = numbers(0, 3, 5, 32), numbers(1, 3, 5, VOCAB) * 3
    tokens = np.random.default_rng(2).integers(0, VOCAB, (3, 6))
    # Some of the text's tokens are among the likeliest.
    tokens[:, 2] = logits[:, 1].argmax(axis=-1)
    got = selector_loss(selector, *map(mx.array, (hidden, logits, tokens)))
    before, after = (
        np.array(book.weight, np.float64)
        for book in (selector.predecessor_codebook, selector.successor_codebook)
    )
    gates = hidden.astype(np.float64) @ np.array(selector.hidden_projection.weight).T
    for n, j in np.ndindex(3, 5):
        right = tokens[n, j + 1]
        best = np.argsort(-logits[n, j])[:K].tolist()
        if right not in best:
            best[-1] = right
        row = before[tokens[n, j]] * gates[n, j]
        scores = np.array([logits[n, j, c] + row @ after[c] for c in best])
        expected = -np.log(softmax(scores)[best.index(right)])
        assert got[n, j].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
