"""Kernels broken on purpose: each must be caught, by the check that is named for it.

The table is also the answer to which check finds what. A kernel with a race can pass every plain
run, and one that reads past a private array passes all but one: no build makes another needless.
"""

import mlx.core as mx
import numpy as np
import pytest
from metal_harness import Build, KernelError, Schedule

pytestmark = pytest.mark.metal

# 128 threads in two threadgroups of two simdgroups: reverses each threadgroup's part of `a` and
# adds the sum of the simdgroup's own part.
SOUND = """
threadgroup float tile[64];
uint t = thread_position_in_threadgroup.x, e = thread_position_in_grid.x;
tile[t] = a[e];
threadgroup_barrier(mem_flags::mem_threadgroup);
r[e] = tile[63 - t] + simd_sum(a[e]);
"""
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
FILL = "tile[t] = a[e];"
READ = "tile[63 - t]"
SUM = "simd_sum(a[e])"
STORE = "r[e] ="

RESULT, NOTHING = "result", "nothing"  # wrong numbers, or NaN; not noticed at all
# What is replaced in the sound kernel, and what the plain build, that of addresses and that of
# threads find; a dash is a build that is not asked. Then the divergences and limits, which all have
# the plain build's answer alone.
BROKEN = {
    "missing barrier": ({BARRIER: ""}, "schedule result race"),
    "simdgroup barrier where a threadgroup barrier is needed": (
        {"threadgroup_barrier": "simdgroup_barrier"},
        "schedule - race",
    ),
    "barrier that orders no memory": (
        {"mem_flags::mem_threadgroup": "mem_flags::mem_none"},
        "nothing nothing race",
    ),
    # The lanes do meet in it, but that puts no memory in order. Both terms added are 0.
    "simd_sum taken for a barrier": (
        {
            BARRIER: "float zero = simd_sum(0.0f);",
            READ: "a[(e & 64) + 63 - t] + (tile[t ^ 31] - a[e ^ 31]) + zero",
        },
        "nothing - race",
    ),
    "memory used again without a second barrier": (
        {READ: "tile[t]", STORE: "float other = tile[63 - t]; tile[t] = other; r[e] ="},
        "schedule - race",
    ),
    "two threadgroups write one address": ({STORE: "r[t] ="}, "- - race"),
    "counting without atomics": (
        {STORE: "threadgroup float n[1]; n[0] = 0; n[0] += 1; r[e] = 0.0f * n[0] +"},
        "nothing - race",
    ),
    "read past an input": ({SUM: f"{SUM} + 0.0f * a[e + 1]"}, "bounds address -"),
    "read just before an input": ({SUM: f"{SUM} + 0.0f * a[int(e) - 1]"}, "nothing address -"),
    "write past an output": ({STORE: "r[e + 1] ="}, "bounds address -"),
    "write just before an output": ({STORE: "r[-1] = 0; r[e] ="}, "canary address -"),
    "write to an input": ({STORE: "((device float*)a)[e] = 1; r[e] ="}, "read-only - -"),
    "write past threadgroup memory": ({FILL: "tile[t + 1] = a[e];"}, "result undefined -"),
    "read past threadgroup memory": (
        {READ: "tile[63 - t] + 0.0f * tile[64 - t]"},
        "result undefined result",
    ),
    "read past threadgroup memory by a pointer": (
        {READ: "tile[63 - t] + 0.0f * ((threadgroup float*)tile)[64 - t]"},
        "result address -",
    ),
    "private array overrun": (
        {FILL: "float own[4]; for (uint i = 0; i <= 4; ++i) own[i] = a[e]; tile[t] = own[t % 4];"},
        "- undefined -",
    ),
    "misaligned vector load": (
        {SUM: f"{SUM} + 0.0f * (*(const device float4*)(a + (t & 31) + 1)).x"},
        "- undefined nothing",
    ),
    "uninitialised threadgroup memory": (
        {FILL: "if (t < 63) tile[t] = a[e];"},
        "result result result",
    ),
    "output not written": (
        {STORE: "float s = simd_sum(a[e]); if (e != 5) r[e] =", f"+ {SUM};": "+ s;"},
        "result result -",
    ),
    "uninitialised matrix": (
        {
            STORE: "simdgroup_matrix<float, 8, 8> A, B(0.0f); simdgroup_multiply(A, B, A); "
            "r[e] = A.thread_elements()[0] +"
        },
        "result result -",
    ),
    "more barriers in one simdgroup": (
        {BARRIER: f"for (uint i = 0; i <= t / 32; ++i)\n{BARRIER}"},
        "divergence - divergence",
    ),
    "early return": ({FILL: f"if (t == 3) return;\n{FILL}"}, "divergence divergence -"),
    "barrier in a branch": ({BARRIER: f"if (t < 40) {BARRIER}"}, "divergence - -"),
    "barrier in both branches": (
        {BARRIER: f"if (t < 32)\n{BARRIER}\nelse\n{BARRIER}"},
        "divergence - -",
    ),
    "simd_sum in a branch": ({SUM: f"(t % 2 ? {SUM} : 0.0f)"}, "divergence - -"),
    "lanes in different operations": ({SUM: f"(t % 2 ? {SUM} : simd_max(a[e]))"}, "divergence - -"),
    "lanes at different lines": ({SUM: f"(t % 2 ?\n{SUM} :\n{SUM})"}, "divergence - -"),
    "matrix load in a branch": (
        {FILL: f"simdgroup_float8x8 A; if (t % 2) simdgroup_load(A, a); {FILL}"},
        "divergence - -",
    ),
    "shuffle from no lane": ({SUM: "simd_shuffle(a[e], ushort(t % 32 + 1))"}, "lane - -"),
    "33 KiB of threadgroup memory": ({"tile[64]": "tile[8448]"}, "limits - -"),
    "33 KiB of threadgroup memory in two declarations": (
        {"tile[64];": "tile[4096]; threadgroup float more[4352]; more[0] = 0;"},
        "limits - -",
    ),
    "double": ({STORE: "double q = 1; r[e] ="}, "compile - -"),
    "float to bfloat without a cast": ({STORE: "bfloat b = a[e]; r[e] ="}, "compile - -"),
    "half with bfloat": ({STORE: "float q = half(1.0f) * bfloat(1.0f); r[e] ="}, "compile - -"),
    "matrix that is not 8x8": ({STORE: "simdgroup_matrix<float, 16, 16> q; r[e] ="}, "compile - -"),
}


