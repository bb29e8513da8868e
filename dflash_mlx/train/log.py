"""The log of a training: a JSON object a line."""

import json
from pathlib import Path
from typing import Any


class Log:
    """Appends entries with a ``step`` to a file, and keeps them.

    Args:
        path: the file.
        step: entries after this step are of a run that was interrupted; they are dropped, for the
            steps are taken again.
    """

    def __init__(self, path: Path, step: int = 0):
        self._path = path
        self.entries: list[dict[str, Any]] = []
        if path.exists():
            *lines, _ = path.read_text(encoding="utf-8").split("\n")
            self.entries = [e for e in map(json.loads, lines) if e["step"] <= step]
        text = "".join(json.dumps(entry) + "\n" for entry in self.entries)
        path.write_text(text, encoding="utf-8")

    def add(self, **entry: Any) -> None:
        """Append an entry."""
        self.entries.append(entry)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def curve(self, name: str) -> list[tuple[int, float]]:
        """Steps and values of the entries that have ``name``."""
        return [(e["step"], e[name]) for e in self.entries if name in e]
