"""Drafters for loading: used as they are in MLX format, else converted once into the cache."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from ..drafter.config import FORMAT_VERSION
from ..files import cache_dir, remove_stale
from .convert import convert_source
from .reader import is_mlx_format
from .source import MASK_FILE, Source, fetch_weights, find_source, weights_folder

# Counts changes of the converter's output, so that older cached conversions are not reused.
_CONVERTER_VERSION = 2


def convert_cached(
    path_or_repo: str | Path, revision: str | None = None, *, local_only: bool = False
) -> Path:
    """A folder with the drafter in MLX format, converted once if it is not yet in that format.

    Conversions are kept in the user's cache, by the commit of a Hub repository or by the path,
    sizes and times of a local checkpoint's files. Two processes may convert the same drafter at
    the same time; the first to finish wins.

    Args:
        path_or_repo: A Hub id or a local folder, in MLX format or a checkpoint.
        revision: Branch, tag or commit of a Hub repository.
        local_only: Take a Hub repository from the Hub's cache, and download nothing.

    Raises:
        UserError: As ``convert``.
    """
    source = find_source(path_or_repo, revision, local_only=local_only)
    if is_mlx_format(source):
        fetch_weights(source)
        return source.folder
    name = re.sub(r"[^\w.-]+", "--", source.name)
    destination = cache_dir() / "drafters" / f"{name}-{_cache_key(source)}"
    if not destination.is_dir():
        remove_stale(destination.parent)
        convert_source(source, destination, keep_existing=True)
    return destination


def _cache_key(source: Source) -> str:
    identity: list[Any] = [FORMAT_VERSION, _CONVERTER_VERSION]
    if source.repo is not None:
        identity += [source.repo, source.revision]
    else:
        identity.append(str(source.folder.resolve()))
        folders = {source.folder, weights_folder(source)}
        for pattern in ("*.json", "*.safetensors", MASK_FILE):
            for path in sorted(path for folder in folders for path in folder.glob(pattern)):
                stat = path.stat()
                identity.append([path.name, stat.st_size, stat.st_mtime_ns])
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
