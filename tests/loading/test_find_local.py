"""Where a model is on this machine, without asking anybody."""

from pathlib import Path

import pytest

from dflash_mlx.loading.hub import find_local
from dflash_mlx.measure.machine import describe_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in the Hub's cache, as huggingface_hub lays it out."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repo = tmp_path / "models--org--name"
    folder = repo / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    return folder


def test_snapshot_and_its_commit(snapshot):
    for revision in (None, "main", COMMIT):
        assert find_local("org/name", revision) == snapshot
    assert describe_model("org/name") == {"name": "org/name", "revision": None, "commit": COMMIT}


def test_folder_has_no_commit(tmp_path):
    assert find_local(tmp_path) == tmp_path
    assert describe_model(str(tmp_path))["commit"] is None


def test_what_is_not_here(snapshot):
    for name, revision in (("org/other", None), ("org/name", "v2"), ("not a name", None)):
        assert find_local(name, revision) is None
    assert describe_model("org/other", "v1") == {
        "name": "org/other",
        "revision": "v1",
        "commit": None,
    }


def test_the_embedded_model_has_a_name():
    assert describe_model(None)["name"] == "SmolLM2-135M-Instruct"
