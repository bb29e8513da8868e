"""Frequencies of the rotary embedding against the published formulas, written out anew."""

import math

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.drafter.rope import inverse_frequencies
from dflash_mlx.drafter.rope_config import RopeConfig


def yarn(dims: int, theta: float, factor: float, trained: int, fast: float, slow: float) -> list:
    """transformers' ``_compute_yarn_parameters``, one plane at a time, in float64."""

    def correction(rotations: float) -> float:
        return dims * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    # Its bound is the number of dimensions, although there are half as many planes.
    low, high = max(math.floor(correction(fast)), 0), min(math.ceil(correction(slow)), dims - 1)
    if low == high:
        high += 0.001
    frequencies = []
    for plane in range(dims // 2):
        kept = 1 - min(max((plane - low) / (high - low), 0), 1)
        frequency = theta ** (-2 * plane / dims)
        frequencies.append(frequency / factor * (1 - kept) + frequency * kept)
    return frequencies


@pytest.mark.parametrize(
    ("dims", "theta", "factor", "trained", "fast", "slow"),
    [
        (64, 1e6, 4.0, 32768, 32.0, 1.0),
        # The slow bound lies beyond the last plane, and in the second case beyond all dimensions.
        (64, 1e4, 8.0, 131_072, 32.0, 1.0),
        (32, 10.0, 8.0, 131_072, 32.0, 1.0),
        # The fast bound lies before the first plane.
        (64, 1e6, 4.0, 64, 32.0, 1.0),
        # Both are the same.
        (16, 1e6, 4.0, 32768, 1.2, 1.1),
    ],
)
def test_yarn(
    dims: int, theta: float, factor: float, trained: int, fast: float, slow: float
) -> None:
    rope = RopeConfig(
        rope_type="yarn",
        theta=theta,
        factor=factor,
        attention_factor=1.0,
        traditional=False,
        original_max_position_embeddings=trained,
        beta_fast=fast,
        beta_slow=slow,
    )
    found = inverse_frequencies(dims, rope)
    assert found.dtype == mx.float32
    # float32's powers; a bound that is one plane off moves frequencies by percents.
    np.testing.assert_allclose(
        np.array(found), yarn(dims, theta, factor, trained, fast, slow), rtol=1e-5
    )
