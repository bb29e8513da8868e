"""``train`` refused: one sentence, nothing left behind, and what may follow."""

import re

import pytest
from support.commands import run, write_rows
from support.disk import FULL, files_up_to
from support.folders import save_drafter, save_target

MISTAKES = {
    "no data": ([], "nothing to train on"),
    "missing data": (["--data", "none.jsonl"], "no data file"),
    "missing data and model": (["--data", "none.jsonl", "--model", "./none"], "no data file"),
    "passes of two": (
        ["--self-prompts", "1", "--draft-passes", "2", "--block-size", "2"],
        "too small",
    ),
    "anchors": (["--self-prompts", "1", "--anchors", "0"], "anchors"),
    "warm-up, no number": (["--self-prompts", "1", "--warmup", "nan"], "warmup"),
    "epochs": (["--self-prompts", "1", "--epochs", "inf"], "epochs"),
    "batch of answers": (["--self-prompts", "1", "--generation-batch", "0"], "generation_batch"),
    "no answer": (["--self-prompts", "1", "--max-tokens", "0"], "max_tokens"),
    "temperature": (["--self-prompts", "1", "--temp", "-1"], "temp"),
    "nucleus": (["--self-prompts", "1", "--temp", "1", "--top-p", "2"], "top_p"),
    "nucleus without temperature": (["--self-prompts", "1", "--top-p", "0.9"], "--temp"),
    "layers": (["--self-prompts", "1", "--layers", "0"], "layers"),
    "width": (["--self-prompts", "1", "--intermediate-size", "0"], "intermediate_size"),
    "gamma of no decay": (["--self-prompts", "1", "--gamma", "3", "--weighting", "dpace"], "gamma"),
    "alpha of decay": (["--self-prompts", "1", "--dpace-alpha", "0.2"], "dpace_alpha"),
    "temperature of ce": (["--self-prompts", "1", "--kd-temperature", "2"], "kd_temperature"),
    "size beside init": (["--data", "x", "--init-from", "y", "--block-size", "16"], "--init-from"),
    "patience": (["--self-prompts", "1", "--patience", "1", "--held-out", "0"], "patience"),
    "learning rate": (["--self-prompts", "1", "--learning-rate", "0"], "learning_rate"),
    "warm-up": (["--self-prompts", "1", "--warmup", "2"], "warmup"),
    "taps": (["--self-prompts", "1", "--taps", "a"], "--taps"),
    "tap beyond": (["--self-prompts", "1", "--taps", "1,99"], "target_layer_ids"),
    "taps not ascending": (["--self-prompts", "1", "--taps", "2,1"], "target_layer_ids"),
    "block size": (["--self-prompts", "1", "--block-size", "1"], "block_size"),
    "mask token": (["--self-prompts", "1", "--mask-token", "999"], "mask_token_id"),
    "window": (["--self-prompts", "1", "--window", "-1"], "window"),
    "loss": (["--self-prompts", "1", "--loss", "mse"], "--loss"),
    "gamma": (["--self-prompts", "1", "--gamma", "-1"], "gamma"),
    "passes": (["--self-prompts", "1", "--draft-passes", "3"], "--draft-passes"),
    "prefix": (["--self-prompts", "1", "--draft-prefix", "3"], "draft_prefix"),
    "dtype": (["--self-prompts", "1", "--dtype", "int8"], "dtype"),
    "template": (["--self-prompts", "1", "--chat-template-config", "x"], "template-config"),
    "no template": (["--self-prompts", "1"], "no chat template"),
    "model": (["--model", "./none", "--self-prompts", "1"], "no folder"),
    "init": (["--self-prompts", "1", "--init-from", "./none"], "no folder"),
    "epochs and steps": (["--self-prompts", "1", "--epochs", "6", "--steps", "9"], "not by both"),
    "no answers": (["--self-prompts", "1", "--no-regenerate"], "leave --no-regenerate out"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_one_sentence_and_exit_code_2(mistake, tmp_path, capsys):
    arguments, words = MISTAKES[mistake]
    save_target(tmp_path / "target")
    code, _, err = run(
        capsys, "train", "--model", tmp_path / "target", "--output", tmp_path / "x", *arguments
    )
    assert code == 2 and words in err and "Traceback" not in err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("more", ["--no-regenerate", "--held-out=1", "--chat-template-config={}"])
def test_what_the_data_do_not_allow_is_said_before_the_target_is_loaded(more, tmp_path, capsys):
    """And nothing is left behind, so that the right command can follow."""
    data = write_rows(tmp_path / "x.jsonl", [{"prompt": "ask"}])
    train = ["train", "--model", tmp_path / "none", "--data", data, "--output", tmp_path / "x"]
    code, _, err = run(capsys, *train, more)
    words = {"--no-regenerate": "has no answer", "--held-out=1": "none is left"}
    assert code == 2 and words.get(more, "no folder") in err and not (tmp_path / "x").exists()


def test_other_options_are_refused_on_resume(tmp_path, capsys):
    save_target(tmp_path / "target")
    data = write_rows(tmp_path / "x.jsonl", [{"text": f"text number {i}"} for i in range(6)])
    train = ["train", "--model", tmp_path / "target", "--data", data, "--output", tmp_path / "x"]
    train += ["--steps", 2, "--held-out", 1]
    assert run(capsys, *train)[0] == 0
    code, _, err = run(capsys, *train, "--resume", "--learning-rate", 1e-3, "--anchors", 4)
    assert code == 2 and "anchors, learning_rate" in err
    assert run(capsys, *train, "--resume", "--time-limit", 3)[0] == 0
    data.write_text(data.read_text() + '{"text": "one more"}\n')
    code, _, err = run(capsys, *train, "--resume")
    assert code == 2 and "other values of data" in err


@pytest.mark.parametrize("room", [100, 20_000])
def test_a_full_disk_is_one_sentence_and_resume_goes_on(room, tmp_path, capsys):
    save_target(tmp_path / "target")
    data = write_rows(tmp_path / "x.jsonl", [{"text": f"text number {i}"} for i in range(6)])
    train = ["train", "--model", tmp_path / "target", "--data", data, "--output", tmp_path / "x"]
    train += ["--steps", 1, "--held-out", 1]
    with files_up_to(room):
        code, _, err = run(capsys, *train)
    assert code == 2 and re.search(FULL, err) and err.count("\n") == 1, err
    code, _, err = run(capsys, *train, "--resume")
    assert code == 0, err


def test_before_the_first_step_all_but_the_answers_may_change(tmp_path, capsys):
    save_target(tmp_path / "target")
    rows = [{"prompt": f"p{i}"} for i in range(6)] + [{"prompt": "too long " * 9}]
    data = write_rows(tmp_path / "x.jsonl", rows)
    train = ["train", "--model", tmp_path / "target", "--data", data, "--output", tmp_path / "x"]
    train += ["--max-tokens", 8, "--steps", 1, "--max-seq-length", 50]
    code, _, err = run(capsys, *train, "--held-out", 6)
    assert code == 2 and "smaller --held-out" in err
    answers = (tmp_path / "x" / "training" / "answers-train.jsonl").read_text()
    code, _, err = run(capsys, *train, "--held-out", 2, "--resume", "--temp", 1)
    assert code == 2 and "other values of temp " in err
    code, _, err = run(capsys, *train, "--held-out", 2, "--resume")
    assert code == 0, err
    assert (tmp_path / "x" / "training" / "answers-train.jsonl").read_text() == answers
    code, _, err = run(capsys, *train, "--held-out", 1, "--resume")
    assert code == 2 and "held_out" in err


@pytest.mark.parametrize("there", ["nothing", "a model"])
def test_only_a_training_is_resumed(there, tmp_path, capsys):
    """A folder of something else, such as a drafter whose training was removed, stays as it is."""
    save_target(tmp_path / "target")
    if there == "a model":
        save_drafter(tmp_path / "x")
    before = {file: file.read_bytes() for file in tmp_path.glob("x/*")}
    data = write_rows(tmp_path / "x.jsonl", [{"text": f"text number {i}"} for i in range(6)])
    train = ["train", "--model", tmp_path / "target", "--data", data, "--output", tmp_path / "x"]
    code, _, err = run(capsys, *train, "--steps", 1, "--resume")
    assert code == 2 and "no training to go on with" in err
    assert {file: file.read_bytes() for file in tmp_path.glob("x/*")} == before


@pytest.mark.parametrize("name", ["options.json", "progress.json", "state.safetensors"])
@pytest.mark.parametrize("damage", [b"", b"\xff", b"[1]"])
def test_a_damaged_training_is_named(name, damage, tmp_path, capsys):
    save_target(tmp_path / "target")
    data = write_rows(tmp_path / "x.jsonl", [{"text": f"text number {i}"} for i in range(6)])
    train = ["train", "--model", tmp_path / "target", "--data", data, "--output", tmp_path / "x"]
    assert run(capsys, *train, "--steps", 1, "--held-out", 0)[0] == 0
    [file] = (tmp_path / "x" / "training").rglob(name)
    file.write_bytes(damage)
    code, _, err = run(capsys, *train, "--steps", 1, "--held-out", 0, "--resume")
    assert code == 2 and "is damaged" in err and "remove it" in err
