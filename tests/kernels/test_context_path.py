"""Which way the context K/V are computed, why, and what happens where a kernel cannot be built."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from support.heads import EPS, THETA, Case, error, exact
from support.launches import Launches

from dflash_mlx.drafter.context import ContextProjection
from dflash_mlx.drafter.rope import RoPE
from dflash_mlx.drafter.rope_config import RopeConfig
from dflash_mlx.kernels import context_kv as module
from dflash_mlx.kernels.context_kv import choose_path, context_kv, warm_up
from dflash_mlx.kernels.path import Path


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the default device were a Metal GPU."""
    monkeypatch.setattr(module, "on_metal", lambda: True)


def chosen(case: Case, traditional: bool = False) -> Path:
    rows = case.batch * case.rows
    return choose_path(rows, case.dtype, case.projection, case.k_norm, case.periods, traditional)


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
def test_rows_of_the_whole_batch_decide(metal, batch, rows, name):
    assert chosen(Case(batch=batch, rows=rows)).name == name


def test_plain_off_metal(monkeypatch):
    monkeypatch.setattr(module, "on_metal", lambda: False)
    assert str(chosen(Case())) == "plain (not on a Metal device)"


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("bits", [None, 4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_supported_weights(metal, dtype, bits, group_size):
    assert chosen(Case(dtype, bits=bits, group_size=group_size)).name == "rows"


UNSUPPORTED = {
    "head size": ({"head_dim": 32}, "head_dim is 32"),
    "hidden": ({"hidden": 96}, "hidden is 96"),
    "partial rotary": ({"rotated": 64}, "RoPE turns 64 of 128"),
    "bias": ({"bias": True}, "bias"),
    "bits": ({"bits": 6}, "6 bits"),
    "mode": ({"bits": 4, "group_size": 32, "mode": "mxfp4"}, "mxfp4"),
}


@pytest.mark.parametrize(("sizes", "reason"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported_is_plain_and_right(metal, sizes, reason):
    case = Case(**sizes)
    path = chosen(case)
    assert path.name == "plain"
    assert reason in path.reason
    keys, values = context_kv(*case.arguments, eps=EPS)
    exact_keys, exact_values = exact(case)
    assert error(keys, exact_keys)[0] < 1e-2
    assert error(values, exact_values)[0] < 1e-4


def test_traditional_is_plain_and_right(metal):
    case = Case(batch=3, rows=2)
    assert str(chosen(case, traditional=True)) == "plain (RoPE is traditional)"
    keys, _ = context_kv(*case.arguments, eps=EPS, traditional=True)
    assert error(keys, exact(case, traditional=True)[0])[0] < 1e-2


def test_other_layers_and_dtypes_are_plain(metal):
    case = Case()
    case.projection = nn.Sequential(case.projection)
    assert "Sequential" in chosen(case).reason
    case = Case(mx.bfloat16)
    case.dtype = mx.float32
    assert "weights are" in chosen(case).reason
    case = Case(mx.bfloat16, bits=4)
    case.dtype = mx.float16
    assert "scales are" in chosen(case).reason
    case.dtype = mx.int32
    assert "activations are" in chosen(case).reason


def warmed(case: Case) -> frozenset[str]:
    return warm_up(case.dtype, case.projection, case.k_norm, case.periods, eps=EPS)


def test_warm_up_runs_each_pipeline_once(metal, monkeypatch):
    launches = Launches()
    monkeypatch.setattr(mx.fast, "metal_kernel", launches)
    assert warmed(Case(bits=4)) == frozenset()
    # Two pipelines of the fragments kernel, for 16 rows and for 32; and once more for all that can
    # meet the offsets of eight batch rows.
    dots, fragments, epilogue = (
        f"dflash_context_{name}" for name in ("rows_affine", "fragments_affine", "epilogue")
    )
    few = [dots, fragments, fragments, epilogue]
    assert launches.names == [*few, fragments, fragments, epilogue]


def test_warm_up_does_nothing_where_plain_runs(monkeypatch):
    launches = Launches()
    monkeypatch.setattr(mx.fast, "metal_kernel", launches)
    monkeypatch.setattr(module, "on_metal", lambda: False)
    assert warmed(Case()) == frozenset()
    monkeypatch.setattr(module, "on_metal", lambda: True)
    assert warmed(Case(head_dim=32)) == frozenset()
    assert launches.names == []


def test_kernel_that_cannot_be_built(metal, monkeypatch):
    launches = Launches(broken="fragments")
    monkeypatch.setattr(mx.fast, "metal_kernel", launches)
    case = Case(rows=7)
    projection = ContextProjection(case.projection, case.k_norm, EPS, rope(case))
    with pytest.warns(RuntimeWarning, match=r"context_fragments cannot be built.*Unable to build"):
        projection.warm_up(case.dtype)
    assert projection.path(4, case.dtype).name == "rows"
    assert projection.path(33, case.dtype).name == "epilogue"
    path = projection.path(7, case.dtype)
    assert path.name == "plain"
    assert "context_fragments" in path.reason
    keys, _ = projection(case.c, case.offsets)
    assert error(keys, exact(case)[0])[0] < 1e-2


def test_amplitude_scales_the_keys():
    case = Case(rows=3)
    plain, scaled = (
        ContextProjection(case.projection, case.k_norm, EPS, rope(case, amplitude))
        for amplitude in (1.0, 1.25)
    )
    keys, values = plain(case.c, case.offsets)
    scaled_keys, scaled_values = scaled(case.c, case.offsets)
    assert mx.allclose(scaled_keys, 1.25 * keys, rtol=1e-5, atol=1e-5)
    assert mx.array_equal(scaled_values, values)


def rope(case: Case, amplitude: float = 1.0) -> RoPE:
    # With a factor of 1, YaRN's frequencies are the default ones.
    config = RopeConfig(
        rope_type="yarn",
        theta=THETA,
        factor=1.0,
        attention_factor=amplitude,
        traditional=False,
        original_max_position_embeddings=4096,
        beta_fast=32.0,
        beta_slow=1.0,
    )
    return RoPE(case.head_dim, config)
