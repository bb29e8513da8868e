"""The machine, the packages, the device that MLX computes on, and how fast its products are."""

import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires, version

import mlx.core as mx
import numpy as np
from packaging.requirements import Requirement

from ..kernels.metal import on_metal
from .finding import Finding
from .machine import GB, chip, free_memory, system, total_memory

# Small products, so that a busy machine leaves some of the tries alone.
_SIZE, _TRIES = 256, 20

# A reference BLAS is ten and more times slower than the one that numpy brings.
_SLOW = 1 / 4


def check_machine() -> Finding:
    """Chip, memory and operating system."""
    total, free = total_memory(), free_memory()
    spare = "" if free is None else f", of which {free / GB:.1f} GB are free"
    text = (
        f"This is {chip()} ({platform.machine()}) with {total / GB:.1f} GB of memory{spare}, "
        f"running {system()} and Python {platform.python_version()}."
    )
    data = {"chip": chip(), "memory": total, "free": free, "system": system()}
    if sys.platform == "darwin" and platform.machine() == "x86_64":
        text += (
            " This Python is made for Intel processors; on an Apple chip MLX needs a Python for "
            "arm64."
        )
        return Finding("machine", "fault", text, data)
    return Finding("machine", "ok", text, data)


def check_packages() -> Finding:
    """Whether the installed packages are those that this version was made for."""
    found, wrong = {}, []
    for text in requires("dflash-mlx") or []:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found[requirement.name] = version(requirement.name)
        except PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(found[requirement.name], prereleases=True):
            installed = f"{requirement.name} {found[requirement.name]} is installed"
            wrong.append(f"{installed}, but {requirement.specifier} is needed")
    own = version("dflash-mlx")
    if wrong:
        text = f"dflash-mlx {own} does not fit the installed packages: {'; '.join(wrong)}."
        return Finding("packages", "fault", f"{text} Install dflash-mlx again with pip.", found)
    text = f"dflash-mlx {own} runs with mlx {found['mlx']} and mlx-lm {found['mlx-lm']}."
    return Finding("packages", "ok", text, found)


def check_backend() -> Finding:
    """Which device MLX computes on, and whether it does."""
    device = mx.default_device()
    data = {"device": str(device), "metal": mx.metal.is_available()}
    try:
        mx.eval(mx.ones((8, 8)) @ mx.ones((8, 8)))
    except RuntimeError as error:
        return Finding("backend", "fault", f"MLX cannot compute on {device}: {error}.", data)
    if on_metal():
        info = mx.device_info()
        data["working_set"] = info["max_recommended_working_set_size"]
        text = (
            f"MLX runs on the GPU through Metal: {info['device_name']}, which may use "
            f"{data['working_set'] / GB:.1f} GB of the memory."
        )
        return Finding("backend", "ok", text, data)
    if sys.platform == "darwin":
        text = (
            "MLX finds no Metal device, so it runs on the CPU, many times slower. A virtual "
            "machine without a GPU would explain it."
        )
        return Finding("backend", "advice", text, data)
    if device.type == mx.gpu:
        name = mx.device_info().get("device_name", device)
        return Finding("backend", "ok", f"MLX runs on the GPU: {name}.", data)
    text = (
        "MLX runs on the CPU. There is no Metal on this system; plain MLX computes what the Metal "
        "kernels would."
    )
    return Finding("backend", "ok", text, data)


def check_blas() -> Finding | None:
    """Compare float32 products with numpy's, which brings a fast BLAS; None off Linux's CPU."""
    if sys.platform != "linux" or mx.default_device().type == mx.gpu:
        return None
    ours, numpys = product_rates()
    data = {"mlx_gflops": ours, "numpy_gflops": numpys}
    rates = f"at {ours:.0f} GFLOP/s, and numpy's at {numpys:.0f}"
    if ours >= numpys * _SLOW:
        text = f"MLX's float32 matrix products run {rates}: it uses a fast BLAS."
        return Finding("blas", "ok", text, data)
    text = (
        f"MLX's float32 matrix products run {rates}: it uses the slow reference BLAS that its "
        "wheel brings. Install OpenBLAS (on Debian or Ubuntu: sudo apt install "
        "libopenblas0-pthread) and put LD_PRELOAD=libopenblas.so.0 before each command."
    )
    return Finding("blas", "advice", text, data)


def product_rates() -> tuple[float, float]:
    """GFLOP/s of a float32 matrix product in MLX and in numpy, each at its best."""
    a = np.random.default_rng(0).random((_SIZE, _SIZE), dtype=np.float32)
    b = mx.array(a)
    works: tuple[Callable[[], object], ...] = (lambda: mx.eval(b @ b), lambda: a @ a)
    best = [float("inf")] * len(works)
    for _ in range(_TRIES):
        for i, work in enumerate(works):
            begun = time.perf_counter()
            work()
            best[i] = min(best[i], time.perf_counter() - begun)
    ours, numpys = (2 * _SIZE**3 / seconds / 1e9 for seconds in best)
    return ours, numpys
