"""The emulator's threads: ids, simdgroup operations, 8x8 matrices, atomics, threadgroup memory."""

import mlx.core as mx
import numpy as np
import pytest
from metal_harness import Build

pytestmark = pytest.mark.metal

LANES = np.arange(32)

# Each operation on a lane's x (v over two simdgroups), and what NumPy makes of it.
OPERATIONS = {
    "simd_sum(x)": lambda v: np.repeat(v.sum(1, keepdims=True), 32, 1),
    "simd_max(x) - simd_min(x)": lambda v: np.repeat(np.ptp(v, 1, keepdims=True), 32, 1),
    "simd_xor(x)": lambda v: np.repeat(np.bitwise_xor.reduce(v, 1, keepdims=True), 32, 1),
    "simd_shuffle(x, ushort(31 - l))": lambda v: v[:, ::-1],
    "simd_shuffle_xor(x, 5)": lambda v: v[:, LANES ^ 5],
    "simd_shuffle_down(x, 3)": lambda v: v[:, np.where(LANES < 29, LANES + 3, LANES)],
    "simd_shuffle_up(x, 3)": lambda v: v[:, np.where(LANES > 2, LANES - 3, LANES)],
    "simd_shuffle_rotate_down(x, 3)": lambda v: np.roll(v, -3, 1),
    "simd_broadcast(x, 7)": lambda v: np.repeat(v[:, 7:8], 32, 1),
    "simd_prefix_exclusive_sum(x)": lambda v: np.cumsum(v, 1) - v,
    "simd_prefix_inclusive_sum(x)": lambda v: np.cumsum(v, 1),
    "quad_sum(x)": lambda v: np.repeat(v.reshape(2, 8, 4).sum(2), 4, 1),
    "int(simd_any(x > 48)) + 2 * int(simd_all(x > -51))": lambda v: np.repeat(
        (v > 48).any(1, keepdims=True) + 2 * (v > -51).all(1, keepdims=True), 32, 1
    ),
}


def test_simdgroup_operations(emulate):
    values = np.random.default_rng(0).integers(-50, 50, 64).astype(np.int32)
    lines = [f"r[{i} * 64 + e] = {op};" for i, op in enumerate(OPERATIONS)]
    (r,) = emulate(
        "uint e = thread_position_in_grid.x, l = thread_index_in_simdgroup; int x = a[e];"
        + "\n".join(lines),
        {"a": mx.array(values)},
        {"r": ((len(OPERATIONS), 2, 32), mx.int32)},
        grid=(64, 1, 1),
        threadgroup=(64, 1, 1),
    )
    for (name, expected), got in zip(OPERATIONS.items(), np.array(r), strict=True):
        np.testing.assert_array_equal(got, expected(values.reshape(2, 32)), err_msg=name)


def test_partial_simdgroup(emulate):
    (r,) = emulate(
        "uint e = thread_position_in_grid.x; r[e] = simd_sum(int(e));",
        {"a": mx.zeros(1)},
        {"r": ((50,), mx.int32)},
        grid=(50, 1, 1),
        threadgroup=(64, 1, 1),
    )
    assert r.tolist() == [sum(range(32))] * 32 + [sum(range(32, 50))] * 18


@pytest.mark.parametrize("build", Build, ids=lambda b: b.name.lower())
def test_matrices(emulate, build):
    a, b = np.random.default_rng(0).standard_normal((2, 16, 24)).astype(np.float32)
    product, transposed, rounded, diagonal = emulate(
        """
        simdgroup_matrix<float, 8, 8> m, n, c, two(2.0f);
        simdgroup_load(m, a, 24, ulong2(8, 4));
        simdgroup_load(n, b, 24, ulong2(0, 0), true);
        simdgroup_multiply(c, m, n);
        simdgroup_multiply_accumulate(c, two, n, c);
        simdgroup_store(c, product);
        simdgroup_store(m, transposed, 8, ulong2(0, 0), true);
        simdgroup_half8x8 h;
        for (int i = 0; i < 2; ++i) h.thread_elements()[i] = half(m.thread_elements()[i]);
        simdgroup_store(h, rounded, 8);
        simdgroup_store(two, diagonal, 8);
        """,
        {"a": mx.array(a), "b": mx.array(b)},
        {
            "product": ((8, 8), mx.float32),
            "transposed": ((8, 8), mx.float32),
            "rounded": ((8, 8), mx.float16),
            "diagonal": ((8, 8), mx.float32),
        },
        build=build,
    )
    m, n = a[4:12, 8:16], b[:8, :8].T
    np.testing.assert_allclose(np.array(product), m @ n + 2 * n, atol=1e-5)
    np.testing.assert_array_equal(np.array(transposed), m.T)
    np.testing.assert_array_equal(np.array(rounded), m.astype(np.float16))
    np.testing.assert_array_equal(np.array(diagonal), 2 * np.eye(8))


def test_grid_edges_ids_and_atomics(emulate):
    """A grid counts threads, so threadgroups at its edges are smaller."""
    (r,) = emulate(
        """
        uint3 p = thread_position_in_grid, g = threads_per_grid;
        uint at = (p.z * g.y + p.y) * g.x + p.x;
        atomic_fetch_add_explicit(&r[at], int(threads_per_threadgroup.x), memory_order_relaxed);
        atomic_fetch_add_explicit(&r[0], 1000, memory_order_relaxed);
        """,
        {"a": mx.zeros(1)},
        {"r": ((3, 5, 70), mx.int32)},
        grid=(70, 5, 3),
        threadgroup=(32, 2, 2),
        init_value=0,
        atomic_outputs=True,
    )
    assert r[0, 0, 0].item() == 32 + 1000 * 70 * 5 * 3
    assert r[2, 4, 63].item() == 32
    assert r[2, 4, 64].item() == 6


def test_threadgroup_memory_is_shared_and_ordered_by_barriers(emulate):
    x = mx.random.normal((256,))
    (r,) = emulate(
        """
        threadgroup float tile[64], total[1];
        uint t = thread_position_in_threadgroup.x, e = thread_position_in_grid.x;
        tile[t] = a[e];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (t == 0) { total[0] = 0; for (int i = 0; i < 64; ++i) total[0] += tile[i]; }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        r[e] = tile[63 - t] + total[0];
        """,
        {"a": x},
        {"r": (x.shape, mx.float32)},
        grid=(256, 1, 1),
        threadgroup=(64, 1, 1),
    )
    groups = np.array(x).reshape(4, 64)
    expected = groups[:, ::-1] + groups.sum(1, keepdims=True)
    np.testing.assert_allclose(np.array(r).reshape(4, 64), expected, atol=1e-5)


def test_what_is_uninitialised_is_nan(emulate):
    (r,) = emulate(
        """
        threadgroup float tile[4];
        simdgroup_matrix<float, 8, 8> m;
        if (thread_position_in_grid.x == 0) { r[0] = tile[0]; r[1] = m.thread_elements()[0]; }
        """,
        {"a": mx.zeros(1)},
        {"r": ((3,), mx.float32)},
    )
    assert mx.all(mx.isnan(r))
