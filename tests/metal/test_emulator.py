"""The harness itself: what a wrapper sees, what is recorded, what is kept, what is refused."""

import functools
from collections.abc import Callable, Iterator

import mlx.core as mx
import pytest
from metal_harness import Build, Harness, KernelError, Metal, Schedule

pytestmark = pytest.mark.metal


@functools.cache
def reversing_kernel() -> Callable:
    """A kernel that a wrapper makes once and keeps."""
    return mx.fast.metal_kernel(
        name="reverse_groups",
        input_names=["values", "scale"],
        output_names=["reversed_values"],
        header="template <typename T> T scaled(T x, float by) { return T(float(x) * by); }",
        source="""
            threadgroup T tile[N];
            const uint t = thread_position_in_threadgroup.x;
            tile[t] = values[thread_position_in_grid.x];
            threadgroup_barrier(mem_flags::mem_threadgroup);
            reversed_values[thread_position_in_grid.x] = scaled(tile[N - 1 - t], scale);
        """,
    )


def reverse_groups(values: mx.array, size: int) -> mx.array:
    """Reverses every `size` values and doubles them; a wrapper as the project's own are."""
    (out,) = reversing_kernel()(
        inputs=[values, 2.0],
        template=[("T", values.dtype), ("N", size)],
        grid=(values.size, 1, 1),
        threadgroup=(size, 1, 1),
        output_shapes=[values.shape],
        output_dtypes=[values.dtype],
    )
    return out


@pytest.mark.parametrize("size", [64, 96])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_a_wrapper_runs_unchanged(metal, dtype, size):
    """On a Mac this case runs on the GPU."""
    values = mx.random.normal((4, size)).astype(dtype)
    got = metal.run(lambda: reverse_groups(values, size))
    assert got.dtype == dtype
    assert mx.array_equal(got, 2 * values[:, ::-1])
    (launch,) = metal.launches
    assert launch.name == "reverse_groups"
    assert launch.grid == (4 * size, 1, 1)
    assert launch.threadgroup == (size, 1, 1)


def test_checks_of_a_sound_kernel(metal):
    values = mx.random.normal((128,))
    metal.check(lambda: reverse_groups(values, 64))
    assert metal.unneeded_barriers(lambda: reverse_groups(values, 64)) == []
    # Within one simdgroup the barrier orders memory all the same; with one thread it is idle.
    assert metal.unneeded_barriers(lambda: reverse_groups(values, 32)) == []
    assert len(metal.unneeded_barriers(lambda: reverse_groups(values, 1))) == 1


def test_metal_is_left_as_it_was(harness):
    original = mx.fast.metal_kernel
    with harness.emulating():
        assert mx.fast.metal_kernel is not original
        reverse_groups(mx.zeros(64), 64)
    assert mx.fast.metal_kernel is original
    if not mx.metal.is_available():
        with pytest.raises(RuntimeError, match="No Metal"):  # what MLX itself says
            reverse_groups(mx.zeros(64), 64)


def fake_gpu(results: Iterator[mx.array]) -> Callable:
    """What ``mx.fast.metal_kernel`` is on a Mac, as far as the harness can tell."""
    return lambda **kernel: lambda **call: [next(results)]


def test_on_a_gpu_the_call_runs_three_times(harness, monkeypatch):
    reversing_kernel.cache_clear()
    results = iter([mx.ones(64), mx.ones(64), mx.ones(64)])
    monkeypatch.setattr(mx.fast, "metal_kernel", fake_gpu(results))
    metal = Metal(harness, on_gpu=True)
    assert mx.array_equal(metal.run(lambda: reverse_groups(mx.zeros(64), 64)), mx.ones(64))
    assert next(results, None) is None
    assert [launch.name for launch in metal.launches] == ["reverse_groups"]
    reversing_kernel.cache_clear()


def test_on_a_gpu_the_results_must_be_equal(harness, monkeypatch):
    reversing_kernel.cache_clear()
    results = iter([mx.zeros(64), mx.zeros(64), -mx.zeros(64)])  # equal, but not bit for bit
    monkeypatch.setattr(mx.fast, "metal_kernel", fake_gpu(results))
    with pytest.raises(KernelError, match="from one run to the next"):
        Metal(harness, on_gpu=True).run(lambda: reverse_groups(mx.zeros(64), 64))
    reversing_kernel.cache_clear()


