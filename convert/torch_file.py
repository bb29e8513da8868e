"""Read one tensor from a ``torch.save`` file without torch and without running its code.

A ``.pt`` file is a zip archive with ``data.pkl`` (a pickle that refers to storages by key) and
``data/<key>`` (raw bytes), see ``torch/serialization.py``. A pickle can call anything; this reader
only knows the few names that rebuild a tensor, and refuses the file at any other.
"""

import collections
import math
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from ..errors import UserError

_LARGEST_ENTRY = 64 * 1024 * 1024
_STORAGES = {
    "FloatStorage": (mx.float32, np.uint32),
    "HalfStorage": (mx.float16, np.uint16),
    "BFloat16Storage": (mx.bfloat16, np.uint16),
}


class MaskEmbedding(NamedTuple):
    """The mask token's embedding [hidden_size], and the token's id if the file says."""

    token_id: int | None
    embedding: mx.array


class _Storage(NamedTuple):
    dtype: mx.Dtype
    raw: np.ndarray


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]


def read_mask_embedding(path: Path) -> MaskEmbedding:
    """Read ``mask_embedding.pt``: a tensor, or a dict of ``mask_token_id`` and ``embedding``.

    Raises:
        UserError: The file is damaged, or holds anything other than that.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            value = _Reader(archive).load()
        if isinstance(value, dict) and set(value) == {"mask_token_id", "embedding"}:
            token_id, tensor = value["mask_token_id"], value["embedding"]
            if type(token_id) is not int:
                raise pickle.UnpicklingError("mask_token_id is not an integer")
        else:
            token_id, tensor = None, value
        return MaskEmbedding(token_id, _array(tensor))
    # A hostile or damaged pickle can fail in any of these ways; none of them ran its code.
    except (
        zipfile.BadZipFile,
        zlib.error,
        pickle.UnpicklingError,
        OSError,
        EOFError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise UserError(
            f"{path} cannot be read as a mask embedding ({error}); it must be a torch.save file "
            "of one tensor, or of mask_token_id and embedding."
        ) from error


class _Reader(pickle.Unpickler):
    """An unpickler that can build tensors of three dtypes and ordered dicts, and nothing else."""

    def __init__(self, archive: zipfile.ZipFile):
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise pickle.UnpicklingError("it is not a torch.save archive")
        self._archive = archive
        self._folder = pickles[0].removesuffix("data.pkl")
        super().__init__(_open(archive, pickles[0]))

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return name
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _rebuild_parameter
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        raise pickle.UnpicklingError(f"it wants to run {module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        kind, storage, key, _device, count = pid
        if kind != "storage" or storage not in _STORAGES:
            raise pickle.UnpicklingError(f"it has a storage of kind {storage!r}")
        dtype, raw = _STORAGES[storage]
        with _open(self._archive, f"{self._folder}data/{key}") as file:
            # The files that torch writes are little endian on every supported machine.
            values = np.frombuffer(file.read(), dtype=np.dtype(raw).newbyteorder("<"))
        if len(values) != count:
            raise pickle.UnpicklingError(f"its storage has {len(values)} of {count} values")
        return _Storage(dtype, values)


def _open(archive: zipfile.ZipFile, name: str) -> Any:
    if archive.getinfo(name).file_size > _LARGEST_ENTRY:
        raise pickle.UnpicklingError(f"{name} is larger than any embedding")
    return archive.open(name)


def _rebuild_tensor(
    storage: Any, offset: Any, shape: Any, stride: Any, _grad: Any, _hooks: Any, *_meta: Any
) -> _Tensor:
    if not isinstance(storage, _Storage) or type(offset) is not int or offset < 0:
        raise pickle.UnpicklingError("its tensor has no storage")
    if not all(type(n) is int and n >= 0 for n in (*shape, *stride)):
        raise pickle.UnpicklingError("its tensor has no plain shape")
    steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    if any(n > 1 and have != need for n, have, need in zip(shape, stride, steps, strict=True)):
        raise pickle.UnpicklingError("its tensor is not contiguous")
    return _Tensor(storage, offset, tuple(shape))


def _rebuild_parameter(tensor: Any, _grad: Any, _hooks: Any) -> Any:
    return tensor


def _array(value: Any) -> mx.array:
    if not isinstance(value, _Tensor):
        raise pickle.UnpicklingError(f"it holds a {type(value).__name__}")
    end = value.offset + math.prod(value.shape)
    if end > len(value.storage.raw):
        raise pickle.UnpicklingError("its tensor is larger than its storage")
    raw = value.storage.raw[value.offset : end].astype(value.storage.raw.dtype.newbyteorder("="))
    return mx.array(raw).view(value.storage.dtype).reshape(value.shape)
