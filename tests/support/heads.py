"""Arguments of the kernels at random, and what should come of them."""

from dataclasses import dataclass, field

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from dflash_mlx.kernels.context_kv import ContextKV
from dflash_mlx.kernels.norm_rope import NormRope

EPS = 1e-6
THETA = 1e6
MARGIN = 1.5
"""How many times the error of unfused MLX a kernel may have."""
ROUNDOFF = {mx.float32: 2.0**-24, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}


@dataclass
class Case:
    """A ``ContextKV`` and its arguments, made at random from sizes.

    Attributes:
        dtype: of activations and weights.
        bits: of affine quantized weights, or None.
        offset: the position of the first batch row's first row; see :func:`offsets`.
    """

    dtype: mx.Dtype = mx.float32
    batch: int = 1
    rows: int = 1
    layers: int = 2
    kv_heads: int = 2
    head_dim: int = 128
    hidden: int = 512
    bits: int | None = None
    group_size: int = 64
    mode: str = "affine"
    bias: bool = False
    offset: int = 2000
    rotated: int | None = None
    traditional: bool = False
    c: mx.array = field(init=False)
    projection: nn.Module = field(init=False)
    k_norm: mx.array = field(init=False)
    norm_rope: NormRope = field(init=False)
    offsets: mx.array = field(init=False)

    def __post_init__(self):
        random = np.random.default_rng(self.rows + self.hidden)

        def normal(*shape: int) -> mx.array:
            return mx.array(random.standard_normal(shape, np.float32))

        outputs = self.layers * 2 * self.kv_heads * self.head_dim
        linear = nn.Linear(self.hidden, outputs, bias=self.bias)
        linear.weight = (normal(outputs, self.hidden) * self.hidden**-0.5).astype(self.dtype)
        if self.bias:
            linear.bias = normal(outputs).astype(self.dtype)
        if self.bits:
            linear = nn.QuantizedLinear.from_linear(linear, self.group_size, self.bits, self.mode)
        self.projection = linear
        self.c = normal(self.batch, self.rows, self.hidden).astype(self.dtype)
        # Each layer's norm is of another size, and no value of it is like its neighbour.
        norms = random.uniform(0.2, 3.0, (self.layers, self.head_dim)).astype(np.float32)
        norms *= 4.0 ** np.arange(self.layers, dtype=np.float32)[:, None]
        self.k_norm = mx.array(norms).astype(self.dtype).astype(mx.float32)
        self.norm_rope = NormRope(periods(self.rotated or self.head_dim), EPS, self.traditional)
        self.offsets = offsets(self.offset, self.batch)

    @property
    def context_kv(self) -> ContextKV:
        """To be called with ``c`` and ``offsets``."""
        return ContextKV(self.projection, self.k_norm, self.norm_rope)


def periods(rotated: int) -> mx.array:
    """Periods of the plain rotary embedding."""
    half = rotated // 2
    return mx.array((THETA ** (np.arange(half) / half)).astype(np.float32))


def offsets(first: int, batch: int) -> mx.array:
    """Positions where batch rows begin, 377 apart towards 0."""
    return mx.array([max(first - 377 * b, 0) for b in range(batch)])