def test_every_buffer_that_mlx_adds(emulate):
    values = mx.arange(24, dtype=mx.int32).reshape(2, 3, 4)
    (out,) = emulate(
        """
        int i = 0;
        for (int d = 0; d < values_ndim; ++d) out[i++] = values_shape[d];
        for (int d = 0; d < values_ndim; ++d) out[i++] = int(values_strides[d]);
        out[i++] = FLAG ? int(factor * 4) : 0;
        out[i++] = values[23];
        """,
        {"values": values, "factor": 2.5},
        {"out": ((8,), mx.int32)},
        grid=(1, 1, 1),
        template=[("FLAG", True)],
    )
    assert out.tolist() == [2, 3, 4, 12, 4, 1, 10, 23]


INTEGERS = [getattr(mx, f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize(
    "dtype", [mx.bool_, *INTEGERS, mx.float16, mx.bfloat16, mx.float32], ids=str
)
def test_dtypes_go_in_and_out(emulate, dtype):
    values = mx.array([[0, 1, 1], [0, 1, 7]]).astype(dtype)
    (out,) = emulate(
        "out[thread_position_in_grid.x] = values[thread_position_in_grid.x];",
        {"values": values[::-1]},  # not contiguous
        {"out": (values.shape, dtype)},
        grid=(6, 1, 1),
    )
    assert out.dtype == dtype
    assert mx.array_equal(out, values[::-1])


def test_schedules_that_differ_are_reported(emulate):
    with pytest.raises(KernelError, match=r"output 0 of probe differs .* forward and reverse") as e:
        emulate(
            "out[0] = int(thread_position_in_grid.x);",
            {"a": mx.zeros(1)},
            {"out": ((1,), mx.int32)},
        )
    assert e.value.check == "schedule"


def test_executables_are_kept(tmp_path):
    def run() -> dict[str, int]:
        reversing_kernel.cache_clear()
        with Harness(tmp_path).emulating():
            reverse_groups(mx.zeros(64), 64)
        reversing_kernel.cache_clear()
        return {p.name: p.stat().st_ino for p in tmp_path.iterdir()}

    first = run()
    assert sum(name.endswith(".run") for name in first) == 1
    assert run() == first


def test_without_a_compiler_it_fails_and_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    harness = Harness(tmp_path / "kept")
    with harness.emulating(), pytest.raises(RuntimeError, match="sudo apt install g"):
        mx.fast.metal_kernel(
            name="k", input_names=["a"], output_names=["b"], source="b[0] = a[0];"
        )(
            inputs=[mx.zeros(1)],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            output_shapes=[(1,)],
            output_dtypes=[mx.float32],
        )


def test_a_call_that_launches_nothing_is_an_error(harness):
    with pytest.raises(RuntimeError, match="launched no kernel"):
        Metal(harness, on_gpu=False).run(lambda: mx.zeros(1) + 1)


def test_inputs_must_be_contiguous(harness):
    with harness.emulating(), pytest.raises(NotImplementedError, match="row-contiguous"):
        mx.fast.metal_kernel(
            name="k",
            input_names=["a"],
            output_names=["b"],
            source="b[0] = a[0];",
            ensure_row_contiguous=False,
        )


def test_an_endless_wait_is_reported_with_everyone_in_it(emulate):
    with pytest.raises(KernelError, match="divergence") as error:
        emulate(
            "if (thread_position_in_grid.x < 32)\n"
            "threadgroup_barrier(mem_flags::mem_none);\n"
            "else\n simd_sum(1);\n"
            "simdgroup_barrier(mem_flags::mem_none);",
            {"a": mx.zeros(1)},
            {"out": ((1,), mx.int32)},
            grid=(64, 1, 1),
            threadgroup=(64, 1, 1),
            build=Build.PLAIN,
            schedules=(Schedule.FORWARD,),
        )
    assert "threadgroup_barrier at line" in str(error.value)
