"""A Hub with one known pair, as tiny folders under the names of real repositories."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from dflash_mlx.loading.known_pairs import pairs_of_target

from .folders import save_drafter, save_target

TARGET, DRAFTER = "mlx-community/Qwen3-8B-4bit", "z-lab/Qwen3-8B-DFlash-b16"
(PIN,) = [pair.revision for pair in pairs_of_target(TARGET) if pair.drafter == DRAFTER]


class Hub:
    """Repositories as folders, and a record of what was asked for."""

    def __init__(self) -> None:
        self.folders: dict[str, Path] = {}
        self.failure: Exception | None = None
        self.asked: list[tuple[str, str | None]] = []

    def snapshot_download(
        self, repo: str, *, revision: str | None, local_files_only: bool, **_: Any
    ) -> str:
        self.asked.append((repo, revision))
        if repo not in self.folders or (local_files_only and self.failure):
            raise LocalEntryNotFoundError("offline")
        if self.failure and repo == DRAFTER:
            raise self.failure
        return str(self.folders[repo])


def make_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A Hub with the pair, in place of the real one."""
    hub = Hub()
    hub.folders = {TARGET: tmp_path / "target", DRAFTER: tmp_path / "drafter"}
    save_target(hub.folders[TARGET])
    save_drafter(hub.folders[DRAFTER])
    monkeypatch.setattr("dflash_mlx.loading.hub.snapshot_download", hub.snapshot_download)
    monkeypatch.setattr("dflash_mlx.loading.hub._reachable", lambda *_: True)
    return hub
