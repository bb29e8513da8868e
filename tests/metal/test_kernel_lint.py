"""The lint: what clang says about a kernel when address spaces are real."""

import mlx.core as mx
import pytest
from metal_harness import lint

pytestmark = pytest.mark.metal

SOUND = """
threadgroup T tile[64];
uint t = thread_position_in_threadgroup.x;
const int rows = a_shape[0];
const device vec<T, 4>* four = (const device vec<T, 4>*)(a + 4 * t);
float4 sum = float4(0.0f);
for (int i = 0; i < rows; ++i) sum += float4(four[i].x, four[i].y, four[i].z, four[i].w);
const threadgroup T* row = tile;
tile[t] = T(sum.x * precise::rsqrt(sum.y + 1.0f));
threadgroup_barrier(mem_flags::mem_threadgroup);
simdgroup_matrix<float, 8, 8> m, n;
simdgroup_multiply_accumulate(m, m, n, m);
r[t] = T(simd_sum(float(row[t])) + m.thread_elements()[0]);
"""


@pytest.fixture
def findings(harness):
    """Lints a body and returns what was found; nothing is compiled or run."""

    def run(body: str, size: int = 64, dtype: mx.Dtype = mx.bfloat16) -> list[str]:
        from metal_harness.capture import metal_source

        kernel = mx.fast.metal_kernel(
            name="probe", input_names=["a"], output_names=["r"], source=body
        )
        call = {
            "template": [("T", dtype)],
            "grid": (64, 1, 1),
            "threadgroup": (64, 1, 1),
            "output_shapes": [(64,)],
            "output_dtypes": [dtype],
        }
        return lint(metal_source(kernel, [mx.zeros((size,), dtype)], call))

    return run


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_a_sound_kernel_is_clean(findings, dtype):
    assert findings(SOUND, dtype=dtype) == []


BROKEN = {
    "threadgroup memory as device": ("const threadgroup T* row", "const device T* row"),
    "address space left out": ("const threadgroup T* row", "const T* row"),
    "constant as device": (
        "const int rows = a_shape[0];",
        "const device int* p = a_shape; const int rows = p[0];",
    ),
    "device as constant": ("const device vec<T, 4>* four =", "const constant vec<T, 4>* four ="),
    "private array as device": ("float4 sum =", "T own[4]; device T* p = own; float4 sum ="),
    "const dropped": ("r[t] =", "device T* p = a; r[t] ="),
    "double": ("r[t] =", "double d = 1; r[t] ="),
    "new": ("r[t] =", "int* p = new int; r[t] ="),
    "a name that hides another": ("sum +=", "int t = i; sum +="),
    "unknown function": ("simd_sum(", "simd_total("),
}


@pytest.mark.parametrize("name", BROKEN)
def test_findings_name_the_line(findings, name):
    old, new = BROKEN[name]
    assert old in SOUND
    found = findings(SOUND.replace(old, new))
    assert found
    assert all(line.startswith("kernel.metal:") for line in found)


def test_small_inputs_are_constant(findings):
    """MLX passes fewer than 8 elements as `constant`: a pointer that fits 8 does not fit 7."""
    body = "const device T* p = a; r[thread_position_in_grid.x] = p[0];"
    assert findings(body, size=8) == []
    assert findings(body, size=7) != []
    assert findings(body.replace("const device T* p", "auto p"), size=7) == []


def test_parameters_added_by_accident(findings):
    assert findings("// not threads_per_grid\nr[0] = a[0];") == [
        "MLX passes 'threads_per_grid', which the kernel does not use: "
        "its name is inside another one"
    ]
    assert "'a_shape'" in findings("const int extra_shape = 1; r[0] = T(extra_shape);")[0]
