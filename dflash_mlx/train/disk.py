"""What a training writes: whole or not at all, and a full disk is said plainly."""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def read_lines(path: Path, keys: Iterable[str], head: int = 0) -> list[dict[str, Any]]:
    """The JSON objects in a file, one a line; the file may be missing.

    A last line without an end was cut short, and is left out.

    Args:
        path: the file.
        keys: what each object must have.
        head: how many of the first ones need not have them.

    Raises:
        UserError: a line is damaged.
    """
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    found = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or (number > head and not entry.keys() >= set(keys)):
            raise UserError(
                f"{path} is damaged in line {number}; remove that line and those after it, or the "
                "file."
            )
        found.append(entry)
    return found


def write_lines(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    """Write a file anew in one step, with these objects, if it holds anything else.

    A file that is as it should be is left alone: other processes may be reading it.

    Raises:
        UserError: it cannot be written; it is still as it was.
    """
    text = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
    if not path.exists() or path.read_bytes() != text:
        with replacing(path) as partial:
            partial.write_bytes(text)


def append_lines(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    """Append objects to a file.

    Raises:
        UserError: it cannot be written; what was before is still there.
    """
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)


class Log:
    """The log of a training: appends entries with a ``step`` to a file, and keeps them.

    Args:
        path: the file.
        step: entries after this step are of a run that was interrupted; they are dropped, for the
            steps are taken again. None begins anew, with the evaluation before the first step.

    Raises:
        UserError: the file is damaged, or cannot be written.
    """

    def __init__(self, path: Path, step: int | None = None):
        self._path = path
        found = read_lines(path, ["step"])
        self.entries = [e for e in found if step is not None and e["step"] <= step]
        write_lines(path, self.entries)

    def add(self, **entry: Any) -> None:
        """Append an entry."""
        self.entries.append(entry)
        append_lines(self._path, [entry])

    def curve(self, name: str) -> list[tuple[int, float]]:
        """Steps and values of the entries that have ``name``."""
        return [(e["step"], e[name]) for e in self.entries if name in e]
