"""Read one tensor from a ``torch.save`` file without torch and without running its code.

A ``.pt`` file is a zip archive with ``data.pkl`` (a pickle that refers to storages by key) and
``data/<key>`` (raw bytes), see ``torch/serialization.py``. A pickle can call anything; this reader
only knows the few names that rebuild a tensor, and refuses the file at any other.
"""

import collections
import io
import math
import pickle
import pickletools
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from ..errors import UserError

_LARGEST_ENTRY = 64 * 1024 * 1024
_LARGEST_PICKLE = 64 * 1024
_MOST_AXES = 8
# What torch.save writes for a tensor and for a dict of one. Python's reader allocates whatever
# length or place in its memo the others name, before it looks for the bytes.
_OPCODES = """
PROTO FRAME STOP MARK GLOBAL STACK_GLOBAL BINPERSID REDUCE NONE NEWTRUE NEWFALSE BININT BININT1
BININT2 LONG1 BINUNICODE SHORT_BINUNICODE EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT SETITEM
SETITEMS BINPUT LONG_BINPUT BINGET LONG_BINGET MEMOIZE
"""
# The files that torch writes are little endian on every supported machine.
_STORAGES = {
    "FloatStorage": (mx.float32, "<u4"),
    "HalfStorage": (mx.float16, "<u2"),
    "BFloat16Storage": (mx.bfloat16, "<u2"),
}


class _Storage(NamedTuple):
    dtype: mx.Dtype
    raw: np.ndarray


def read_mask_embedding(path: Path) -> tuple[int | None, mx.array]:
    """Read ``mask_embedding.pt``: a tensor, or a dict of ``mask_token_id`` and ``embedding``.

    Returns:
        The mask token's id, if the file says, and its embedding [hidden_size].

    Raises:
        UserError: The file is damaged, or holds anything other than that.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            value, token_id = _Reader(archive).load(), None
        if isinstance(value, dict) and set(value) == {"mask_token_id", "embedding"}:
            token_id, value = value["mask_token_id"], value["embedding"]
            if type(token_id) is not int:
                raise pickle.UnpicklingError("mask_token_id is not an integer")
        if not isinstance(value, mx.array):
            raise pickle.UnpicklingError(f"it holds a {type(value).__name__}")
    # A hostile or damaged pickle can fail in any way; whatever it was, none of its code ran.
    except Exception as error:
        raise UserError(
            f"{path} cannot be read as a mask embedding ({error}); it must be a torch.save file "
            "of one tensor, or of mask_token_id and embedding."
        ) from error
    return token_id, value


class _Reader(pickle.Unpickler):
    """An unpickler that can build tensors of three dtypes and ordered dicts, and nothing else."""

    def __init__(self, archive: zipfile.ZipFile):
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise pickle.UnpicklingError("it is not a torch.save archive")
        self._archive = archive
        self._folder = pickles[0].removesuffix("data.pkl")
        with self._open("data.pkl", _LARGEST_PICKLE) as file:
            pickled = file.read()
        _check_opcodes(pickled)
        super().__init__(io.BytesIO(pickled))

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return name
        known = {
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, _grad, _hooks: tensor,
            ("collections", "OrderedDict"): collections.OrderedDict,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it wants to run {module}.{name}")
        return known[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        kind, storage, key, _device, count = pid
        if kind != "storage" or storage not in _STORAGES:
            raise pickle.UnpicklingError(f"it has a storage of kind {storage!r}")
        dtype, raw = _STORAGES[storage]
        with self._open(f"data/{key}") as file:
            values = np.frombuffer(file.read(), raw)
        if len(values) != count:
            raise pickle.UnpicklingError(f"its storage has {len(values)} of {count} values")
        return _Storage(dtype, values)

    def _open(self, name: str, largest: int = _LARGEST_ENTRY) -> Any:
        if self._archive.getinfo(self._folder + name).file_size > largest:
            raise pickle.UnpicklingError(f"{name} is larger than any embedding")
        return self._archive.open(self._folder + name)


def _check_opcodes(pickled: bytes) -> None:
    """Check that reading a pickle takes no more memory than its own size explains."""
    known = _OPCODES.split()
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name not in known:
            raise pickle.UnpicklingError(f"it has {opcode.name}, which no tensor needs")
        if opcode.name == "LONG_BINPUT" and argument > len(pickled):
            raise pickle.UnpicklingError(f"it remembers something as number {argument}")


def _rebuild_tensor(
    storage: Any, offset: Any, shape: Any, stride: Any, _grad: Any, _hooks: Any, *_meta: Any
) -> mx.array:
    if not isinstance(storage, _Storage) or type(offset) is not int or offset < 0:
        raise pickle.UnpicklingError("its tensor has no storage")
    whole = all(type(n) is int and n >= 0 for n in (*shape, *stride))
    if not whole or len(shape) > _MOST_AXES:
        raise pickle.UnpicklingError("its tensor has no plain shape")
    steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    if any(n > 1 and have != need for n, have, need in zip(shape, stride, steps, strict=True)):
        raise pickle.UnpicklingError("its tensor is not contiguous")
    raw = storage.raw[offset : offset + math.prod(shape)]
    if len(raw) < math.prod(shape):
        raise pickle.UnpicklingError("its tensor is larger than its storage")
    return mx.array(raw.astype(raw.dtype.newbyteorder("="))).view(storage.dtype).reshape(shape)
