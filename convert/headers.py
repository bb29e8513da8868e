"""What tensors a checkpoint has and how large it is, without reading or downloading weights."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi
from huggingface_hub.errors import SafetensorsParsingError

from ..errors import UserError
from ..loading.hub import hub_errors
from .safetensors_file import TensorInfo, read_header
from .source import MASK_FILE, SUBFOLDER, Source, weights_folder
from .weights import indexed_files


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
    listed = indexed_files(weights_folder(source))
    weights = {name: size for name, size in sizes.items() if name.endswith(".safetensors")}
    wanted = {"model.safetensors"} if listed is None else listed
    weights = {n: size for n, size in weights.items() if PurePosixPath(n).name in wanted} or weights
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
    parts: dict[str, dict[str, int]] = defaultdict(dict)
    for file in info.siblings or []:
        parts[str(PurePosixPath(file.rfilename).parent)][file.rfilename] = file.size or 0
    beside = parts[source.subfolder or "."]
    below = parts[SUBFOLDER]
    return beside if any(name.endswith(".safetensors") for name in beside) else below


def _hub_header(source: Source, name: str) -> dict[str, TensorInfo]:
    try:
        with hub_errors(source.name, source.revision):
            metadata = HfApi().parse_safetensors_file_metadata(
                source.repo, name, revision=source.revision
            )
    except SafetensorsParsingError as error:
        raise UserError(f"{source.name}: the header of {name} is not readable.") from error
    return {
        tensor: TensorInfo(Path(name), info.dtype, tuple(info.shape))
        for tensor, info in metadata.tensors.items()
    }
