"""Quantized tensors as files hold them, and NumPy decoders that share nothing with the package.

The decoders work from the formats' bit patterns and in float64 where that is exact.
"""

import json
from pathlib import Path

import numpy as np

# A tensor: safetensors' dtype, and an array of as many bytes an item.
Raw = tuple[str, np.ndarray]


def write_raw(path: Path, tensors: dict[str, Raw]) -> None:
    """A safetensors file with any dtypes."""
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def bf16(values: np.ndarray) -> Raw:
    """Values as bfloat16, cut off, which is exact for values that are bfloat16 already."""
    return "BF16", (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def float_of_bits(code: int, exponent_bits: int, mantissa_bits: int, bias: int) -> float:
    """A small IEEE-like number from its bits; e4m3's only special code is NaN."""
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = code & (1 << mantissa_bits) - 1
    if (exponent_bits, code & 127) == (4, 127):
        return float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)


E4M3 = np.array([float_of_bits(code, 4, 3, 7) for code in range(256)])
E2M1 = np.array([float_of_bits(code, 2, 1, 1) for code in range(16)])


def nibbles(packed: np.ndarray) -> np.ndarray:
    """Codes of bytes, low nibble first."""
    codes = np.empty((packed.shape[0], 2 * packed.shape[1]), np.uint8)
    codes[:, 0::2], codes[:, 1::2] = packed % 16, packed // 16
    return codes


def spread(scale: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Every element's own scale, by its row's and its column's place."""
    return np.array(
        [
            [
                scale[r * scale.shape[0] // rows, c * scale.shape[1] // columns]
                for c in range(columns)
            ]
            for r in range(rows)
        ]
    )


def codes(random: np.random.RandomState, rows: int, columns: int) -> np.ndarray:
    """Random e4m3 codes without NaN."""
    drawn = random.randint(0, 255, (rows, columns)).astype(np.uint8)
    return np.where(drawn == 127, 0, drawn).astype(np.uint8)


def scales(random: np.random.RandomState, *shape: int) -> np.ndarray:
    """Random positive float32 scales."""
    return random.uniform(0.001, 0.02, shape).astype(np.float32)


def nvfp4(random: np.random.RandomState, rows: int, columns: int) -> tuple[np.ndarray, ...]:
    """Packed codes, e4m3 scales (positive) and a tensor scale."""
    packed = random.randint(0, 256, (rows, columns // 2)).astype(np.uint8)
    block = random.randint(40, 120, (rows, columns // 16)).astype(np.uint8)
    return packed, block, np.float32(random.uniform(0.01, 0.02))
