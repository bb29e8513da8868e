"""A checkpoint folder's weights: which files, which tensors, and whether they are sound.

Names and shapes are checked from the files' headers, values one tensor at a time, so a checkpoint
of several gigabytes never sits in memory for a check. No code of the checkpoint is run.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from ..drafter.config import DrafterConfig
from ..errors import UserError
from ..files import read_json_object
from .encodings import Encoded, decoded, logical_tensors
from .plan import DRAFT_TO_TARGET, Expected, explain_shape
from .quantization import Declared
from .safetensors_file import TensorInfo, read_header

_FLOATS = ("F16", "BF16", "F32")
_INTEGERS = ("I64", "I32")
# A bias, and the parts of DFlash 2 that training starts from zero.
_MAY_BE_ZERO = (
    ".bias",
    ".kernel_projection.weight",
    ".successor_codebook",
    ".successor_codebook.weight",
)
_LARGEST_FLOAT16 = 65504.0


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint.

    Attributes:
        files: The weight files.
        tensors: Every tensor by its name in the files, quantized ones as what they stand for.
        encoded: How to decode the quantized ones.
        dropped: Tensors of the files that are left out, each with the reason.
    """

    files: tuple[Path, ...]
    tensors: dict[str, TensorInfo]
    encoded: dict[str, Encoded]
    dropped: dict[str, str]


def open_checkpoint(folder: Path, declared: Declared) -> Checkpoint:
    """Find a folder's safetensors files and read their headers.

    Args:
        folder: With ``model.safetensors``, or shards and their index, or one other safetensors.
        declared: Which quantized encodings the configuration declares.

    Raises:
        UserError: No weights, a missing shard, a tensor twice, a truncated or corrupt file, or an
            encoding that is not read.
    """
    listed, files = _weight_files(folder)
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        for name, info in read_header(file).items():
            if name in tensors:
                raise UserError(
                    f"{name} is in both {tensors[name].file.name} and {file.name}; "
                    "remove the file that does not belong to the checkpoint."
                )
            tensors[name] = info
    if not tensors:
        raise UserError(f"{folder} has no tensors in {_names(f.name for f in files)}.")
    for name, file_name in listed.items():
        if name not in tensors or tensors[name].file.name != file_name:
            raise UserError(
                f"The index says that {name} is in {file_name}, but it is not; "
                "download the checkpoint again."
            )
    return Checkpoint(files, **logical_tensors(tensors, declared)._asdict())


def indexed_names(folder: Path) -> list[str] | None:
    """The tensors' names by the index of the shards, which need not be here yet; or None.

    Raises:
        UserError: The index is damaged.
    """
    indices = sorted(folder.glob("*.safetensors.index.json"))
    return list(_weight_map(indices[0])) if len(indices) == 1 else None


def indexed_files(folder: Path) -> set[str] | None:
    """The shards' names by their index; or None.

    Raises:
        UserError: The index is damaged.
    """
    indices = sorted(folder.glob("*.safetensors.index.json"))
    return set(map(str, _weight_map(indices[0]).values())) if len(indices) == 1 else None


def check_tensors(
    checkpoint: Checkpoint,
    used: Mapping[str, str],
    expected: Mapping[str, Expected],
    config: DrafterConfig,
) -> None:
    """Account for every tensor: none missing, none left over, shapes and dtypes as they must be.

    Args:
        checkpoint: The files.
        used: The names in the files, by MLX name.
        expected: What they must hold, by MLX name.
        config: Where the expected shapes come from, for the message.

    Raises:
        UserError: Names the tensors, what was found and what the config needs.
    """
    unexpected = sorted(used[name] for name in set(used) - set(expected))
    if missing := sorted(set(expected) - set(used)):
        extra = f"; it has the unknown {_names(unexpected)}" if unexpected else ""
        raise UserError(f"The checkpoint lacks {_names(missing)}{extra}. Download it again.")
    if unexpected:
        raise UserError(
            f"The checkpoint has {_names(unexpected)}, which a DFlash drafter with this "
            "config does not have; the weights and config.json do not belong together."
        )
    for name, wanted in expected.items():
        found = checkpoint.tensors[used[name]]
        if found.shape != wanted.shape:
            raise UserError(explain_shape(used[name], found.shape, wanted, config))
        _check_dtype(used[name], found.dtype, _INTEGERS if name == DRAFT_TO_TARGET else _FLOATS)


