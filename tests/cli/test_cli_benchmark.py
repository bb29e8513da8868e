"""The ``benchmark`` command on tiny models: arms, files, interruption, and mistakes."""

import json
from pathlib import Path

import pytest
from support import commands
from support.disk import files_up_to, listing
from support.folders import save_target
from support.reports import made_report

from dflash_mlx import stream_generate
from dflash_mlx.measure import alternation as loop
from dflash_mlx.measure import arms as ways
from dflash_mlx.measure.run import measure

QUICK = ("--kinds", "code", "--limit", "1", "-m", "8", "--repeats", "1")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    return commands.run(capsys, "benchmark", *arguments)


def test_all_arms_in_one_table(pair, models, capsys, tmp_path):
    draft = ("--mlx-draft-model", models / "small", "--num-draft-tokens", "3")
    more = ("--block-sizes", "1,4,8,16", "--context", "0,200", "--output", f"{tmp_path}/out/")
    code, out, err = run(capsys, *pair, *QUICK, *draft, *more)
    assert code == 0 and "out/benchmark.html" in err
    report = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    arms = ["plain", "block 1", "block 4", "block 8", "mlx-lm", "mlx-lm draft model"]
    assert report["arms"] == arms and len(report["runs"]) == report["planned"] == 12
    assert {run["context"] for run in report["runs"]} == {0, 200}
    assert all(run["same_text"] for run in report["runs"])
    assert {run["tokens"] for run in report["runs"]} == {8}
    assert report["models"]["target"]["name"] == pair[1]
    assert report["machine"]["versions"]["mlx-lm"] and report["machine"]["memory_gb"] > 0
    assert "Left out block size 16" in out and "yes" in out
    for arm in arms:
        assert any(line.startswith(f"{arm} ") for line in out.splitlines())
    assert (tmp_path / "out" / "benchmark.md").read_text().startswith("# dflash-mlx benchmark")
    assert "Traceback" not in err


def test_default_block_sizes_and_sampling(pair, capsys, tmp_path):
    options = ("--temp", "1", "--seed", "7", "--output", tmp_path / "r.json")
    code, out, _ = run(capsys, *pair, *QUICK, *options)
    assert code == 0 and "temperature 1, seed 7, coupled" in out
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["arms"] == ["plain", "block 4", "block 8", "block auto", "mlx-lm"]
    judged = {run["arm"]: run["same_text"] for run in report["runs"]}
    assert judged.pop("mlx-lm") is None and set(judged.values()) == {True}


def test_target_alone_and_without_mlx_lm(pair, capsys):
    code, out, _ = run(capsys, *pair[:2], *QUICK)
    assert code == 0 and "No drafter was given" in out and "mlx-lm " in out
    code, out, _ = run(capsys, *pair, *QUICK, "--no-mlx-lm", "--block-sizes", "2")
    assert code == 0
    (table,) = (part for part in out.split("\n\n") if part.startswith("All prompts"))
    assert [line.split("  ")[0] for line in table.splitlines()[2:4]] == ["plain", "block 2"]


def test_own_prompts(pair, capsys, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"kind": "haiku", "prompt": "Old pond."}\n')
    code, out, _ = run(capsys, *pair, "--prompts", tmp_path / "p.jsonl", *QUICK[4:])
    assert code == 0 and "prompts: 1" in out
    code, _, err = run(capsys, *pair, "--prompts", tmp_path / "p.jsonl", "--kinds", "code")
    assert code == 2 and "haiku" in err


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError, RuntimeError, ValueError])
def test_what_was_measured_before_an_end_is_kept(kind, pair, capsys, tmp_path, monkeypatch):
    calls = []

    def failing(*arguments):
        calls.append(arguments)
        # The warm-up of three arms, and four measured runs.
        if len(calls) == 3 + 5:
            raise kind("Unable to allocate 9 bytes")
        return measure(*arguments)

    monkeypatch.setattr(loop, "measure", failing)
    options = ("--block-sizes", "4", "--repeats", "2", "--output", tmp_path / "r")
    code, out, err = run(capsys, *pair, *QUICK, *options)
    assert "Interrupted: 4 of 6 runs" in out and "block 4" in out and "Traceback" not in err
    said = " ".join(out.split())
    notes = said.count("Unable to allocate 9 bytes")
    if kind is KeyboardInterrupt:
        assert (code, notes) == (130, 0)
    else:
        assert (code, notes) == (1, 1) and "code-1, 2 of 2" in said
    report = json.loads((tmp_path / "r.json").read_text())
    (text,) = report["texts"]
    assert text["prompt"] == "code-1" and text["question"] and text["answer"]
    assert report["settings"]["command"].startswith("dflash-mlx benchmark --model")
    assert len(report["runs"]) == 4 and all(run["same_text"] for run in report["runs"])
    assert "Interrupted" in (tmp_path / "r.html").read_text()


def test_a_failing_warm_up_is_one_sentence(pair, capsys, monkeypatch):
    def failing(*_):
        raise RuntimeError("Unable to allocate 9 bytes")

    monkeypatch.setattr(loop, "measure", failing)
    code, out, err = run(capsys, *pair, *QUICK)
    assert (code, out) == (2, "") and err.startswith("error: plain fails in the warm-up")
    assert "9 bytes" in err and err.count("\n") == 1


