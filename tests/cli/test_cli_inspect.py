"""The ``inspect`` command: text, JSON and exit code."""

import json
from pathlib import Path

import pytest
from support.folders import save_drafter, save_target

from dflash_mlx.cli.main import main


def test_drafter_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_drafter(tmp_path / "drafter")
    assert main(["inspect", str(tmp_path / "drafter")]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["checkpoint"] == "drafter"
    assert lines["kind"].startswith("drafter in MLX format")
    assert lines["runs"] == "yes"
    assert {"layers", "taps", "weights", "fits", "disk", "memory"} <= set(lines)


def test_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_target(tmp_path / "target")
    assert main(["inspect", str(tmp_path / "target")]) == 0
    out = capsys.readouterr().out
    assert "target (llama)" in out and "none is known" in out
    assert "checked when it is loaded" in out


def test_drafter_that_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"architectures": ["DSparkDraftModel"], "model_type": "qwen3", "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["inspect", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "drafter (DSpark)" in out and "no: This is a DSpark drafter" in out
    assert "hidden_size  64" in out


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_drafter(tmp_path / "drafter")
    assert main(["inspect", str(tmp_path / "drafter"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        found["format_version"] == 1
        and found["problem"] is None
        and found["drafter"]["block_size"] == 8
    )


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path / "none")]) == 2
    assert "no folder" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err
