"""Losses and weights against NumPy, in float64 and one number at a time."""

import mlx.core as mx
import numpy as np
import pytest
from support.training import numbers

from dflash_mlx.errors import UserError
from dflash_mlx.train.losses import (
    Objective,
    cross_entropy,
    default_gamma,
    divergence,
    dpace_weights,
)

ACTIVE = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 1, 0, 1]], bool)
GIVEN = np.array([0, 2, 0, 0])


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def test_cross_entropy():
    logits, tokens = numbers(0, 4, 5, 9) * 3, np.random.default_rng(1).integers(0, 9, (4, 5))
    got = np.array(cross_entropy(mx.array(logits), mx.array(tokens)))
    for i in range(4):
        for j in range(5):
            p = softmax(logits[i, j].astype(np.float64))[tokens[i, j]]
            assert got[i, j] == pytest.approx(-np.log(p), rel=1e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_divergence(temperature):
    q, p = (numbers(seed, 4, 5, 9).astype(np.float64) * 3 for seed in (0, 1))
    got = np.array(divergence(mx.array(q, mx.float32), mx.array(p, mx.float32), temperature))
    for i in range(4):
        for j in range(5):
            a, b = softmax(p[i, j] / temperature), softmax(q[i, j] / temperature)
            expected = temperature**2 * sum(x * np.log(x / y) for x, y in zip(a, b, strict=True))
            assert got[i, j] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_divergence_of_equals_is_zero_and_its_gradient_too():
    logits = mx.array(numbers(0, 9))
    loss, gradient = mx.value_and_grad(lambda q: divergence(q, logits, 2.0))(logits)
    assert abs(loss.item()) < 1e-6 and mx.abs(gradient).max().item() < 1e-6


@pytest.mark.parametrize("alpha", [0.3, 0.5, 1.0])
def test_dpace_weights(alpha):
    ce = np.abs(numbers(3, *ACTIVE.shape)) * 2
    got = np.array(dpace_weights(mx.array(ce), mx.array(ACTIVE), alpha))
    for i, row in enumerate(ACTIVE):
        for j in range(len(row)):
            expected = 0.0
            for m in range(j, len(row)):
                product = 1.0
                for k in range(m + 1):
                    product *= (1 - alpha) * np.exp(-ce[i, k]) + alpha if row[k] else 1.0
                expected += product * row[m]
            assert got[i, j] == pytest.approx(expected * row[j], rel=1e-5)


def test_dpace_without_smoothing_is_the_gradient_of_the_expected_accepted_length():
    def expected_length(log_q: mx.array) -> mx.array:
        return mx.cumprod(mx.exp(log_q)).sum()

    log_q = -mx.abs(mx.array(numbers(4, 6)))
    weights = dpace_weights(-log_q[None], mx.ones((1, 6), mx.bool_), 0.0)[0]
    assert mx.allclose(weights, mx.grad(expected_length)(log_q), rtol=1e-5)


def test_no_gradient_passes_through_the_weights():
    def total(ce: mx.array) -> mx.array:
        return dpace_weights(ce, mx.array(ACTIVE), 0.5).sum()

    assert not mx.grad(total)(mx.array(numbers(0, *ACTIVE.shape))).any().item()


def test_decay_begins_anew_after_the_given_rows():
    weights = Objective(gamma=4.0).weights(
        mx.zeros(ACTIVE.shape), mx.array(GIVEN), mx.array(ACTIVE)
    )
    for i, row in enumerate(ACTIVE):
        expected = [np.exp(-(j - GIVEN[i]) / 4.0) * row[j] for j in range(len(row))]
        assert np.array(weights[i]) == pytest.approx(expected, rel=1e-6)


def test_uniform_weights():
    weights = Objective(gamma=1.0, weighting="uniform").weights(
        mx.zeros(ACTIVE.shape), mx.array(GIVEN), mx.array(ACTIVE)
    )
    assert np.array(weights).tolist() == ACTIVE.tolist()


def test_gamma_of_the_paper():
    assert [default_gamma(b) for b in (16, 10, 8)] == [7, 5, 4]
    assert 0 < default_gamma(2) < default_gamma(4) < 4 and default_gamma(32) == 7


@pytest.mark.parametrize(
    "field, value",
    [
        ("loss", "mse"),
        ("weighting", "none"),
        ("gamma", 0.0),
        ("alpha", 0.0),
        ("alpha", 1.5),
        ("temperature", -1.0),
    ],
)
def test_values_out_of_range(field, value):
    with pytest.raises(UserError, match=str(value)):
        Objective(**({"gamma": 4.0} | {field: value}))
