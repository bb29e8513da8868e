"""What tensors a checkpoint has, and how large it is, without reading or downloading its weights."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi

from ..errors import UserError
from ..hub import hub_errors
from .safetensors_file import TensorInfo, read_header
from .source import MASK_FILE, Source, weights_folder


@dataclass(frozen=True)
class Headers:
    """A checkpoint's weight files.

    Attributes:
        size: Bytes of all of them.
        files: Their names.
        has_mask_file: Whether there is a ``mask_embedding.pt`` beside them.
    """

    size: int
    files: tuple[str, ...]
    has_mask_file: bool


def find_headers(source: Source) -> Headers:
    """List a checkpoint's weight files; of a Hub repository, by asking the Hub.

    Raises:
        UserError: The Hub cannot be reached.
    """
    sizes = _local_sizes(source) if source.repo is None else _hub_sizes(source)
    weights = {name: size for name, size in sizes.items() if name.endswith(".safetensors")}
    beside = [name for name in sizes if PurePosixPath(name).name == MASK_FILE]
    return Headers(sum(weights.values()), tuple(sorted(weights)), bool(beside))


def read_tensors(source: Source, headers: Headers) -> dict[str, TensorInfo]:
    """Names, shapes and dtypes of all tensors, from the files' headers.

    Raises:
        UserError: A header is damaged, a tensor is there twice, or the Hub cannot be reached.
    """
    tensors: dict[str, TensorInfo] = {}
    for name in headers.files:
        found = (
            read_header(weights_folder(source) / name)
            if source.repo is None
            else _hub_header(source, name)
        )
        if twice := sorted(set(found) & set(tensors)):
            raise UserError(f"{twice[0]} is in two files of {source.name}.")
        tensors |= found
    return tensors


def _local_sizes(source: Source) -> dict[str, int]:
    files: Iterable[Path] = weights_folder(source).iterdir()
    return {path.name: path.stat().st_size for path in files if path.is_file()}


def _hub_sizes(source: Source) -> dict[str, int]:
    """Sizes of the files in the drafter's part of the repository, by their paths in it."""
    with hub_errors(source.name, source.revision):
        info = HfApi().model_info(source.repo, revision=source.revision, files_metadata=True)
    files = {file.rfilename: file.size or 0 for file in info.siblings or []}
    parts = {
        folder: {name: size for name, size in files.items() if str(PurePosixPath(name).parent) == folder}
        for folder in (source.subfolder or ".", "dflash")
    }
    return next((part for part in parts.values() if any(".safetensors" in n for n in part)), {})


def _hub_header(source: Source, name: str) -> dict[str, TensorInfo]:
    with hub_errors(source.name, source.revision):
        metadata = HfApi().parse_safetensors_file_metadata(
            source.repo, name, revision=source.revision
        )
    return {
        tensor: TensorInfo(Path(name), info.dtype, tuple(info.shape))
        for tensor, info in metadata.tensors.items()
    }
