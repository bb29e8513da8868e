"""The context K/V kernels' own source, run and compared with float64 and with unfused MLX."""

import mlx.core as mx
import pytest
from metal_harness import Metal
from support.heads import Case, assert_as_exact, exact, unfused

pytestmark = pytest.mark.metal

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
FARTHEST = 131_072

# Each entry is a set of pipelines that must be compiled, so the entries vary dtype, head size,
# width, bits and group size at once; the rows vary within.
WEIGHTS = {
    "f32": {"dtype": F32, "head_dim": 128, "hidden": 512},
    "f16": {"dtype": F16, "head_dim": 64, "hidden": 2560, "layers": 1},
    "bf16": {"dtype": BF16, "head_dim": 128, "hidden": 4096, "layers": 1, "kv_heads": 1},
    "bf16-4-64": {"dtype": BF16, "head_dim": 128, "hidden": 576, "bits": 4, "group_size": 64},
    "f16-4-32": {"dtype": F16, "head_dim": 64, "hidden": 1024, "bits": 4, "group_size": 32},
    "f32-4-128": {"dtype": F32, "head_dim": 64, "hidden": 768, "bits": 4, "group_size": 128},
    "f32-8-64": {"dtype": F32, "head_dim": 128, "hidden": 512, "bits": 8, "group_size": 64},
    "f16-8-128": {"dtype": F16, "head_dim": 128, "hidden": 1024, "bits": 8, "group_size": 128},
    "bf16-8-32": {"dtype": BF16, "head_dim": 64, "hidden": 640, "bits": 8, "group_size": 32},
}
# Batch, rows, and the first position. Arrays of fewer than eight elements are passed differently.
SHAPES = {
    "rows": [(1, 1, 0), (3, 1, FARTHEST), (1, 4, 2000)],
    "fragments": [(1, 5, 0), (1, 16, FARTHEST), (3, 10, 2000), (8, 4, 50_000)],
    "epilogue": [(1, 33, FARTHEST), (3, 11, 2000)],
}
SMALL = {"layers": 1, "kv_heads": 1, "head_dim": 64}


def check(metal: Metal, case: Case, route: str) -> None:
    """Run ``case`` on a route, and hold its error against that of unfused MLX."""
    found = metal.run(lambda: case.context_kv(case.c, case.offsets, route))
    # An epilogue gets its products from MLX; the other kernels answer for their own.
    theirs = unfused(case, sequential=route != "epilogue")
    for ours, other, right in zip(found, theirs, exact(case), strict=True):
        assert ours.dtype == case.dtype
        assert_as_exact(ours, other, right)


@pytest.mark.parametrize("route", ["rows", "fragments"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_error(metal, route, weights):
    for batch, rows, offset in SHAPES[route]:
        check(metal, Case(**WEIGHTS[weights], batch=batch, rows=rows, offset=offset), route)


# After the product the kinds of weights are all alike.
@pytest.mark.parametrize("weights", ["f32", "f16", "bf16", "bf16-4-64"])
def test_epilogue_error(metal, weights):
    for batch, rows, offset in SHAPES["epilogue"]:
        check(metal, Case(**WEIGHTS[weights], batch=batch, rows=rows, offset=offset), "epilogue")


def test_every_number_of_rows(metal):
    for rows in range(1, 33):
        case = Case(**WEIGHTS["f32"], layers=1, rows=rows)
        check(metal, case, "rows" if rows <= 4 else "fragments")


@pytest.mark.parametrize("bits", [None, 4])
def test_real_size(metal, bits):
    """A block of 16 for two layers of the drafter of Qwen3-4B."""
    case = Case(BF16, rows=16, layers=2, kv_heads=8, head_dim=128, hidden=2560, bits=bits)
    check(metal, case, "fragments")
    (launch,) = metal.launches
    assert launch.grid == (256, 32, 1)


@pytest.mark.parametrize(
    ("route", "sizes"),
    [
        ("rows", {"batch": 3, "hidden": 128, "dtype": BF16}),
        ("rows", {"rows": 4, "hidden": 64, "dtype": F16, "bits": 8}),
        ("fragments", {"batch": 3, "rows": 5, "hidden": 320, "dtype": BF16, "bits": 4}),
        ("fragments", {"rows": 19, "hidden": 192}),
        ("epilogue", {"batch": 3, "rows": 3, "hidden": 64, "dtype": BF16}),
    ],
)
def test_sanitizers_and_lint(metal, route, sizes):
    case = Case(**SMALL, **sizes)
    metal.check(lambda: case.context_kv(case.c, case.offsets, route))


def test_every_barrier_is_needed(metal):
    case = Case(**SMALL, rows=5, hidden=256)
    assert metal.unneeded_barriers(lambda: case.context_kv(case.c, case.offsets, "fragments")) == []
    (launch,) = metal.launches
    assert launch.source.count("threadgroup_barrier(") == 3
