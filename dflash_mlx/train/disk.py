"""What a training writes: whole or not at all, and a full disk is said plainly."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what is raised where ``path`` cannot be written into a sentence.

    MLX then raises a RuntimeError, as it does if it cannot compute; so what is written must have
    been computed before.

    Raises:
        UserError: the file system refuses, for example because it is full.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        raise UserError(
            f"{path} cannot be written ({reason or error}). If its disk is full, free some space; "
            "the same command with --resume then goes on."
        ) from error


@contextmanager
def replacing(path: Path, mark: str = "") -> Iterator[Path]:
    """A path to write a file or a folder to, which takes the place of ``path`` at the end.

    If the block fails, ``path`` stays as it was and what was written is removed. An older folder
    must be out of the way by then.

    Args:
        path: what is to be replaced.
        mark: tells apart processes that may write the same at the same time.

    Raises:
        UserError: as :func:`writing`.
    """
    # MLX insists on the suffix.
    partial = path.with_suffix(f".partial{mark}{path.suffix}")
    try:
        with writing(path):
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
