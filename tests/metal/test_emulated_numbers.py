"""The shim's numbers against MLX and NumPy: half, bfloat, literals, vectors, functions."""

import mlx.core as mx
import numpy as np
import pytest

pytestmark = pytest.mark.metal


def all_kinds_of_floats() -> mx.array:
    """65,536 floats: random bits, ties in half and in bfloat, infinities, NaN, denormals."""
    bits = np.random.default_rng(0).integers(0, 2**32, 1 << 16, dtype=np.uint64).astype(np.uint32)
    exponents = np.arange(4096, dtype=np.uint32) << 20
    bits[:4096] = exponents | 0x8000
    bits[4096:8192] = exponents | 0x1000
    return mx.array(bits).view(mx.float32)


@pytest.mark.parametrize(
    ("name", "dtype"), [("half", mx.float16), ("bfloat", mx.bfloat16)], ids=["half", "bfloat"]
)
def test_rounding_equals_mlx(emulate, name, dtype):
    floats = all_kinds_of_floats()
    (rounded,) = emulate(
        f"uint e = thread_position_in_grid.x; rounded[e] = {name}(a[e]);",
        {"a": floats},
        {"rounded": (floats.shape, dtype)},
        grid=(floats.size, 1, 1),
    )
    number = ~np.isnan(np.array(floats))
    ours, theirs = (np.array(x.view(mx.uint16)) for x in (rounded, floats.astype(dtype)))
    np.testing.assert_array_equal(ours[number], theirs[number])
    assert mx.array_equal(mx.isnan(rounded), mx.isnan(floats))


def test_half_rounds_after_every_operation(emulate):
    x, y = (np.random.default_rng(i).standard_normal(4096).astype(np.float16) for i in range(2))
    (r,) = emulate(
        "uint e = thread_position_in_grid.x; r[e] = a[e] * b[e] + a[e] / b[e] - b[e];",
        {"a": mx.array(x), "b": mx.array(y)},
        {"r": (x.shape, mx.float16)},
        grid=(4096, 1, 1),
    )
    np.testing.assert_array_equal(np.array(r), x * y + x / y - y)


def test_bfloat_rounds_after_every_operation(emulate):
    x, y = (mx.random.normal((4096,), key=mx.random.key(i)).astype(mx.bfloat16) for i in range(2))
    (r,) = emulate(
        "uint e = thread_position_in_grid.x; r[e] = a[e] * b[e] + a[e] - b[e];",
        {"a": x, "b": y},
        {"r": (x.shape, mx.bfloat16)},
        grid=(4096, 1, 1),
    )
    assert mx.array_equal(r, x * y + x - y)


def test_literals_are_floats(emulate):
    (sizes, value) = emulate(
        "sizes[0] = sizeof(0.1); sizes[1] = sizeof(1.0h); value[0] = a[0] * 0.1;",
        {"a": mx.array([3.0])},
        {"sizes": ((2,), mx.int32), "value": ((1,), mx.float32)},
        grid=(1, 1, 1),
    )
    assert sizes.tolist() == [4, 2]
    assert value.item() == np.float32(3) * np.float32(0.1)


def test_vectors(emulate):
    x = mx.arange(8, dtype=mx.float32)
    (r,) = emulate(
        """
        const device float4* p = (const device float4*)a;
        float4 v = p[1];              // 4 5 6 7
        v.xy = v.yx;                  // 5 4 6 7
        v += float4(float2(10), 20, 30);
        float3 w = float3(v.x, v.zw);
        const bool4 large = v > float4(20);
        r[0] = v.x; r[1] = v.y; r[2] = v.z; r[3] = v.w;
        r[4] = dot(w, float3(1, 2, 3));
        r[5] = select(v, float4(0), large).z;
        r[6] = float(any(large)) + 2 * float(all(large));
        r[7] = float(as_type<uint>(1.0f) >> 23);
        """,
        {"a": x},
        {"r": ((8,), mx.float32)},
        grid=(1, 1, 1),
    )
    assert r.tolist() == [15, 14, 26, 37, 15 + 2 * 26 + 3 * 37, 0, 1, 127]


def test_vectors_of_a_template_type(emulate):
    x = mx.random.normal((64,)).astype(mx.bfloat16)
    (r,) = emulate(
        """
        uint e = thread_position_in_grid.x;
        const device vec<T, 2>* p = (const device vec<T, 2>*)a;
        ((device vec<T, 2>*)r)[e] = vec<T, 2>(T(float(p[e].x) * SCALE), p[e].y);
        """,
        {"a": x},
        {"r": (x.shape, mx.bfloat16)},
        template=[("T", mx.bfloat16), ("SCALE", 3)],
    )
    expected = mx.array(x).reshape(-1, 2) * mx.array([3, 1], dtype=mx.bfloat16)
    assert mx.array_equal(r, expected.reshape(-1))


FUNCTIONS = {
    "exp": np.exp,
    "log2": np.log2,
    "precise::rsqrt": lambda x: 1 / np.sqrt(x),
    "fast::cos": np.cos,
    "fast::sin": np.sin,
    "tanh": np.tanh,
    "floor": np.floor,
    "fract": lambda x: x - np.floor(x),
}


def test_functions(emulate):
    x = np.linspace(0.1, 30, 64, dtype=np.float32)
    lines = [f"r[{i} * 64 + e] = metal::{name}(a[e]);" for i, name in enumerate(FUNCTIONS)]
    (r,) = emulate(
        "uint e = thread_position_in_grid.x; " + " ".join(lines),
        {"a": mx.array(x)},
        {"r": ((len(FUNCTIONS), 64), mx.float32)},
        grid=(64, 1, 1),
    )
    expected = np.stack([f(x.astype(np.float64)) for f in FUNCTIONS.values()])
    np.testing.assert_allclose(np.array(r), expected, rtol=1e-6, atol=1e-6)
