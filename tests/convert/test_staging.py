"""What killed processes left in the cache: removed when it is old, and nothing else is."""

import os
import time
from pathlib import Path

from dflash_mlx.files import remove_stale

TWO_DAYS = 2 * 24 * 60 * 60


def left_behind(folder: Path, age: float, file_age: float | None = None) -> Path:
    """A half-written folder, as old as ``age`` seconds, and its file as old as ``file_age``."""
    (folder / "deeper").mkdir(parents=True)
    (folder / "deeper" / "model.safetensors").write_text("half")
    for path in (folder, *folder.rglob("*")):
        since = age if file_age is None or path.is_dir() else file_age
        os.utime(path, (time.time() - since,) * 2)
    return folder


def test_old_ones_go_and_young_ones_stay(tmp_path: Path) -> None:
    old = left_behind(tmp_path / ".a-0123.89abcdef.partial", TWO_DAYS)
    fetching = left_behind(tmp_path / ".fetching-x.partial", TWO_DAYS)
    young = left_behind(tmp_path / ".b-0123.89abcdef.partial", 60)
    at_work = left_behind(tmp_path / ".c-0123.89abcdef.partial", TWO_DAYS, file_age=60)
    kept = left_behind(tmp_path / "drafter", TWO_DAYS)
    remove_stale(tmp_path)
    assert not old.exists() and not fetching.exists()
    assert young.exists() and at_work.exists() and kept.exists()


def test_links_and_files_stay(tmp_path: Path) -> None:
    elsewhere = left_behind(tmp_path / "elsewhere", TWO_DAYS)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / ".link.partial").symlink_to(elsewhere)
    (cache / ".file.partial").write_text("")
    os.utime(cache / ".file.partial", (1, 1))
    remove_stale(cache)
    assert (elsewhere / "deeper" / "model.safetensors").exists()
    assert len(list(cache.iterdir())) == 2


def test_no_such_folder(tmp_path: Path) -> None:
    remove_stale(tmp_path / "none")