def test_a_disk_that_fills_up_costs_no_table(pair, capsys, tmp_path):
    file = tmp_path / "r.json"
    file.write_text("old")
    with files_up_to(1000):
        code, out, err = run(capsys, *pair, *QUICK, "--output", tmp_path / "r")
    assert code == 2 and "block" in out
    *warned, last = err.splitlines()
    assert last.startswith(f"error: {file} cannot be written (the file is larger")
    assert all(line.startswith("warning: What rounds cost") for line in warned)
    assert listing(tmp_path) == {"r.json": b"old"}


def test_interrupt_before_the_first_run(pair, capsys, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "measure", interrupted)
    code, out, err = run(capsys, *pair, *QUICK, "--output", tmp_path / "r")
    assert (code, out, err) == (130, "", "interrupted\n") and not list(tmp_path.iterdir())


def test_texts_that_differ_are_pointed_at(pair, capsys, monkeypatch):
    def other(arm, *arguments):
        run, tokens = measure(arm, *arguments)
        return run, tokens if arm.name != "block 4" else [0, *tokens]

    monkeypatch.setattr(loop, "measure", other)
    code, out, _ = run(capsys, *pair, *QUICK)
    assert code == 0 and "no, 1 of 1 differ" in out and "dflash-mlx verify" in out


def test_compare(capsys, tmp_path):
    (tmp_path / "a.json").write_text(made_report().to_json())
    code, out, err = run(capsys, "--compare", tmp_path / "a.json", tmp_path / "a.json")
    assert code == 0 and err == "" and "Careful" not in out and "block 3, code, as it is" in out
    code, out, err = run(capsys, "--compare", tmp_path / "a.json", Path(__file__))
    assert code == 2 and err.count("\n") == 1 and "test_cli_benchmark.py" in err
    both = ("--compare", tmp_path / "a.json", tmp_path / "a.json")
    code, out, err = run(capsys, *both, "--output", tmp_path / "both.txt")
    assert code == 0 and (tmp_path / "both.txt").read_text() == out
    code, out, err = run(capsys, *both, "--max-tokens", "9")
    assert code == 2 and "--max-tokens" in err


MISTAKES = {
    "block sizes": (["--block-sizes", "4,x"], "--block-sizes"),
    "block size 0": (["--block-sizes", "0"], "--block-sizes"),
    "repeated size": (["--block-sizes", "4,4"], "repetitions"),
    "no size": (["--block-sizes", "4,"], "--block-sizes"),
    "only too large": (["--block-sizes", "16,32"], "up to 8"),
    "context": (["--context", "-5"], "--context"),
    "context beyond the target's": (["--context", "5000"], "4096"),
    "context below every prompt": (["--context", "10"], "--context 10"),
    "repeats": (["--repeats", "0"], "repeats"),
    "limit": (["--limit", "0"], "limit"),
    "kind": (["--kinds", "poetry"], "poetry"),
    "max-tokens": (["-m", "0"], "max"),
    "temperature": (["--temp", "-1"], "temp"),
    "acceptance without sampling": (["--acceptance", "rejection"], "--temp"),
    "seed without sampling": (["--seed", "7"], "--temp"),
    "draft tokens without a model": (["--num-draft-tokens", "4"], "--mlx-draft-model"),
    "no such draft model": (["--mlx-draft-model", "./none"], "none"),
    "prompts": (["--prompts", "./none"], "none"),
    "template options": (["--chat-template-config", "[]"], "--chat-template-config"),
    "template": (["--chat-template-config", '{"a": 1}'], "no chat template"),
    "report files": (["--compare", "./a", "./b"], "cannot be read"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_one_sentence_and_exit_code_2(mistake, pair, capsys):
    arguments, words = MISTAKES[mistake]
    models = [] if mistake == "report files" else pair
    code, out, err = run(capsys, *models, *arguments)
    assert (code, out) == (2, "") and words in err and "Traceback" not in err


def test_draft_model_with_another_tokenizer(pair, tmp_path, capsys):
    save_target(tmp_path)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    del tokenizer["model"]["vocab"]["a"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    code, _, err = run(capsys, *pair, *QUICK, "--mlx-draft-model", tmp_path)
    assert code == 2 and "another tokenizer" in err


def test_block_sizes_without_a_drafter(pair, capsys):
    code, _, err = run(capsys, *pair[:2], *QUICK, "--block-sizes", "4")
    assert code == 2 and "--draft-model" in err


def test_auto_is_passed_on(pair, capsys, monkeypatch):
    asked = []

    def stream(*arguments, block_size=None, **options):
        asked.append(block_size)
        size = 4 if block_size == "auto" else block_size
        return stream_generate(*arguments, block_size=size, **options)

    monkeypatch.setattr(ways, "stream_generate", stream)
    code, out, _ = run(capsys, *pair, *QUICK, "--block-sizes", "2,auto")
    assert code == 0 and "block auto" in out and {None, 2, "auto"} == set(asked)


def test_prompt_that_is_longer_than_a_context_is_left_out(pair, capsys, tmp_path):
    options = ("--kinds", "code,chat", "--context", "60", "--output", tmp_path / "r")
    code, out, _ = run(capsys, *pair, *QUICK[2:], *options)
    assert code == 0 and "Left out prompt code-1 at 60 tokens" in out
    runs = json.loads((tmp_path / "r.json").read_text())["runs"]
    assert {run["kind"] for run in runs} == {"chat"}
    assert all(55 < run["prompt_tokens"] < 68 for run in runs)
