"""Tiny models on disk that commands only read."""

from pathlib import Path

import pytest
from support.folders import save_drafter, save_target


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ``target``, a ``drafter`` for it, and a ``small`` target."""
    folder = tmp_path_factory.mktemp("models")
    save_target(folder / "target")
    save_drafter(folder / "drafter")
    save_target(folder / "small", num_hidden_layers=1)
    return folder


@pytest.fixture
def pair(models: Path) -> list[str]:
    """The options that name target and drafter."""
    return ["--model", str(models / "target"), "--draft-model", str(models / "drafter")]
