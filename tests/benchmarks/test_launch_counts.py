"""What is counted as a launch, and what a round of a large pair comes to."""

from collections import Counter

import mlx.core as mx
import pytest
from graph import Layouts, capture
from metal_costs import Cost, costs
from qwen3 import qwen3_pair
from roofline import CHIPS, Chip, page, seconds
from round_graph import commit_by_layer, eval_weights, round_costs


def cost_of(function, *inputs: mx.array) -> list[Cost]:
    return list(costs(capture(lambda *a: [function(*a)], *inputs).primitives, Layouts()))


def launches(found: list[Cost]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for cost in found:
        counts[cost.kind] += cost.launches
    return +counts


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
    assert launches(cost_of(function, mx.zeros((2, 3, 4, 5)))) == expected


def test_bytes_and_operations():
    x, w = mx.zeros((16, 64), mx.bfloat16), mx.zeros((32, 64), mx.bfloat16)
    (product,) = (c for c in cost_of(lambda x, w: x @ w.T, x, w) if c.launches)
    assert product == Cost("Matmul", 1, 2 * (16 * 64 + 32 * 64 + 16 * 32), 2 * 16 * 32 * 64, 16)
    # A broadcast input is read once; a table is not read beyond the rows that are picked.
    (add,) = (c for c in cost_of(lambda x: x + mx.array(1.0, x.dtype), x) if c.launches)
    assert add.bytes == 2 * (16 * 64 + 1 + 16 * 64)
    found = cost_of(lambda w, i: mx.take(w, i, axis=0), w, mx.zeros(3, mx.int32))
    assert sum(c.bytes for c in found) == 3 * 4 + 2 * 2 * 3 * 64


@pytest.fixture(scope="module")
def pair():
    pair = qwen3_pair("4B", 4)
    eval_weights(pair)
    yield pair
    pair.release()


def test_round_of_qwen3_4b(pair):
    plain, fused = (round_costs(pair, 16, 1024, fused) for fused in (False, True))
    verify = launches(fused["verify"])
    # Seven products a layer, and the head.
    assert (verify["QuantizedMatmul"], verify["Attention"], verify["RoPE"]) == (7 * 36 + 1, 36, 72)
    assert verify == launches(plain["verify"])

    commit = launches(fused["commit"])
    assert commit["dflash_context_fragments_affine"] == 1
    assert (commit["QuantizedMatmul"], commit["RMSNorm"]) == (1, 1)
    assert commit["DynamicSliceUpdate"] == 2 * 2 * 5
    assert sum(commit.values()) < sum(launches(plain["commit"]).values())
    assert launches(fused["draft"])["dflash_block_heads"] == 5
    assert not any(kind.startswith("dflash") for s in plain.values() for kind in launches(s))

    # Every weight is read once: 4.0 billion of 4 bits, and a scale and a bias for 64 of them.
    weights = 4.02e9 * (4 + 32 / 64) / 8
    assert weights < sum(c.bytes for c in fused["verify"]) < 1.2 * weights
    assert sum(c.flops for c in fused["verify"]) == pytest.approx(2 * 4.02e9 * 16, rel=0.1)


def test_commit_layer_by_layer(pair):
    # fc and norm; two products, norm and RoPE a layer, and two writes of two launches each.
    assert sum(launches(commit_by_layer(pair, 16, 1024)).values()) == 2 + 5 * (2 + 1 + 1 + 2 * 2)


def test_roofline():
    chip = Chip("test", 100, 10, 1000, "made up")
    assert chip.tflops == pytest.approx(2.56)
    # Bound by memory; by arithmetic; and again, with 16 rows computed as 32.
    memory, arithmetic = Cost("a", 1, bytes=10**9), Cost("b", 1, 1, flops=256 * 10**10, rows=16)
    assert seconds([memory], chip) == pytest.approx(0.01)
    assert seconds([arithmetic, memory], chip) == pytest.approx(1.01)
    assert seconds([arithmetic], chip, tile=32) == pytest.approx(2)

    rounds = {1: {"verify": [memory]}, 4: {"verify": [memory]}, 16: {"verify": [memory] * 4}}
    text = page({"a pair": rounds}, "Conditions.")
    assert "not a measurement" in text.splitlines()[0]
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| M1 Max")]
    assert len(rows) == 3  # the chip itself, and two models
    assert rows[1][3:6] == ["0.50", "0.75", "1.00"]  # at τ of 2, 3 and 4
    assert rows[1][-2:] == ["1.00", "4.00 |"]  # a block of 4 costs one step, of 16 four
    assert all(chip.source for chip in CHIPS)
