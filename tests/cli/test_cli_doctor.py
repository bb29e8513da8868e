"""The ``doctor`` command: sentences, JSON and exit codes."""

import json
import os
import sys

import pytest
from support import commands
from support.folders import save_drafter, save_target

from dflash_mlx.measure import examination
from dflash_mlx.measure.finding import Finding


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    return commands.run(capsys, "doctor", *arguments)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_this_machine_has_no_fault(capsys):
    code, out, err = run(capsys)
    words = " ".join(out.split())
    assert (code, err) == (0, "") and out.endswith("\nNo faults found.\n")
    assert "FAULT" not in out and "A tiny pair in memory generated 48 tokens" in words
    assert "In a tiny pair in memory, the drafter's fused parts run so:" in words
    assert "in a round of" not in words


def test_json_about_a_pair(pair, capsys):
    code, out, _ = run(capsys, "--json", *pair, "--context", "100")
    found = json.loads(out)
    assert code == 0 and found["ok"] is True and found["format_version"] == 1
    assert [found["target"], found["drafter"]] == pair[1::2]
    assert all(set(f) == {"topic", "status", "text", "data"} for f in found["findings"])
    topics = {f["topic"]: f for f in found["findings"]}
    assert {"machine", "packages", "backend", "kernels", "generation", "hub-cache"} <= set(topics)
    assert topics["fit"]["status"] == "ok" and "100 tokens" in topics["fit"]["text"]
    assert f"of {pair[-1]} run so in a round of 8" in topics["drafter-kernels"]["text"]
    assert topics["pair"]["status"] == "ok"


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("advice", 0), ("fault", 1)])
def test_exit_code_follows_the_faults(status, code, capsys, monkeypatch):
    finding = Finding("machine", status, "Something is so.")
    monkeypatch.setattr(examination, "examine", lambda *_: iter([finding]))
    found, out, _ = run(capsys)
    assert found == code and f"{status.upper() if code else status:8}Something is so.\n" in out
    assert out.endswith("\n1 fault found.\n" if code else "\nNo faults found.\n")
    found, out, _ = run(capsys, "--json")
    assert found == code and json.loads(out)["ok"] is (code == 0)


def test_software_that_cannot_be_imported_is_a_fault(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "dflash_mlx.measure.examination", None)
    code, out, err = run(capsys)
    assert (code, err) == (1, "") and out.startswith("FAULT   MLX or mlx-lm cannot be imported")


def test_clean(capsys, tmp_path):
    left = tmp_path / "dflash-mlx" / ".a.0123abcd.partial"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
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


def test_of_what_is_not_a_pair_there_is_no_more_to_say(capsys, tmp_path):
    target, drafter = tmp_path / "my own target model", tmp_path / "my own drafter model"
    save_target(target)
    save_drafter(drafter)
    code, out, _ = run(capsys, "--model", drafter, "--draft-model", target)
    assert code == 1 and "are swapped" in out and out.endswith("\n1 fault found.\n")
    assert "They fit" not in out and "in a round of" not in out
    # A command to copy stays whole, whatever is in its paths.
    lines = out.splitlines()
    assert all(sum(f"'{path}'" in line for line in lines) == 1 for path in (target, drafter))


@pytest.mark.parametrize("name", ["org/model", "not a name"])
def test_model_that_is_not_here_is_not_downloaded(name, capsys, monkeypatch):
    def download(*_: object, **__: object) -> None:
        raise AssertionError("the doctor downloads nothing")

    monkeypatch.setattr("dflash_mlx.loading.hub.snapshot_download", download)
    monkeypatch.setattr("socket.socket", download)
    code, out, _ = run(capsys, "--model", name)
    assert code == 0 and f"{name} is not on this machine" in " ".join(out.split())
