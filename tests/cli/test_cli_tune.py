"""``dflash-mlx tune``, and how ``generate`` asks for costs."""

import json
from pathlib import Path

import pytest
from support.folders import save_drafter, save_target

from dflash_mlx.cli import tune as command
from dflash_mlx.cli.main import main
from dflash_mlx.engine import calibration, cost_file


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cost_file, "cache_dir", lambda: tmp_path / "cache")
    # On a busy machine a progress bar would come at any time.
    monkeypatch.setattr(command, "PATIENCE", 1e9)
    return tmp_path / "cache" / "costs"


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "drafter")
    return ["--model", str(tmp_path / "target"), "--draft-model", str(tmp_path / "drafter")]


def test_table_is_printed_and_stored(pair, place, capsys):
    assert main(["tune", *pair]) == 0
    out, err = capsys.readouterr()
    (file,) = place.iterdir()
    table = json.loads(file.read_text())["table"]
    lines = out.splitlines()
    rows = [line.split() for line in lines if line.split()[0].isdecimal()]
    rows = [row for row in rows if len(row) == 9]
    assert [int(row[0]) for row in rows] == list(range(1, 9))
    for row in rows:
        size, *cells = row
        columns = [[float(cells[i]), float(cells[4 + i])] for i in range(4)]
        times = table["rounds"]["greedy"], table["drafts"], table["verifies"]
        parts = [by_size.get(size, [0.0, 0.0]) for by_size in times]
        parts.append([max(a - b - c, 0.0) for a, b, c in zip(*parts, strict=True)])
        for shown, stored in zip(columns, parts, strict=True):
            assert shown == pytest.approx([1e3 * x for x in stored], abs=0.006)
    assert sum("tokens starts with" in line for line in lines) == 2
    assert lines[-1] == f"Stored in {file}"
    assert err == ""


def test_what_is_not_believable_is_not_stored(pair, place, capsys, monkeypatch):
    """Here, nothing is."""
    monkeypatch.setattr(calibration, "UNBELIEVABLE", 0.0)
    assert main(["tune", *pair]) == 0
    out, err = capsys.readouterr()
    assert "Milliseconds of a round" in out and "Stored" not in out
    assert err.count("\n") == 1 and "uncertain" in err
    assert main(["generate", *pair, "-p", "hello", "-m", "9"]) == 0
    assert capsys.readouterr().err.count("uncertain") == 1
    assert not list(place.rglob("*.json"))


def test_what_could_not_be_stored_is_not_said_to_be(pair, place, capsys):
    place.parent.write_text("no folder")
    assert main(["tune", *pair]) == 0
    out, err = capsys.readouterr()
    assert "Stored" not in out
    assert err.startswith("warning: ") and "cannot be stored" in err and err.count("\n") == 1


@pytest.mark.parametrize("quiet", [[], ["--quiet"]], ids=["", "quiet"])
def test_progress_is_shown_once_and_when_it_takes_long(quiet, pair, place, capsys, monkeypatch):
    monkeypatch.setattr(command, "PATIENCE", 0.0)
    generate = ["generate", *pair, "-p", "hello", "-m", "9", *quiet]
    for first in (True, False):
        assert main(generate) == 0
        shown = "Measuring what rounds cost on this machine" in capsys.readouterr().err
        assert place.exists() and shown == (first and not quiet)


@pytest.mark.parametrize(
    ("models", "option"),
    [(2, ["--no-draft"]), (4, ["--block-size", "4"]), (4, ["-m", "1"]), (4, ["-m", "0"])],
)
def test_nothing_is_measured_where_the_size_is_known(models, option, pair, place, capsys):
    assert main(["generate", *pair[:models], "-p", "hello", "-m", "9", *option]) == 0
    assert not place.exists()


def test_a_prompt_that_is_too_long_is_refused_before_anything_is_measured(pair, place, capsys):
    config = Path(pair[1]) / "config.json"
    context = {"max_position_embeddings": 64}
    config.write_text(json.dumps(json.loads(config.read_text()) | context))
    assert main(["generate", *pair, "-p", "hello " * 20]) == 2
    assert "context is 64" in capsys.readouterr().err and not place.exists()


def test_tuning_needs_a_drafter(pair, place, capsys):
    assert main(["tune", *pair[:2]]) == 2
    err = capsys.readouterr().err
    assert err.endswith("error: No drafter is loaded, so there is no block size to tune.\n")
