"""Where dflash-mlx keeps what it made or fetched: one folder in the user's cache directory."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """The cache folder, ``$XDG_CACHE_HOME/dflash-mlx`` or ``~/.cache/dflash-mlx``.

    The folder is not created here; its writers make it when they have something to put in.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dflash-mlx"
