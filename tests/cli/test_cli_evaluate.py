"""``evaluate``: its table, its mistakes, and what is left of it when it is interrupted."""

from support.commands import run, write_rows
from support.folders import save_drafter, save_target

from dflash_mlx.cli.progress import Progress


def test_evaluate_mistakes(tmp_path, capsys):
    save_target(tmp_path / "target")
    data = write_rows(tmp_path / "x.jsonl", [{"text": "abc"}])
    pair = ["--model", tmp_path / "target", "--draft-model", tmp_path / "old"]
    save_drafter(tmp_path / "old")
    code, _, err = run(capsys, "evaluate", *pair, "--prompts", data)
    assert code == 2 and "prompt" in err
    prompts = write_rows(tmp_path / "y.jsonl", [{"prompt": "abc"}])
    code, _, err = run(capsys, "evaluate", "--model", tmp_path / "target", "--prompts", prompts)
    assert code == 2 and "--draft-model" in err
    for option, value in {"limit": 0, "block-size": 9, "temp": -1, "top-p": 0.5, "seed": 0}.items():
        code, _, err = run(capsys, "evaluate", *pair, "--prompts", prompts, f"--{option}", value)
        assert code == 2 and option.replace("-", "_") in err and "'auto'" not in err


def test_an_interrupted_evaluation_reports_what_it_has(tmp_path, capsys, monkeypatch):
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "old")
    prompts = write_rows(tmp_path / "y.jsonl", [{"prompt": x, "kind": x} for x in "abc"])
    pair = ["--model", tmp_path / "target", "--draft-model", tmp_path / "old", "-m", 5]

    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "advance", interrupt)
    code, out, err = run(capsys, "evaluate", *pair, "--prompts", prompts)
    assert code == 130 and "Interrupted: 1 of 3" in err
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        ["a", "1", "5"],
        ["total", "1", "5"],
    ]


def test_a_table(tmp_path, capsys):
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "old")
    rows = [{"prompt": "abc", "kind": "letters"}, {"prompt": "12", "kind": "digits"}]
    prompts = write_rows(tmp_path / "y.jsonl", rows)
    pair = ["--model", tmp_path / "target", "--draft-model", tmp_path / "old"]
    code, out, _ = run(capsys, "evaluate", *pair, "--prompts", prompts, "-m", 9)
    lines = out.splitlines()
    assert code == 0 and [line.split()[:3] for line in lines[1:]] == [
        ["letters", "1", "9"],
        ["digits", "1", "9"],
        ["total", "2", "18"],
    ]
