"""Which way the kernels' calls go, why, and what happens where a kernel cannot be built."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from support.heads import EPS, Case, double, error, exact, exact_norm_rope, offsets, periods
from support.launches import Launches, as_on_metal
from support.pairs import tiny_drafter

from dflash_mlx.drafter.rope_config import RopeConfig
from dflash_mlx.kernels.block_heads import BlockHeads
from dflash_mlx.kernels.norm_rope import NormRope
from dflash_mlx.kernels.route import Route

SIZES = {"hidden_size": 64, "target_hidden_size": 64, "head_dim": 64}


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """As if the default device were a Metal GPU, whose launches are only counted."""
    launches = Launches()
    as_on_metal(monkeypatch)
    monkeypatch.setattr(mx.fast, "metal_kernel", launches)
    return launches


def chosen(case: Case) -> Route:
    return case.context_kv.route(case.batch * case.rows, case.dtype)


@pytest.mark.parametrize(
    ("batch", "rows", "name"),
    [
        (1, 1, "rows"),
        (1, 4, "rows"),
        (3, 1, "rows"),
        (1, 5, "fragments"),
        (3, 2, "fragments"),
        (2, 16, "fragments"),
        (3, 11, "epilogue"),
        (1, 2048, "epilogue"),
    ],
)
def test_the_positions_of_the_whole_batch_decide(metal, batch, rows, name):
    assert chosen(Case(batch=batch, rows=rows)).name == name


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("bits", [None, 4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_supported_weights(metal, monkeypatch, dtype, bits, group_size):
    case = Case(dtype, bits=bits, group_size=group_size)
    assert chosen(case).name == "rows"
    as_on_metal(monkeypatch, False)
    assert str(chosen(case)) == "plain (not on a Metal device)"


UNSUPPORTED = {
    "head size": ({"head_dim": 32}, "head_dim is 32"),
    "hidden": ({"hidden": 96}, "hidden is 96"),
    "partial rotary": ({"rotated": 64}, "RoPE turns 64 of 128"),
    "traditional": ({"batch": 3, "rows": 2, "traditional": True}, "RoPE is traditional"),
    "bias": ({"bias": True}, "bias"),
    "bits": ({"bits": 6}, "6 bits"),
    "mode": ({"bits": 4, "group_size": 32, "mode": "mxfp4"}, "mxfp4"),
}


@pytest.mark.parametrize(("sizes", "reason"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported_is_plain_and_right(metal, sizes, reason):
    case = Case(**sizes)
    route = chosen(case)
    assert route.name == "plain" and reason in route.reason
    keys, values = case.context_kv(case.c, case.offsets)
    exact_keys, exact_values = exact(case)
    assert error(keys, exact_keys)[0] < 1e-2
    assert error(values, exact_values)[0] < 1e-4
    case.context_kv.warm_up(case.dtype)
    assert metal.names == []


def test_other_layers_and_dtypes_are_plain(metal):
    case = Case()
    case.projection = nn.Sequential(case.projection)
    assert "Sequential" in chosen(case).reason
    case.context_kv.warm_up(case.dtype)
    assert metal.names == []
    for bits, dtype, reason in (
        (None, mx.float32, "weights are"),
        (4, mx.float16, "scales are"),
        (4, mx.int32, "activations are"),
    ):
        case = Case(mx.bfloat16, bits=bits)
        case.dtype = dtype
        assert reason in chosen(case).reason


def test_warm_up_runs_each_pipeline_once(metal):
    case = Case(bits=4)
    case.context_kv.warm_up(case.dtype)
    # Two pipelines of the fragments kernel, for 16 rows and for 32; and once more for all that can
    # meet the offsets of eight batch rows.
    dots, fragments, epilogue = (
        f"dflash_context_{name}" for name in ("rows_affine", "fragments_affine", "epilogue")
    )
    few = [dots, fragments, fragments, epilogue]
    assert metal.names == [*few, fragments, fragments, epilogue]


def test_kernels_that_cannot_be_built(metal):
    metal.broken = "fragments"
    case = Case(rows=7)
    context_kv = case.context_kv
    with pytest.warns(RuntimeWarning, match=r"context_fragments cannot be built.*Unable to build"):
        context_kv.warm_up(case.dtype)
    names = [context_kv.route(n, case.dtype).name for n in (4, 7, 33)]
    assert names == ["rows", "plain", "epilogue"]
    assert "context_fragments" in context_kv.route(7, case.dtype).reason
    assert error(context_kv(case.c, case.offsets)[0], exact(case)[0])[0] < 1e-2

    metal.broken = "block_heads"
    drafter = tiny_drafter(**SIZES)
    with pytest.warns(RuntimeWarning, match=r"block_heads cannot be built.*Unable to build"):
        drafter.stack_context()
    assert "block plain (the kernel block_heads cannot be built" in drafter.kernels(8)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "rotated", "traditional", "expected"),
    [
        (mx.bfloat16, 128, 128, False, "fused (one launch)"),
        (mx.float32, 64, 64, False, "fused (one launch)"),
        (mx.float32, 32, 32, False, "plain (head_dim is 32, not 64 or 128)"),
        (mx.float32, 64, 32, False, "plain (RoPE turns 32 of 64 values)"),
        (mx.float32, 64, 64, True, "plain (RoPE is traditional)"),
    ],
)
def test_block_heads(monkeypatch, dtype, head_dim, rotated, traditional, expected):
    norms = mx.random.uniform(1, 3, (2, head_dim))
    norm_rope = NormRope(periods(rotated), EPS, traditional)
    heads = BlockHeads(norms, norm_rope)
    as_on_metal(monkeypatch)
    assert str(heads.route(dtype)) == expected
    as_on_metal(monkeypatch, False)
    assert str(heads.route(dtype)) == "plain (not on a Metal device)"

    q, kv = (mx.random.normal((2, 3, n * head_dim)) for n in (4, 2))
    offset = offsets(2000, 2)
    found = heads(q, kv, offset)
    q, kv = (double(x.reshape(2, 3, -1, head_dim).transpose(0, 2, 1, 3)) for x in (q, kv))
    k, v = np.split(kv, 2, axis=1)
    for ours, x, norm in zip(found[:2], (q, k), norms, strict=True):
        assert error(ours, exact_norm_rope(x, double(norm), norm_rope, offset))[0] < 5e-3
    assert error(found[2], v)[0] == 0


def test_amplitude_scales_queries_and_keys():
    def made(amplitude: float):
        # With a factor of 1, YaRN's frequencies are the default ones.
        rope = RopeConfig(
            rope_type="yarn",
            theta=1e4,
            factor=1.0,
            attention_factor=amplitude,
            traditional=False,
            original_max_position_embeddings=4096,
            beta_fast=32.0,
            beta_slow=1.0,
        )
        drafter = tiny_drafter(rope=rope)
        drafter.stack_context()
        offset, x = mx.array([7]), mx.random.normal((1, 3, 32), key=mx.random.key(0))
        attention = drafter.layers[1].self_attn
        block = attention.block_heads(attention.q_proj(x), attention.kv_proj(x), offset)
        return drafter.context_kv(x, offset), block

    (keys, values), (queries, own, _) = made(1.0)
    (scaled_keys, scaled_values), (scaled_queries, scaled_own, _) = made(1.25)
    for scaled, plain in ((scaled_keys, keys), (scaled_queries, queries), (scaled_own, own)):
        assert mx.allclose(scaled, 1.25 * plain, rtol=1e-5, atol=1e-5)
    assert mx.array_equal(scaled_values, values)
