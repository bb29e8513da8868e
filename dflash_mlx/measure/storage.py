"""Where models are kept, how much they take, and what an interrupted conversion left there."""

import shutil
from pathlib import Path

from huggingface_hub import CacheNotFound, scan_cache_dir
from huggingface_hub.constants import HF_HUB_CACHE

from ..errors import counted
from ..files import cache_dir, stale_folders
from .finding import Finding
from .machine import GB


def check_hub_cache() -> Finding:
    """The Hugging Face Hub's cache."""
    try:
        info = scan_cache_dir()
    except CacheNotFound:
        text = f"The Hub's cache would be {HF_HUB_CACHE}; nothing was downloaded yet."
        return Finding("hub-cache", "ok", text, {"folder": HF_HUB_CACHE, "size": 0})
    size = info.size_on_disk
    count = counted(len(info.repos), "repository", "repositories")
    text = f"The Hub's cache is {HF_HUB_CACHE}: {count}, {size / GB:.1f} GB."
    return Finding("hub-cache", "ok", text, {"folder": HF_HUB_CACHE, "size": size})


def check_own_cache() -> Finding:
    """The cache of converted drafters and of the embedded target."""
    folder = cache_dir()
    size = _size(folder)
    data = {"folder": str(folder), "size": size}
    if not folder.is_dir():
        text = f"dflash-mlx's own cache would be {folder}; nothing is there yet."
    else:
        free = shutil.disk_usage(folder).free
        text = (
            f"dflash-mlx's own cache is {folder}: {size / GB:.1f} GB, with {free / GB:.1f} GB free "
            "on its disk."
        )
    return Finding("own-cache", "ok", text, data)


def check_leftovers(clean: bool) -> Finding | None:
    """Unfinished folders older than a day, removed if ``clean``; None if there are none."""
    folders = stale_folders(cache_dir())
    if not folders:
        return None
    names = ", ".join(str(folder) for folder in folders)
    size = sum(map(_size, folders))
    data = {"folders": [str(folder) for folder in folders], "size": size}
    what = f"what interrupted conversions left ({size / GB:.1f} GB): {names}"
    if not clean:
        text = f"`dflash-mlx doctor --clean` would remove {what}."
        return Finding("leftovers", "advice", text, data)
    for folder in folders:
        shutil.rmtree(folder)
    return Finding("leftovers", "ok", f"Removed {what}.", data)


def _size(folder: Path) -> int:
    """Bytes of all files below ``folder``."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
