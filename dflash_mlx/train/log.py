"""The log of a training: a JSON object a line."""

from pathlib import Path
from typing import Any

from .lines import append_lines, read_lines, write_lines


class Log:
    """Appends entries with a ``step`` to a file, and keeps them.

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
