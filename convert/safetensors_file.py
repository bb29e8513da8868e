"""The header of a safetensors file, checked before a single weight is read.

Format: https://github.com/huggingface/safetensors, "Format": 8 bytes of header length (little
endian), a JSON header of ``{name: {dtype, shape, data_offsets}}``, then the data without gaps.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from ..files import parse_json_object

_LARGEST_HEADER = 100_000_000
_ITEM_SIZES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
}


class TensorInfo(NamedTuple):
    """Where a tensor is and what it looks like; ``dtype`` is safetensors' name for it."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a safetensors file, by name.

    Raises:
        UserError: The file is unreadable, truncated or corrupt.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= min(size - 8, _LARGEST_HEADER):
                raise _corrupt(path, f"{size} bytes cannot hold the header it announces")
            text = file.read(length)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    header = parse_json_object(text, f"the header of {path.name}")
    header.pop("__metadata__", None)
    _check_layout(path, header, size - 8 - length)
    return {
        name: TensorInfo(path, entry["dtype"], tuple(entry["shape"]))
        for name, entry in header.items()
    }


def _check_layout(path: Path, header: dict[str, Any], data_size: int) -> None:
    """The tensors must fill the data exactly: no gap, no overlap, nothing after the end."""
    spans = sorted(_span(path, name, entry) for name, entry in header.items())
    position = 0
    for begin, end in spans:
        if begin != position:
            raise _corrupt(path, f"its tensors leave a gap or overlap at byte {begin}")
        position = end
    if position != data_size:
        raise _corrupt(path, f"it has {data_size} bytes of data, but its header needs {position}")


def _span(path: Path, name: str, entry: Any) -> tuple[int, int]:
    try:
        begin, end = entry["data_offsets"]
        shape, dtype = entry["shape"], entry["dtype"]
        counts = [begin, end, *shape]
    except (TypeError, KeyError, ValueError) as error:
        raise _corrupt(path, f"the entry of {name} is not readable") from error
    if not isinstance(dtype, str) or any(type(count) is not int or count < 0 for count in counts):
        raise _corrupt(path, f"the entry of {name} is not readable")
    item_size = _ITEM_SIZES.get(dtype)
    if end < begin or (item_size is not None and end - begin != item_size * math.prod(shape)):
        raise _corrupt(path, f"{name} has {end - begin} bytes, which is not {dtype} {shape}")
    return begin, end


def _corrupt(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is truncated or corrupt: {reason}. Download it again.")
