"""Files of our own: the cache folder, JSON, writing whole or not at all, and a model's identity."""

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError, os_reason

if TYPE_CHECKING:
    import mlx.nn as nn

_SUFFIX = ".partial"
_STALE_SECONDS = 24 * 60 * 60
# A tokenizer's config has integers of 31 digits; nothing means anything by a longer one.
_MOST_DIGITS = 100


class Unwritable(UserError):
    """The file system refuses what is to be written."""


def cache_dir() -> Path:
    """The cache folder, ``$XDG_CACHE_HOME/dflash-mlx`` or ``~/.cache/dflash-mlx``.

    The folder is not created here; its writers make it when they have something to put in.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dflash-mlx"


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        UserError: The file is missing, is not JSON, is not an object, or has a key twice.
    """
    try:
        return parse_json_object(path.read_bytes(), str(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({os_reason(error)}).") from error


def parse_json_object(text: bytes, name: str) -> dict[str, Any]:
    """The object in ``text``; ``name`` is what messages call it.

    Raises:
        UserError: It is not JSON, is not an object, has a key twice, or what :func:`check_json`
            refuses.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # Python's reader would keep the last of two values and say nothing.
        result = dict(pairs)
        if len(result) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise UserError(f"{name} has {', '.join(twice)} twice; remove one.")
        return result

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_int=_integer)
        check_json(value, name)
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is not valid JSON ({error}); download it again.") from error
    if not isinstance(value, dict):
        raise UserError(f"{name} holds a {type(value).__name__}, not an object.")
    return value


def _integer(digits: str) -> int:
    """An integer of a JSON file; Python refuses longer ones, in words for programmers."""
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def check_json(value: Any, name: str) -> None:
    """Check that whatever is in a parsed JSON file can be computed with, and written down.

    Args:
        value: What was parsed.
        name: What messages call it.

    Raises:
        UserError: There is an integer beyond any size or id, or text that no file can hold.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            check_json(key, f"a key of {name}")
            check_json(item, name)
    elif isinstance(value, list):
        for item in value:
            check_json(item, name)
    elif isinstance(value, str) and not is_text(value):
        raise UserError(f"{name} has {value!r}, which is no text; correct it.")
    elif isinstance(value, int) and abs(value) >= 10**_MOST_DIGITS:
        raise UserError(f"{name} has an integer of more than {_MOST_DIGITS} digits; correct it.")


def is_text(value: str) -> bool:
    """Whether a file can hold a string: it has no half of a character, as names of files may."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def stale_folders(parent: Path) -> list[Path]:
    """What killed processes left half-written below a folder of the cache.

    A process that still runs is told by what it writes: something in its folder is younger than a
    day. Links are left alone.
    """
    found = []
    for partial in parent.rglob(f".*{_SUFFIX}"):
        if partial.is_symlink() or not partial.is_dir():
            continue
        try:
            newest = max(path.lstat().st_mtime for path in (partial, *partial.rglob("*")))
        except FileNotFoundError:
            # Its process is at work, or another one is cleaning up.
            continue
        if time.time() - newest > _STALE_SECONDS:
            found.append(partial)
    return sorted(found)


def remove_stale(parent: Path) -> None:
    """Remove the :func:`stale_folders`."""
    for folder in stale_folders(parent):
        shutil.rmtree(folder, ignore_errors=True)


def check_path(path: str | Path) -> None:
    """Check that a path is one that MLX can open as well.

    Raises:
        UserError: It has a zero byte, or bytes that are no UTF-8.
    """
    if "\0" in str(path) or not is_text(str(path)):
        raise UserError(
            f"The path {path} is not plain text in UTF-8, which MLX needs; rename the folder."
        )


def check_free(destination: Path) -> None:
    """Check that a folder can be written: that it does not exist, or is empty.

    Raises:
        UserError: Something is there, or no folder can have that name.
    """
    check_path(destination)
    if destination.is_dir() and not any(destination.iterdir()):
        return
    if destination.exists() or destination.is_symlink():
        raise UserError(f"{destination} already exists; remove it or choose another folder.")


@contextmanager
def staged(destination: Path, *, keep_existing: bool = False) -> Iterator[Path]:
    """A temporary folder beside ``destination`` that takes its place when the block succeeds.

    On any failure, an interrupt included, nothing is left behind.

    Args:
        destination: The folder to write, see :func:`check_free`.
        keep_existing: If somebody else has written it meanwhile, keep theirs and drop ours.

    Raises:
        Unwritable: The file system refuses, for example because it is full.
    """
    missing = [parent for parent in destination.parents if not parent.exists()]
    partial = destination.parent / f".{destination.name}.{uuid.uuid4().hex[:8]}{_SUFFIX}"
    done = False
    try:
        partial.mkdir(parents=True)
        yield partial
        done = _put(partial, destination, keep_existing)
    except OSError as error:
        raise Unwritable(f"{destination} cannot be written ({os_reason(error)}).") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if not done:
            _remove_empty(missing)


def _put(partial: Path, destination: Path, keep_existing: bool) -> bool:
    try:
        partial.rename(destination)
    except OSError:
        if not (keep_existing and destination.is_dir() and any(destination.iterdir())):
            raise
    return True


def _remove_empty(folders: list[Path]) -> None:
    """Remove the parents that were made for the destination, innermost first."""
    for folder in folders:
        if not folder.is_dir() or any(folder.iterdir()):
            return
        folder.rmdir()


@contextmanager
def writing(path: Path, remedy: str = "") -> Iterator[None]:
    """Turn what is raised where ``path`` cannot be written into a sentence, and ``remedy``.

    MLX then raises a RuntimeError, as it does if it cannot compute; so what is written must have
    been computed before.

    Raises:
        Unwritable: the file system refuses, for example because it is full.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise Unwritable(f"{path} cannot be written ({os_reason(error)}).{remedy}") from error


@contextmanager
def replacing(path: Path, mark: str = "", remedy: str = "") -> Iterator[Path]:
    """A path to write a file or a folder to, which takes the place of ``path`` at the end.

    If the block fails, ``path`` stays as it was and what was written is removed. An older folder
    must be out of the way by then.

    Args:
        path: what is to be replaced.
        mark: tells apart processes that may write the same at the same time.
        remedy: what to do if it cannot be written.

    Raises:
        Unwritable: as :func:`writing`.
    """
    # MLX insists on the suffix.
    partial = path.with_suffix(f".partial{mark}{path.suffix}")
    try:
        with writing(path, remedy):
            _remove(partial)
            yield partial
            partial.replace(path)
    finally:
        _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def fingerprint(module: "nn.Module") -> str:
    """A short hash of a model's class and its parameters' names, shapes, types and quantization.

    Nothing is read from the weights: two fine-tunes of one model are the same here, as they cost
    the same.
    """
    # Here, so that reading a JSON file does not load MLX.
    from mlx.utils import tree_flatten

    lines = [f"{type(module).__module__}.{type(module).__name__}"]
    for name, array in tree_flatten(module.parameters()):
        lines.append(f"{name} {array.shape} {array.dtype}")
    for name, part in module.named_modules():
        if "scales" in part:
            lines.append(f"{name} {part.bits} {part.group_size} {part.mode}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]
