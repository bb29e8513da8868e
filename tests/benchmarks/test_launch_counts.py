"""What is counted as a launch, and what a round of a large pair comes to."""

from collections import Counter

import mlx.core as mx
import pytest
from graph import capture, launches
from launches import round_launches
from qwen3 import qwen3_pair


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.transpose(0, 2, 1, 3)[:, 1:], {}),
        (lambda x: x.reshape(2, 3, 20), {}),
        (lambda x: x.transpose(0, 2, 1, 3).reshape(2, 4, 15), {"Reshape": 1}),
        (lambda x: mx.split(x, 3, axis=1)[1].squeeze(1), {}),
        (lambda x: mx.concatenate([x, x[:, :1]], axis=1), {"Concatenate": 2}),
        (lambda x: mx.slice_update(x, x[:, :1], mx.array([1]), (1,)), {"DynamicSliceUpdate": 2}),
        (lambda x: mx.fast.rms_norm(x, None, 1e-5), {"RMSNorm": 1}),
        (lambda x: mx.concatenate([x[:, :, :0], x[:, :, :0]]), {}),
    ],
)
def test_views_and_launches(function, expected):
    graph = capture(lambda x: [function(x)], mx.zeros((2, 3, 4, 5)))
    assert launches(graph.primitives, {}) == expected


def test_round_of_qwen3_4b():
    with qwen3_pair("4B", 4) as pair:
        plain, fused = (round_launches(pair, 16, 1024, fused) for fused in (False, True))
        step = round_launches(pair, 1, 1024, True)
    verify, commit = fused["verify"], fused["commit"]
    # Seven products a layer, and the head.
    assert (verify["QuantizedMatmul"], verify["Attention"], verify["RoPE"]) == (7 * 36 + 1, 36, 72)
    assert verify == plain["verify"]
    assert step["verify"]["QuantizedMatmul"] == 7 * 36 + 1 and not step["draft"] + step["commit"]

    assert commit["dflash_context_fragments_affine"] == 1
    assert (commit["QuantizedMatmul"], commit["RMSNorm"]) == (1, 1)
    assert commit["DynamicSliceUpdate"] == 2 * 2 * 5
    assert (plain["commit"].total(), commit.total()) == (28, 23)
    assert fused["draft"]["dflash_block_heads"] == 5
    kinds = sum(plain.values(), Counter())
    assert not any(kind.startswith("dflash") for kind in kinds)
