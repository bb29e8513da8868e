"""The ``doctor`` command: sentences, JSON and exit codes."""

import json
import os
import sys

import pytest
from support.folders import save_drafter, save_target

from dflash_mlx.cli.main import main
from dflash_mlx.measure.doctor import examination
from dflash_mlx.measure.doctor.finding import Finding


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["doctor", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_this_machine_has_no_fault(capsys):
    code, out, err = run(capsys)
    assert (code, err) == (0, "") and out.endswith("\nNo faults found.\n")
    assert "FAULT" not in out and "A tiny pair in memory generated 48 tokens" in " ".join(
        out.split()
    )


def test_json(capsys, tmp_path):
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "drafter")
    pair = ("--model", tmp_path / "target", "--draft-model", tmp_path / "drafter")
    code, out, _ = run(capsys, "--json", *pair, "--context", "100")
    found = json.loads(out)
    assert code == 0 and found["ok"] is True
    assert all(set(f) == {"topic", "status", "text", "data"} for f in found["findings"])
    topics = {f["topic"]: f for f in found["findings"]}
    assert {"machine", "packages", "backend", "kernels", "generation", "hub-cache"} <= set(topics)
    assert topics["fit"]["status"] == "ok" and "100 tokens" in topics["fit"]["text"]


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("advice", 0), ("fault", 1)])
def test_exit_code_follows_the_faults(status, code, capsys, monkeypatch):
    finding = Finding("machine", status, "Something is so.")
    monkeypatch.setattr(examination, "check_machine", lambda: finding)
    assert run(capsys)[0] == code
    found, out, _ = run(capsys, "--json")
    assert found == code and json.loads(out)["ok"] is (code == 0)


def test_fault_is_printed(capsys, monkeypatch):
    finding = Finding("machine", "fault", "Something is broken.")
    monkeypatch.setattr(examination, "check_machine", lambda: finding)
    out = run(capsys)[1]
    assert out.startswith("FAULT   Something is broken.\n") and out.endswith("\n1 fault found.\n")


def test_software_that_cannot_be_imported_is_a_fault(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "dflash_mlx.measure.doctor.examination", None)
    code, out, err = run(capsys)
    assert (code, err) == (1, "") and out.startswith("FAULT   MLX or mlx-lm cannot be imported")


def test_clean(capsys, tmp_path):
    left = tmp_path / "dflash-mlx" / ".a.0123abcd.partial"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
    assert "--clean" in run(capsys)[1] and left.exists()
    assert run(capsys, "--clean")[0] == 0 and not left.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--context", "0"], "context"),
        (["--context", "100"], "name them with --model"),
        (["--revision", "main"], "target"),
        (["--draft-revision", "main", "--model", "x/y"], "drafter"),
        (["--draft-model", "/no/such/folder"], "There is no folder /no/such/folder"),
    ],
)
def test_mistake_is_one_sentence_and_exit_code_2(arguments, words, capsys):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "") and words in err and err.count("\n") == 1


def test_model_that_is_not_here(capsys):
    code, out, _ = run(capsys, "--model", "org/model")
    assert code == 0 and "downloads nothing" in " ".join(out.split())
