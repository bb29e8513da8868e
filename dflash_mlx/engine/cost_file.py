"""What a pair's rounds cost, kept from one process to the next."""

import copy
import fcntl
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UserError, os_reason
from ..files import cache_dir, read_json_object
from .costs import CostTable

# A table is written again when a time in it, or the acceptance, has moved by more than this share.
MOVED = 0.05
# The file's format; a file of another one is not read.
FORMAT = 3


class CostFile:
    """The file that keeps a pair's table from one process to the next.

    What this process has read or written last is held, so that the file is read again only when
    another process has replaced it.

    Args:
        key: all that the costs depend on.
    """

    def __init__(self, key: Mapping[str, Any]):
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        self.path = cache_dir() / "costs" / f"{digest[:16]}.json"
        self._key = key
        self._known: CostTable | None = None
        self._stamp: tuple[int, int] | None = None

    def read(self) -> CostTable | None:
        """The stored table; None if there is none, or what is there cannot be trusted."""
        self._stamp = _stamp(self.path)
        try:
            content = read_json_object(self.path)
            if content.get("format") != FORMAT or content.get("key") != self._key:
                return None
            table = CostTable.from_dict(content.get("table"))
        except (UserError, ValueError):
            return None
        self._known = copy.deepcopy(table)
        return table

    def write(self, table: CostTable) -> None:
        """Write the file, in one step; where that is not possible, warn and go on."""
        with self._alone():
            self._write(table)

    def _write(self, table: CostTable) -> None:
        self._known = copy.deepcopy(table)
        content = {"format": FORMAT, "key": self._key, "table": table.to_dict()}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=".writing-") as scratch:
                written = Path(scratch) / self.path.name
                written.write_text(json.dumps(content, indent=1) + "\n")
                self._stamp = _stamp(written)
                os.replace(written, self.path)
        except OSError as error:
            warnings.warn(
                f"What rounds cost here cannot be stored in {self.path} "
                f"({os_reason(error)}), so it will be measured again next time.",
                stacklevel=2,
            )

    def update(self, table: CostTable) -> CostTable:
        """Write what texts have taught ``table``, if it is news.

        Returns:
            ``table``, or what another process has written since: that is not overwritten.
        """
        with self._alone():
            if _stamp(self.path) == self._stamp:
                if table.differs(self._known, MOVED):
                    self._write(table)
                return table
            theirs = self.read()
            if theirs is None:
                self._write(table)
            return theirs or table

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from writing between a look at the file and its replacement."""
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder, os.O_RDONLY)
        except OSError:
            # Writing will say what is wrong with the folder.
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _stamp(path: Path) -> tuple[int, int] | None:
    """What tells one writing of a file from another; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
