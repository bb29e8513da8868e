"""What a training writes: whole or not at all, and a full disk is said plainly."""

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from .. import files
from ..errors import UserError

_REMEDY = " Once that is mended, the same command with --resume goes on."
writing = partial(files.writing, remedy=_REMEDY)
replacing = partial(files.replacing, remedy=_REMEDY)


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
