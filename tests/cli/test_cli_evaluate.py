"""``evaluate``: its table, its mistakes, and what is left of it when it is interrupted."""

import json

import pytest
from support.commands import run, write_rows

from dflash_mlx import __version__
from dflash_mlx.cli.progress import Progress


@pytest.fixture
def prompts(tmp_path):
    kinds = {"a": "letters", "b": "letters", "12": "digits"}
    return write_rows(tmp_path / "x.jsonl", [{"prompt": p, "kind": k} for p, k in kinds.items()])


def test_a_table(pair, prompts, capsys):
    code, out, _ = run(capsys, "evaluate", *pair, "--prompts", prompts, "-m", 9)
    assert code == 0 and [line.split()[:3] for line in out.splitlines()[1:]] == [
        ["letters", "2", "18"],
        ["digits", "1", "9"],
        ["total", "3", "27"],
    ]


def test_sampled_in_json(pair, prompts, capsys):
    options = ("--prompts", prompts, "-m", 9, "--temp", 1, "--top-p", 0.9, "--block-size", 3)
    found = []
    for seed in (["--seed", 1], ["--seed", 1], []):
        code, out, _ = run(capsys, "evaluate", *pair, *options, *seed, "--json")
        found.append(json.loads(out)["total"])
        assert code == 0 and found[-1].pop("tokens_per_second") > 0
    assert found[0] == found[1] and len(found[0]["acceptance"]) == 2
    assert found[2].keys() == {"prompts", "tokens", "rounds", "tau", "acceptance"}


def test_json_says_what_was_evaluated(pair, tmp_path, capsys):
    """A kind may have any name."""
    kinds = ("total", "format_version", "a")
    prompts = write_rows(tmp_path / "x.jsonl", [{"prompt": "p", "kind": kind} for kind in kinds])
    code, out, _ = run(capsys, "evaluate", *pair, "--prompts", prompts, "-m", 5, "--json")
    found = json.loads(out)
    assert code == 0 and (found["format_version"], found["dflash_mlx"]) == (1, __version__)
    assert [found["target"]["name"], found["drafter"]["name"]] == pair[1::2]
    assert (found["block_size"], found["choice"], found["max_tokens"]) == (8, "greedy", 5)
    assert tuple(found["kinds"]) == kinds
    assert [score["prompts"] for score in found["kinds"].values()] == [1, 1, 1]
    assert found["total"]["prompts"] == 3


def test_an_interrupted_evaluation_reports_what_it_has(pair, prompts, capsys, monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "advance", interrupt)
    code, out, err = run(capsys, "evaluate", *pair, "-m", 5, "--prompts", prompts)
    assert code == 130 and "Interrupted: 1 of 3" in err
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        ["letters", "1", "5"],
        ["total", "1", "5"],
    ]


MISTAKES = [
    ("limit", 0),
    ("block-size", 9),
    ("block-size", 0),
    ("temp", -1),
    ("top-p", 0.5),
    ("seed", 0),
]


@pytest.mark.parametrize(("option", "value"), MISTAKES)
def test_mistakes(option, value, pair, prompts, capsys):
    arguments = (*pair, "--prompts", prompts, f"--{option}", value)
    code, out, err = run(capsys, "evaluate", *arguments)
    assert (code, out) == (2, "") and option in err.replace("_", "-") and "'auto'" not in err


def test_what_there_is_to_evaluate(pair, tmp_path, capsys):
    code, _, err = run(capsys, "evaluate", *pair[:2])
    assert code == 2 and "--draft-model" in err
    texts = write_rows(tmp_path / "y.jsonl", [{"text": "abc"}])
    code, _, err = run(capsys, "evaluate", *pair, "--prompts", texts)
    assert code == 2 and "prompt" in err
