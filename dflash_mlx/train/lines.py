"""Files of JSON objects, one a line, that a run appends to and its continuation reads."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import UserError
from .disk import replacing, writing


def read_lines(path: Path, keys: Iterable[str], head: int = 0) -> list[dict[str, Any]]:
    """The objects in a file, which may be missing; a last line without an end was cut short.

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