def _check_dtype(name: str, found: str, wanted: tuple[str, ...]) -> None:
    if found not in wanted:
        raise UserError(f"{name} has dtype {found}; this version converts only {_names(wanted)}.")


def check_values(tensors: dict[str, mx.array], dtype: mx.Dtype) -> Iterator[str]:
    """Check that every tensor is finite and not all zero, yielding each name when it is done.

    Args:
        tensors: By their names in the files, which messages give; emptied, so that values are
            freed as soon as they are checked.
        dtype: The dtype that the values will be cast to, which must be able to hold them.

    Raises:
        UserError: Names the tensor.
    """
    for name in list(tensors):
        check_array(name, tensors.pop(name), dtype)
        yield name


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


def stored_tensors(checkpoint: Checkpoint) -> dict[str, mx.array]:
    """All tensors by their names in the files, lazily: a value is read when it is first used."""
    arrays = {n: array for file in checkpoint.files for n, array in mx.load(str(file)).items()}
    return decoded(arrays, checkpoint.encoded, checkpoint.dropped)


def _weight_files(folder: Path) -> tuple[dict[str, str], tuple[Path, ...]]:
    """The index's ``{tensor: file name}`` (empty without an index) and the weight files."""
    indices = sorted(folder.glob("*.safetensors.index.json"))
    if len(indices) > 1:
        raise UserError(
            f"{folder} has several weight indices ({_names(i.name for i in indices)}); keep one."
        )
    if indices:
        return _indexed_files(indices[0])
    found = sorted(folder.glob("*.safetensors"))
    single = [path for path in found if path.name == "model.safetensors"] or found
    if len(single) == 1:
        return {}, (single[0],)
    if found:
        raise UserError(
            f"{folder} has {len(found)} safetensors files but no index "
            "(model.safetensors.index.json); download the checkpoint again."
        )
    pickles = [path.name for path in sorted(folder.glob("*.bin"))]
    if pickles:
        raise UserError(
            f"{folder} has its weights in {_names(pickles)}, a pickle, which can run code; "
            "this version reads only safetensors."
        )
    if models := sorted(folder.glob("*.gguf")):
        raise UserError(
            f"{folder} has its weights in {_names(path.name for path in models)}, a GGUF file, "
            "which this version does not read; use the original safetensors checkpoint."
        )
    raise UserError(f"{folder} has no weights: no .safetensors file was found.")


def _weight_map(index: Path) -> dict[str, str]:
    listed = read_json_object(index).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise UserError(f"{index} has no weight_map; download the checkpoint again.")
    return listed


def _indexed_files(index: Path) -> tuple[dict[str, str], tuple[Path, ...]]:
    listed = _weight_map(index)
    names = {name for name in listed.values() if isinstance(name, str)}
    # A name with a folder in it could lead out of the checkpoint.
    odd = [name for name in listed.values() if not isinstance(name, str) or Path(name).name != name]
    if odd or any(not name.endswith(".safetensors") for name in names):
        bad = odd or sorted(n for n in names if not n.endswith(".safetensors"))
        raise UserError(
            f"{index} names {bad[0]!r}; only safetensors files beside the index are read."
        )
    files = tuple(index.parent / name for name in sorted(names))
    if missing := [file.name for file in files if not file.is_file()]:
        raise UserError(
            f"{index.parent} lacks the shard {_names(missing)}; download the checkpoint again."
        )
    return listed, files


def _names(names: Iterable[str], most: int = 4) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
