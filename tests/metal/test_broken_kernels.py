"""Kernels broken on purpose: each must be caught, by the check that is named for it.

The table is also the answer to which check finds what. A kernel with a race can pass every plain
run, and one that reads past a private array passes all but one: no build makes another needless.
"""

from dataclasses import dataclass

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

RESULT = "result"  # wrong numbers, or NaN
PLAIN, ADDRESS, THREAD = Build


@dataclass(frozen=True)
class Broken:
    """A broken kernel.

    Attributes:
        name: What is wrong with it.
        changes: What is replaced in the sound kernel.
        found: What each build finds; None when it notices nothing.
    """

    name: str
    changes: dict[str, str]
    found: dict[Build, str | None]

    @property
    def body(self) -> str:
        """The kernel's text."""
        body = SOUND
        for old, new in self.changes.items():
            assert old in body
            body = body.replace(old, new)
        return body


ORDER = [
    Broken(
        "missing barrier",
        {BARRIER: ""},
        {PLAIN: "schedule", ADDRESS: RESULT, THREAD: "race"},
    ),
    Broken(
        "simdgroup barrier where a threadgroup barrier is needed",
        {"threadgroup_barrier": "simdgroup_barrier"},
        {PLAIN: "schedule", THREAD: "race"},
    ),
    Broken(
        "barrier that orders no memory",
        {"mem_flags::mem_threadgroup": "mem_flags::mem_none"},
        {PLAIN: None, ADDRESS: None, THREAD: "race"},
    ),
    Broken(
        "simd_sum taken for a barrier",
        # The lanes do meet in it, but that puts no memory in order. Both terms added are 0.
        {
            BARRIER: "float zero = simd_sum(0.0f);",
            READ: "a[(e & 64) + 63 - t] + (tile[t ^ 31] - a[e ^ 31]) + zero",
        },
        {PLAIN: None, THREAD: "race"},
    ),
    Broken(
        "memory used again without a second barrier",
        {READ: "tile[t]", STORE: "float other = tile[63 - t]; tile[t] = other; r[e] ="},
        {PLAIN: "schedule", THREAD: "race"},
    ),
    Broken(
        "two threadgroups write one address",
        {STORE: "r[t] ="},
        {THREAD: "race"},
    ),
    Broken(
        "counting without atomics",
        {STORE: "threadgroup float n[1]; n[0] = 0; n[0] += 1; r[e] = 0.0f * n[0] +"},
        {PLAIN: None, THREAD: "race"},
    ),
]
MEMORY = [
    Broken(
        "read past an input",
        {SUM: f"{SUM} + 0.0f * a[e + 1]"},
        {PLAIN: "bounds", ADDRESS: "address"},
    ),
    Broken(
        "read just before an input",
        {SUM: f"{SUM} + 0.0f * a[int(e) - 1]"},
        {PLAIN: None, ADDRESS: "address"},
    ),
    Broken(
        "write past an output",
        {STORE: "r[e + 1] ="},
        {PLAIN: "bounds", ADDRESS: "address"},
    ),
    Broken(
        "write just before an output",
        {STORE: "r[-1] = 0; r[e] ="},
        {PLAIN: "canary", ADDRESS: "address"},
    ),
    Broken(
        "write to an input",
        {STORE: "((device float*)a)[e] = 1; r[e] ="},
        {PLAIN: "read-only"},
    ),
    Broken(
        "write past threadgroup memory",
        {FILL: "tile[t + 1] = a[e];"},
        {PLAIN: RESULT, ADDRESS: "undefined"},
    ),
    Broken(
        "read past threadgroup memory",
        {READ: "tile[63 - t] + 0.0f * tile[64 - t]"},
        {PLAIN: RESULT, ADDRESS: "undefined", THREAD: RESULT},
    ),
    Broken(
        "read past threadgroup memory by a pointer",
        {READ: "tile[63 - t] + 0.0f * ((threadgroup float*)tile)[64 - t]"},
        {PLAIN: RESULT, ADDRESS: "address"},
    ),
    Broken(
        "private array overrun",
        {FILL: "float own[4]; for (uint i = 0; i <= 4; ++i) own[i] = a[e]; tile[t] = own[t % 4];"},
        {ADDRESS: "undefined"},
    ),
    Broken(
        "misaligned vector load",
        {SUM: f"{SUM} + 0.0f * (*(const device float4*)(a + (t & 31) + 1)).x"},
        {ADDRESS: "undefined", THREAD: None},
    ),
    Broken(
        "uninitialised threadgroup memory",
        {FILL: "if (t < 63) tile[t] = a[e];"},
        {PLAIN: RESULT, ADDRESS: RESULT, THREAD: RESULT},
    ),
    Broken(
        "output not written",
        {STORE: "float s = simd_sum(a[e]); if (e != 5) r[e] =", f"+ {SUM};": "+ s;"},
        {PLAIN: RESULT, ADDRESS: RESULT},
    ),
    Broken(
        "uninitialised matrix",
        {
            STORE: "simdgroup_matrix<float, 8, 8> A, B(0.0f); simdgroup_multiply(A, B, A); "
            "r[e] = A.thread_elements()[0] +"
        },
        {PLAIN: RESULT, ADDRESS: RESULT},
    ),
]
CONTROL = [
    Broken("barrier in a branch", {BARRIER: f"if (t < 40) {BARRIER}"}, {PLAIN: "divergence"}),
    Broken(
        "barrier in both branches",
        {BARRIER: f"if (t < 32)\n{BARRIER}\nelse\n{BARRIER}"},
        {PLAIN: "divergence"},
    ),
    Broken(
        "more barriers in one simdgroup",
        {BARRIER: f"for (uint i = 0; i <= t / 32; ++i)\n{BARRIER}"},
        {PLAIN: "divergence", THREAD: "divergence"},
    ),
    Broken("simd_sum in a branch", {SUM: f"(t % 2 ? {SUM} : 0.0f)"}, {PLAIN: "divergence"}),
    Broken(
        "lanes of one simdgroup in different operations",
        {SUM: f"(t % 2 ? {SUM} : simd_max(a[e]))"},
        {PLAIN: "divergence"},
    ),
    Broken(
        "lanes of one simdgroup at different lines",
        {SUM: f"(t % 2 ?\n{SUM} :\n{SUM})"},
        {PLAIN: "divergence"},
    ),
    Broken(
        "early return",
        {FILL: f"if (t == 3) return;\n{FILL}"},
        {PLAIN: "divergence", ADDRESS: "divergence"},
    ),
    Broken(
        "matrix load in a branch",
        {FILL: f"simdgroup_float8x8 A; if (t % 2) simdgroup_load(A, a); {FILL}"},
        {PLAIN: "divergence"},
    ),
    Broken(
        "shuffle from a lane that does not exist",
        {SUM: "simd_shuffle(a[e], ushort(t % 32 + 1))"},
        {PLAIN: "lane"},
    ),
]
LIMITS = [
    Broken("33 KiB of threadgroup memory", {"tile[64]": "tile[8448]"}, {PLAIN: "limits"}),
    Broken(
        "33 KiB of threadgroup memory in two declarations",
        {"tile[64];": "tile[4096]; threadgroup float more[4352]; more[0] = 0;"},
        {PLAIN: "limits"},
    ),
    Broken("double", {STORE: "double q = 1; r[e] ="}, {PLAIN: "compile"}),
    Broken(
        "float to bfloat without a cast",
        {STORE: "bfloat b = a[e]; r[e] ="},
        {PLAIN: "compile"},
    ),
    Broken(
        "half with bfloat",
        {STORE: "float q = half(1.0f) * bfloat(1.0f); r[e] ="},
        {PLAIN: "compile"},
    ),
    Broken(
        "matrix that is not 8x8",
        {STORE: "simdgroup_matrix<float, 16, 16> q; r[e] ="},
        {PLAIN: "compile"},
    ),
]
ALL = [*ORDER, *MEMORY, *CONTROL, *LIMITS]


@pytest.fixture
def outcome(emulate):
    """Runs a kernel like the sound one and returns the name of the check that failed, or None."""
    a = mx.random.normal((128,), key=mx.random.key(0))
    numbers = np.array(a)
    sums = np.repeat(numbers.reshape(4, 32).sum(1), 32)
    expected = numbers.reshape(2, 64)[:, ::-1].reshape(-1) + sums

    def run(body: str, build: Build) -> str | None:
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
        return None if np.allclose(np.array(r), expected, atol=1e-4) else RESULT

    return run


@pytest.mark.parametrize("build", Build, ids=lambda b: b.name.lower())
def test_the_sound_kernel_passes(outcome, build):
    assert outcome(SOUND, build) is None


def test_every_broken_kernel_is_caught():
    assert all(any(broken.found.values()) for broken in ALL)


@pytest.mark.parametrize("broken", ALL, ids=lambda b: b.name)
def test_broken_kernel(outcome, broken):
    assert {build: outcome(broken.body, build) for build in broken.found} == broken.found


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
