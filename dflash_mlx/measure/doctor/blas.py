"""Whether MLX multiplies matrices as fast on this CPU as it could."""

import sys
import time
from collections.abc import Callable

import mlx.core as mx
import numpy as np

from .finding import Finding

# Small, so that a busy machine leaves some of the tries alone.
_SIZE, _TRIES = 256, 20

# A reference BLAS is ten and more times slower than the one that numpy brings.
_SLOW = 1 / 4


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
