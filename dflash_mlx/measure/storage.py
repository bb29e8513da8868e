"""Where models are kept, how much they take, and what an interrupted conversion left there."""

import shutil
import time
from pathlib import Path

from huggingface_hub import CacheNotFound, scan_cache_dir
from huggingface_hub.constants import HF_HUB_CACHE

from ..errors import counted
from ..files import cache_dir
from .finding import Finding
from .machine import GB

# How the folders are called that a conversion or a download works in before it is done.
_UNFINISHED = (".*.partial", ".fetching-*")
_DAY = 24 * 3600


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
    size = folder_size(folder)
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
    folders = leftovers(cache_dir())
    if not folders:
        return None
    names = ", ".join(str(folder) for folder in folders)
    size = sum(map(folder_size, folders))
    data = {"folders": [str(folder) for folder in folders], "size": size}
    what = f"what interrupted conversions left ({size / GB:.1f} GB): {names}"
    if not clean:
        text = f"`dflash-mlx doctor --clean` would remove {what}."
        return Finding("leftovers", "advice", text, data)
    for folder in folders:
        shutil.rmtree(folder)
    return Finding("leftovers", "ok", f"Removed {what}.", data)


def leftovers(folder: Path) -> list[Path]:
    """Folders below ``folder`` in which nobody has worked for a day."""
    found = [p for name in _UNFINISHED for p in folder.rglob(name) if p.is_dir()]
    old = time.time() - _DAY
    return sorted(p for p in found if not p.is_symlink() and _last_change(p) < old)


def folder_size(folder: Path) -> int:
    """Bytes of all files below ``folder``."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


def _last_change(folder: Path) -> float:
    return max(p.stat().st_mtime for p in (folder, *folder.rglob("*")))