@pytest.fixture
def outcome(emulate):
    """Runs a kernel like the sound one and returns the name of the check that failed."""
    a = mx.random.normal((128,), key=mx.random.key(0))
    numbers = np.array(a)
    sums = np.repeat(numbers.reshape(4, 32).sum(1), 32)
    expected = numbers.reshape(2, 64)[:, ::-1].reshape(-1) + sums

    def run(body: str, build: Build) -> str:
        schedules = tuple(Schedule) if build is Build.PLAIN else (Schedule.FORWARD,)
        try:
            (r,) = emulate(
                body,
                {"a": a},
                {"r": (a.shape, mx.float32)},
                grid=(128, 1, 1),
                threadgroup=(64, 1, 1),
                build=build,
                schedules=schedules,
            )
        except KernelError as error:
            return error.check
        return NOTHING if np.allclose(np.array(r), expected, atol=1e-4) else RESULT

    return run


@pytest.mark.parametrize("build", Build, ids=lambda b: b.name.lower())
def test_the_sound_kernel_passes(outcome, build):
    assert outcome(SOUND, build) == NOTHING


@pytest.mark.parametrize("name", BROKEN)
def test_broken_kernel(outcome, name):
    changes, found = BROKEN[name]
    body = SOUND
    for old, new in changes.items():
        assert old in body
        body = body.replace(old, new)
    asked = {b: check for b, check in zip(Build, found.split(), strict=True) if check != "-"}
    assert set(asked.values()) != {NOTHING}
    assert {build: outcome(body, build) for build in asked} == asked


def test_too_many_threads(emulate):
    with pytest.raises(KernelError, match="1024 is the most") as error:
        emulate(
            "r[thread_position_in_grid.x] = a[0];",
            {"a": mx.zeros(1)},
            {"r": ((2048,), mx.float32)},
            grid=(2048, 1, 1),
            threadgroup=(1056, 1, 1),
        )
    assert error.value.check == "limits"


def test_matrices_need_a_whole_simdgroup(emulate):
    with pytest.raises(KernelError, match="partial simdgroup") as error:
        emulate(
            "simdgroup_float8x8 m(0.0f); simdgroup_store(m, r);",
            {"a": mx.zeros(1)},
            {"r": ((64,), mx.float32)},
            grid=(16, 1, 1),
        )
    assert error.value.check == "lane"


def test_messages_name_the_line_and_the_thread(emulate):
    with pytest.raises(KernelError) as error:
        emulate(
            "uint e = thread_position_in_grid.x;\nif (e == 37)\n r[e] = a[e + 100];",
            {"a": mx.zeros(64)},
            {"r": ((64,), mx.float32)},
            grid=(64, 1, 1),
            threadgroup=(64, 1, 1),
        )
    assert "buffer 'a' of 256 bytes accessed at byte 548" in str(error.value)
    assert "thread 37: simdgroup 1, lane 5" in str(error.value)
