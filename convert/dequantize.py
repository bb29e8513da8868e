"""The numbers that a quantized encoding stands for, in float32.

Each function is given the tensors of one weight as they are in the file (bytes as uint8, because
MLX has no 8-bit floats) and returns the weight [out, in]. A weight whose scales are all of the
stored kind is exact; where two scales are combined, they are combined first, in float32, as the
format's own reader does. Everything runs on the CPU, whose division rounds correctly.

Formats: the OCP "Microscaling Formats (MX)" and "8-bit Floating Point" specifications; NVIDIA
ModelOpt; vLLM's compressed-tensors.
"""

import mlx.core as mx

from ..errors import UserError

MX_GROUP = 32
NVFP4_GROUP = 16

# Values of the 4-bit float e2m1 by code; the upper half is negative.
_E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_INT4_ZERO = 8


def fp8(weight: mx.array, scale: mx.array, block: tuple[int, int]) -> mx.array:
    """FP8: ``weight * scale``, also where the scale is called ``weight_scale_inv``.

    Args:
        weight: e4m3 codes [out, in], uint8.
        scale: One number for all, one a row ([out] or [out, 1]), or one a block.
        block: Rows and columns of a block; the last one of either direction may be cut.
    """
    with mx.stream(mx.cpu):
        values = mx.from_fp8(weight, mx.float32)
        rows, columns = weight.shape
        scale = scale.astype(mx.float32)
        if scale.size == 1:
            return values * scale.reshape(1, 1)
        if scale.size == rows and scale.shape[0] == rows:
            return values * scale.reshape(rows, 1)
        scale = mx.repeat(mx.repeat(_squeeze(scale), block[0], axis=0), block[1], axis=1)
        return values * scale[:rows, :columns]


def nvfp4(weight: mx.array, scale: mx.array, tensor_scale: mx.array, *, divide: bool) -> mx.array:
    """NVFP4: e2m1 values, an e4m3 scale for each 16 of them, and one float32 scale for all.

    Args:
        weight: Two codes a byte, low nibble first [out, in / 2], uint8.
        scale: e4m3 codes [out, in / 16], uint8.
        tensor_scale: One float32 number.
        divide: Whether ``scale`` is divided by it (compressed-tensors' ``weight_global_scale``),
            or multiplied (ModelOpt's ``weight_scale_2``).
    """
    with mx.stream(mx.cpu):
        scale = mx.from_fp8(scale, mx.float32)
        tensor_scale = tensor_scale.astype(mx.float32).reshape(1, 1)
        scale = scale / tensor_scale if divide else scale * tensor_scale
        table = mx.array([*_E2M1_MAGNITUDES, *(-value for value in _E2M1_MAGNITUDES)])
        return _scale_groups(table[_nibbles(weight)], scale)


def mxfp4(weight: mx.array, scale: mx.array) -> mx.array:
    """MXFP4: e2m1 values with a power of two for each 32 of them.

    Args:
        weight: Two codes a byte, low nibble first [out, in / 2], uint8.
        scale: Biased exponents (e8m0) [out, in / 32], uint8.
    """
    return _microscaled(weight, scale, "mxfp4")


def mxfp8(weight: mx.array, scale: mx.array) -> mx.array:
    """MXFP8: e4m3 values with a power of two for each 32 of them.

    Args:
        weight: Codes [out, in], uint8.
        scale: Biased exponents (e8m0) [out, in / 32], uint8.
    """
    return _microscaled(weight, scale, "mxfp8")


def int4(name: str, packed: mx.array, scale: mx.array, shape: mx.array) -> mx.array:
    """Symmetric packed INT4: ``(code - 8) * scale``.

    Args:
        name: What a message calls the weight.
        packed: Eight codes a word, lowest bits first [out, in / 8], int32.
        scale: [out, groups], each for as many neighbouring columns.
        shape: The two numbers ``out`` and ``in``.

    Raises:
        UserError: The shape is another one, for example because the columns are padded.
    """
    rows, columns = packed.shape[0], 8 * packed.shape[1]
    if shape.tolist() != [rows, columns]:
        raise UserError(
            f"{name} has weight_shape {shape.tolist()}, but its packed words hold "
            f"{[rows, columns]}; this version reads only words that are full."
        )
    with mx.stream(mx.cpu):
        # Words are little-endian, so the codes of a word follow one another as its bytes do.
        codes = _nibbles(packed.view(mx.uint8)).astype(mx.float32) - _INT4_ZERO
        return _scale_groups(codes, scale.astype(mx.float32))


def mlx_quantized(
    weight: mx.array, scales: mx.array, biases: mx.array | None = None, **settings: int | str
) -> mx.array:
    """MLX's own: what ``mx.quantize`` returns, taken back.

    Args:
        weight: Codes, lowest bits first [out, words], uint32.
        scales: [out, in / group_size]; floats for mode "affine", else uint8.
        biases: Of mode "affine" alone, as its scales.
        settings: ``group_size``, ``bits`` and ``mode``.
    """
    with mx.stream(mx.cpu):
        if biases is not None:
            scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
        return mx.dequantize(weight, scales, biases, dtype=mx.float32, **settings)


def _microscaled(weight: mx.array, scale: mx.array, mode: str) -> mx.array:
    with mx.stream(mx.cpu):
        # A view joins neighbours into words, so they must be neighbours in memory.
        words = mx.contiguous(weight).view(mx.uint32)
        return mx.dequantize(words, scale, group_size=MX_GROUP, mode=mode, dtype=mx.float32)


def _nibbles(packed: mx.array) -> mx.array:
    """Codes [rows, 2 * columns] of bytes [rows, columns], low nibble first."""
    pairs = mx.stack([packed & 15, packed >> 4], axis=-1)
    return pairs.reshape(packed.shape[0], -1)


def _scale_groups(values: mx.array, scale: mx.array) -> mx.array:
    rows, groups = scale.shape
    return (values.reshape(rows, groups, -1) * scale[..., None]).reshape(rows, -1)


def _squeeze(scale: mx.array) -> mx.array:
    """Block scales without the axes of length one that ModelOpt puts between them."""
    return scale.reshape(scale.shape[0], -1) if scale.ndim == 4 else scale