def exact(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Context keys and values in float64, from the very weights of ``case``."""
    projection, c = case.projection, double(case.c)
    weight = double(projection.weight) if not case.bits else _dequantized(projection)
    products = c @ weight.T + (double(projection.bias) if case.bias else 0)
    shape = (case.batch, case.rows, case.layers, 2, case.kv_heads, case.head_dim)
    keys, values = products.reshape(shape).transpose(3, 2, 0, 4, 1, 5)
    norms = double(case.k_norm)[:, None, None, None]
    return exact_norm_rope(keys, norms, case.norm_rope, case.offsets), values


def exact_norm_rope(
    x: np.ndarray, norms: np.ndarray, norm_rope: NormRope, offsets: mx.array
) -> np.ndarray:
    """``rope(norm(x))`` in float64, of ``[…, B, heads, n, head_dim]``."""
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * norms
    positions = np.array(offsets)[:, None] + np.arange(x.shape[-2])
    angles = positions[:, None, :, None] / double(norm_rope.periods)
    half = angles.shape[-1]
    first, second = slice(0, half), slice(half, 2 * half)
    if norm_rope.traditional:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    rotated = x.copy()
    rotated[..., first] = x[..., first] * np.cos(angles) - x[..., second] * np.sin(angles)
    rotated[..., second] = x[..., first] * np.sin(angles) + x[..., second] * np.cos(angles)
    return rotated


def unfused(case: Case, sequential: bool = False) -> tuple[mx.array, mx.array]:
    """Context keys and values as mlx-lm's layers would make them, one operation after another.

    Args:
        case: what is asked.
        sequential: make the product as MLX's Metal kernels do, in float32, one column of the
            weights after another, and round once. MLX's own product on a CPU depends on its BLAS,
            which may sum in blocks, and in 16 bit rounds so often that anything would pass.
    """
    products = _sequential_product(case) if sequential else case.projection(case.c)
    shape = (case.batch, case.rows, case.layers, 2, case.kv_heads, case.head_dim)
    products = products.reshape(shape).transpose(2, 3, 0, 4, 1, 5)
    keys = [
        unfused_norm_rope(x, norm.astype(case.dtype), case.norm_rope.periods, case.offsets)
        for x, norm in zip(products[:, 0], case.k_norm, strict=True)
    ]
    return mx.stack(keys), products[:, 1]


def _sequential_product(case: Case) -> mx.array:
    weight = _dequantized(case.projection) if case.bits else double(case.projection.weight)
    columns = weight.T.astype(np.float32)
    c = double(case.c).astype(np.float32)
    product = np.zeros((*c.shape[:2], columns.shape[1]), np.float32)
    for k, column in enumerate(columns):
        product += c[..., k : k + 1] * column
    return mx.array(product).astype(case.dtype)


def unfused_norm_rope(
    x: mx.array, norm: mx.array, periods: mx.array, offsets: mx.array
) -> mx.array:
    """``rope(norm(x))`` by MLX's own two operations, of ``[B, heads, n, head_dim]``."""
    return mx.fast.rope(
        mx.fast.rms_norm(x, norm, EPS),
        2 * periods.size,
        traditional=False,
        base=None,
        scale=1.0,
        offset=offsets,
        freqs=periods,
    )


def error(found: mx.array, expected: np.ndarray) -> tuple[float, float]:
    """Largest and root-mean-square difference."""
    assert found.shape == expected.shape
    difference = np.abs(double(found) - expected)
    return difference.max(), np.sqrt((difference**2).mean())


def assert_as_exact(found: mx.array, unfused: mx.array, expected: np.ndarray) -> None:
    """Hold the error of ``found`` against that of unfused MLX, both measured from ``expected``."""
    largest, typical = error(found, expected)
    allowed, allowed_typical = error(unfused, expected)
    # Where few values are compared, the largest error is a matter of luck. What is normed and
    # rotated is rounded three times, so that much is nobody's fault.
    allowed = max(allowed, 3 * ROUNDOFF[found.dtype] * np.abs(expected).max())
    assert largest <= MARGIN * allowed
    assert typical <= MARGIN * allowed_typical


def double(array: mx.array) -> np.ndarray:
    """``array`` in numpy and float64."""
    return np.array(array.astype(mx.float32)).astype(np.float64)


def _dequantized(projection: nn.QuantizedLinear) -> np.ndarray:
    biases = projection.get("biases")
    affine = projection.mode == "affine"
    return double(
        mx.dequantize(
            projection.weight,
            projection.scales.astype(mx.float32) if affine else projection.scales,
            biases.astype(mx.float32) if affine else None,
            projection.group_size,
            projection.bits,
            projection.mode,
        )
    )
