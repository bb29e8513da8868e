"""Write a folder so that it is either complete or not there."""

import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError

_SUFFIX = ".partial"
_STALE_SECONDS = 24 * 60 * 60


def remove_stale(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder of the cache.

    A process that still runs is told by what it writes: something in its folder is younger than a
    day. Links are left alone.
    """
    for partial in folder.glob(f".*{_SUFFIX}"):
        if partial.is_symlink() or not partial.is_dir():
            continue
        try:
            newest = max(path.lstat().st_mtime for path in (partial, *partial.rglob("*")))
        except FileNotFoundError:
            # Its process is at work, or another one is cleaning up.
            continue
        if time.time() - newest > _STALE_SECONDS:
            shutil.rmtree(partial, ignore_errors=True)


def check_free(destination: Path) -> None:
    """Check that a folder can be written: that it does not exist, or is empty.

    Raises:
        UserError: Something is there.
    """
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
        UserError: The file system refuses, for example because it is full.
    """
    missing = [parent for parent in destination.parents if not parent.exists()]
    partial = destination.parent / f".{destination.name}.{uuid.uuid4().hex[:8]}{_SUFFIX}"
    done = False
    try:
        partial.mkdir(parents=True)
        yield partial
        done = _put(partial, destination, keep_existing)
    except OSError as error:
        raise UserError(f"{destination} cannot be written ({error.strerror or error}).") from error
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
