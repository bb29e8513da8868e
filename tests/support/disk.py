"""A disk that takes no more."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What the user is told.
FULL = r"cannot be written \((the disk is full|the file is larger .+)\)\. Once .* --resume"
# What Python raises, and what MLX does.
ERRORS = [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    RuntimeError("[write] Unable to write 3989600 bytes to file."),
]


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes: the system refuses the rest, in any library."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def listing(folder: Path) -> dict[str, bytes]:
    """All files below a folder, and what is in them."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
