"""The files of a checkpoint, here or on the Hub, and its tensors by their headers alone."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from huggingface_hub import HfApi
from huggingface_hub.errors import SafetensorsParsingError

from ..errors import UserError
from ..files import check_json
from ..loading.hub import hub_errors
from .source import SUBFOLDER, Source
from .weights import TensorInfo, read_header, read_tensors


class File(NamedTuple):
    """A file of a checkpoint: its path here or in the repository, and its bytes."""

    path: str
    size: int


def list_files(source: Source) -> dict[str, File]:
    """The files where the drafter's weights are, by name.

    Raises:
        UserError: They are on the Hub, which cannot be reached.
    """
    return _hub_files(source) if source.repo else _local_files(source)


def list_tensors(source: Source, files: Mapping[str, File]) -> dict[str, TensorInfo]:
    """All tensors, by the index and headers alone.

    Raises:
        UserError: As conversion would raise it.
    """
    return read_tensors(source.weights_folder, files, lambda name: _header(source, files[name]))


def _local_files(source: Source) -> dict[str, File]:
    files = (path for path in source.weights_folder.iterdir() if path.is_file())
    return {path.name: File(str(path), path.stat().st_size) for path in files}


def _hub_files(source: Source) -> dict[str, File]:
    with hub_errors(source.name, source.revision):
        info = HfApi().model_info(source.repo, revision=source.revision, files_metadata=True)
    places: dict[str, dict[str, File]] = defaultdict(dict)
    for file in info.siblings or []:
        path = PurePosixPath(file.rfilename)
        places[str(path.parent)][path.name] = File(file.rfilename, file.size or 0)
    beside = places[source.subfolder or "."]
    return beside if any(name.endswith(".safetensors") for name in beside) else places[SUBFOLDER]


def _header(source: Source, file: File) -> dict[str, TensorInfo]:
    """The tensors of a weight file, which need not be here."""
    if source.repo is None:
        return read_header(Path(file.path))
    try:
        with hub_errors(source.name, source.revision):
            metadata = HfApi().parse_safetensors_file_metadata(
                source.repo, file.path, revision=source.revision
            )
    except UserError:
        raise
    # The Hub's client takes some headers at their word.
    except (SafetensorsParsingError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"The header of {file.path} is not readable.") from error
    found = {}
    for tensor, info in metadata.tensors.items():
        dtype, shape = info.dtype, info.shape
        check_json(tensor, f"The header of {file.path}")
        sizes = isinstance(shape, (list, tuple)) and all(
            type(n) is int and 0 <= n < 2**63 for n in shape
        )
        if not sizes or not isinstance(dtype, str):
            raise UserError(f"The header of {file.path} is not readable ({tensor}).")
        found[tensor] = TensorInfo(Path(file.path), dtype, tuple(shape))
    return found
