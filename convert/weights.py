"""A checkpoint folder's weights: which files, which tensors, and whether they are sound.

Names and shapes are checked from the files' headers, values one tensor at a time, so a checkpoint
of several gigabytes never sits in memory for a check. No code of the checkpoint is run.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
from safetensors import SafetensorError, safe_open
from tqdm import tqdm

from ..errors import UserError, os_reason
from ..files import parse_json_object, read_json_object

# A bar only on a terminal, and only when the work takes noticeable time.
BAR = {"delay": 1.0, "disable": None, "leave": False}
INDEX = "*.safetensors.index.json"
DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}
STORED_DTYPES = {"F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32}
# A bias, and the parts of DFlash 2 that training starts from zero.
_MAY_BE_ZERO = (
    ".bias",
    ".kernel_projection.weight",
    ".successor_codebook",
    ".successor_codebook.weight",
)
_LARGEST_FLOAT16 = 65504.0


class TensorInfo(NamedTuple):
    """Where a tensor is and what it looks like; ``dtype`` is safetensors' name for it."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def listed(names: Iterable[str], most: int = 4) -> str:
    """Some names for a message, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def read_index(folder: Path) -> dict[str, str]:
    """The file of each tensor by the index of the shards, which need not be here; or nothing.

    Raises:
        UserError: There are several indices, or it is damaged, or names what no shard is called.
    """
    indices = sorted(folder.glob(INDEX))
    if not indices:
        return {}
    if len(indices) > 1:
        raise UserError(
            f"There are several weight indices ({listed(i.name for i in indices)}); keep one."
        )
    files = read_json_object(indices[0]).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise UserError(f"{indices[0]} has no weight_map; download the checkpoint again.")
    for file in files.values():
        # A name with a folder in it could lead out of the checkpoint.
        if (
            not isinstance(file, str)
            or Path(file).name != file
            or Path(file).suffix != ".safetensors"
        ):
            raise UserError(
                f"{indices[0]} names {file!r}; only safetensors files beside the index are read."
            )
    return files


def weight_files(index: Mapping[str, str], present: Iterable[str]) -> list[str]:
    """The names of the weight files: the index's, ``model.safetensors``, or one other safetensors.

    Args:
        index: See :func:`read_index`.
        present: The names of all files, here or on the Hub.

    Raises:
        UserError: There are none, or not all, or more than anything tells apart.
    """
    present = sorted(present)
    if index:
        names = sorted(set(index.values()))
        if missing := [name for name in names if name not in present]:
            raise UserError(f"The checkpoint lacks the shard {listed(missing)}; download it again.")
        return names
    found = [name for name in present if name.endswith(".safetensors")]
    if "model.safetensors" in found or len(found) == 1:
        return ["model.safetensors"] if "model.safetensors" in found else found
    if found:
        raise UserError(
            f"The checkpoint has {len(found)} safetensors files but no index "
            "(model.safetensors.index.json); download it again."
        )
    others = {".bin": "a pickle, which can run code", ".gguf": "a GGUF file"}
    for suffix, kind in others.items():
        if named := [name for name in present if name.endswith(suffix)]:
            raise UserError(
                f"The checkpoint has its weights in {listed(named)}, {kind}; this version reads "
                "only safetensors."
            )
    raise UserError("The checkpoint has no weights: no .safetensors file was found.")


def read_tensors(
    folder: Path,
    present: Iterable[str] | None = None,
    header: Callable[[str], dict[str, TensorInfo]] | None = None,
) -> dict[str, TensorInfo]:
    """All tensors of a checkpoint, by the headers of its weight files.

    Args:
        folder: Where the weights are, or at least their index.
        present: The names of all files, if they are not in the folder.
        header: Reads a file's header, if it is not in the folder.

    Raises:
        UserError: As :func:`weight_files`; or a tensor is there twice or not where the index says,
            or a file is damaged.
    """
    if present is None:
        present = [path.name for path in folder.iterdir() if path.is_file()]
    index, tensors = read_index(folder), {}
    files = weight_files(index, present)
    for file in files:
        for name, info in (header(file) if header else read_header(folder / file)).items():
            if name in tensors:
                raise UserError(
                    f"{name} is in both {tensors[name].file.name} and {file}; "
                    "remove the file that does not belong to the checkpoint."
                )
            tensors[name] = info
    if not tensors:
        raise UserError(f"The checkpoint has no tensors in {listed(files)}.")
    for name, file in index.items():
        if name not in tensors or tensors[name].file.name != file:
            raise UserError(
                f"The index says that {name} is in {file}, but it is not; "
                "download the checkpoint again."
            )
    return tensors


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a safetensors file, by name.

    Raises:
        UserError: The file is unreadable, truncated or corrupt.
    """
    try:
        with safe_open(path, framework="numpy"), path.open("rb") as file:
            text = file.read(int.from_bytes(file.read(8), "little"))
    except SafetensorError as error:
        raise UserError(f"{path} is truncated or corrupt ({error}); download it again.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({os_reason(error)}).") from error
    # Of two tensors of one name, safetensors would take either and say nothing.
    header = parse_json_object(text, f"the header of {path.name}")
    header.pop("__metadata__", None)
    return {n: TensorInfo(path, x["dtype"], tuple(x["shape"])) for n, x in header.items()}


def check_values(tensors: dict[str, mx.array], dtype: mx.Dtype) -> None:
    """Check every tensor as :func:`check_array` does, with a bar where it takes long.

    Args:
        tensors: By their names in the files, which messages give; emptied, so that values are
            freed as soon as they are checked.
        dtype: The dtype that the values will be cast to, which must be able to hold them.

    Raises:
        UserError: Names the first unsound tensor.
    """
    for name in tqdm(list(tensors), desc="Checking", unit="tensor", **BAR):
        check_array(name, tensors.pop(name), dtype)


def check_array(name: str, array: mx.array, dtype: mx.Dtype) -> None:
    """Check that an array is finite, also as ``dtype``, and not all zero.

    Raises:
        UserError: Names the tensor and what it holds.
    """
    largest = mx.abs(array).max().astype(mx.float32)
    finite = mx.isfinite(array).all().item()
    if not finite:
        raise UserError(f"{name} holds NaN or infinity; the checkpoint is damaged or unfinished.")
    # Anything else that is zero was never trained or never saved.
    if largest.item() == 0 and not name.endswith(_MAY_BE_ZERO):
        raise UserError(f"{name} is all zeros; the checkpoint is damaged or unfinished.")
    if dtype == mx.float16 and largest.item() > _LARGEST_FLOAT16:
        raise UserError(
            f"{name} holds {largest.item():.6g}, which float16 cannot; use --dtype bfloat16."
        )
