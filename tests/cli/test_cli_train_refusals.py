"""``train`` refused: one sentence, nothing left behind, and what may follow."""

import json
import re

import pytest
from support.commands import run, write_rows
from support.disk import FULL, files_up_to, listing
from support.folders import save_drafter, save_target
from support.training import TEXTS, train_command

# What is given beside --self-prompts 1, unless that is part of the mistake, and what is named.
MISTAKES = {
    "passes of two": ("--draft-passes 2 --block-size 2", "too small"),
    "anchors": ("--anchors 0", "--anchors"),
    "warm-up, no number": ("--warmup nan", "--warmup"),
    "epochs": ("--epochs inf", "--epochs"),
    "batch of answers": ("--generation-batch 0", "--generation-batch"),
    "no answer": ("--max-tokens 0", "--max-tokens"),
    "temperature": ("--temp -1", "--temp"),
    "nucleus": ("--temp 1 --top-p 2", "--top-p"),
    "nucleus without temperature": ("--top-p 0.9", "--temp"),
    "layers": ("--layers 0", "--layers"),
    "width": ("--intermediate-size 0", "--intermediate-size"),
    "gamma of no decay": ("--gamma 3 --weighting dpace", "--gamma"),
    "alpha of decay": ("--dpace-alpha 0.2", "--dpace-alpha"),
    "temperature of ce": ("--kd-temperature 2", "--kd-temperature"),
    "size beside init": ("--init-from y --block-size 16", "--init-from"),
    "patience": ("--patience 1 --held-out 0", "--patience"),
    "learning rate": ("--learning-rate 0", "--learning-rate"),
    "warm-up": ("--warmup 2", "--warmup"),
    "taps": ("--taps a", "--taps"),
    "tap beyond": ("--taps 1,99", "target_layer_ids"),
    "taps not ascending": ("--taps 2,1", "target_layer_ids"),
    "block size": ("--block-size 1", "block_size"),
    "mask token": ("--mask-token 999", "mask_token_id"),
    "window": ("--window -1", "--window"),
    "loss": ("--loss mse", "--loss"),
    "gamma": ("--gamma -1", "--gamma"),
    "passes": ("--draft-passes 3", "--draft-passes"),
    "prefix": ("--draft-prefix 3", "--draft-prefix"),
    "dtype": ("--dtype int8", "--dtype"),
    "template": ("--chat-template-config x", "--chat-template-config"),
    "no template": ("", "no chat template"),
    "model": ("--model ./none", "no folder"),
    "init": ("--init-from ./none", "no folder"),
    "epochs and steps": ("--epochs 6 --steps 9", "--steps"),
    "no answers": ("--no-regenerate", "--no-regenerate"),
    "no data": ("--self-prompts 0", "--data"),
    "missing data": ("--self-prompts 0 --data none.jsonl", "none.jsonl"),
    "missing data and model": ("--data none.jsonl --model ./none", "none.jsonl"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_one_sentence_and_exit_code_2(mistake, tmp_path, capsys):
    arguments, words = MISTAKES[mistake]
    save_target(tmp_path / "target")
    train = ["train", "--model", tmp_path / "target", "--output", tmp_path / "x"]
    code, _, err = run(capsys, *train, "--self-prompts", 1, *arguments.split())
    assert code == 2 and words in err and "Traceback" not in err
    assert not (tmp_path / "x").exists()


def test_a_drafter_that_cannot_be_trained(tmp_path, capsys):
    save_drafter(tmp_path / "old", has_lm_head=True)
    code, _, err = run(capsys, *train_command(tmp_path), "--init-from", tmp_path / "old")
    assert code == 2 and "a head of its own" in err and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "more, words",
    [
        ("--no-regenerate", "has no answer"),
        ("--held-out=1", "none is left"),
        ("--chat-template-config={}", "no folder"),
    ],
)
def test_what_the_data_do_not_allow_is_said_before_the_target_is_loaded(
    more, words, tmp_path, capsys
):
    """And nothing is left behind, so that the right command can follow."""
    data = write_rows(tmp_path / "x.jsonl", [{"prompt": "ask"}])
    train = ["train", "--model", tmp_path / "none", "--data", data, "--output", tmp_path / "x"]
    code, _, err = run(capsys, *train, more)
    assert code == 2 and words in err and not (tmp_path / "x").exists()


def test_other_options_are_refused_on_resume(tmp_path, capsys):
    train = [*train_command(tmp_path), "--steps", 2, "--held-out", 1]
    assert run(capsys, *train)[0] == 0
    train.append("--resume")
    code, _, err = run(capsys, *train, "--learning-rate", 1e-3, "--anchors", 4)
    assert code == 2 and "anchors, learning_rate" in err
    assert run(capsys, *train, "--time-limit", 3)[0] == 0
    write_rows(tmp_path / "rows.jsonl", [*TEXTS, {"text": "one more"}])
    code, _, err = run(capsys, *train)
    assert code == 2 and "other values of data" in err


@pytest.mark.parametrize("room", [100, 20_000])
def test_a_full_disk_is_one_sentence_and_resume_goes_on(room, tmp_path, capsys):
    train = [*train_command(tmp_path), "--steps", 1, "--held-out", 1]
    with files_up_to(room):
        code, _, err = run(capsys, *train)
    assert code == 2 and re.search(FULL, err) and err.count("\n") == 1, err
    code, _, err = run(capsys, *train, "--resume")
    assert code == 0, err


def test_before_the_first_step_all_but_the_answers_may_change(tmp_path, capsys):
    rows = [{"prompt": f"p{i}"} for i in range(6)] + [{"prompt": "too long " * 9}]
    train = [*train_command(tmp_path, rows), "--max-tokens", 8, "--steps", 1]
    train += ["--max-seq-length", 50, "--held-out"]
    kept = tmp_path / "new" / "training" / "answers-train.jsonl"
    code, _, err = run(capsys, *train, 6)
    assert code == 2 and "smaller --held-out" in err
    answers = kept.read_text()
    code, _, err = run(capsys, *train, 2, "--resume", "--temp", 1)
    assert code == 2 and "other values of temp " in err
    code, _, err = run(capsys, *train, 2, "--resume")
    assert code == 0 and kept.read_text() == answers, err
    code, _, err = run(capsys, *train, 1, "--resume")
    assert code == 2 and "held_out" in err


@pytest.mark.parametrize("there", ["nothing", "a model"])
def test_only_a_training_is_resumed(there, tmp_path, capsys):
    """A folder of something else, such as a drafter whose training was removed, stays as it is."""
    if there == "a model":
        save_drafter(tmp_path / "new")
    before = listing(tmp_path / "new")
    code, _, err = run(capsys, *train_command(tmp_path), "--steps", 1, "--resume")
    assert code == 2 and "no training to go on with" in err
    assert listing(tmp_path / "new") == before


@pytest.mark.parametrize("name", ["options.json", "progress.json", "state.safetensors"])
def test_a_damaged_training_is_named(name, tmp_path, capsys):
    train = [*train_command(tmp_path), "--steps", 1, "--held-out", 0]
    assert run(capsys, *train)[0] == 0
    [file] = (tmp_path / "new" / "training").rglob(name)
    damages = [b"", b"\xff", b"[1]"]
    if name == "progress.json":
        said = json.loads(file.read_text())
        wrong = ({"steps": 1}, {"step": None}, {"step": "1"}, {"step": -1}, {"best_tau": []})
        damages += [json.dumps(said | other).encode() for other in wrong]
        damages += [b"{}", b"null"]
    for damage in damages:
        file.write_bytes(damage)
        code, _, err = run(capsys, *train, "--resume")
        assert code == 2 and "is damaged" in err and "remove it" in err
        assert "Advance" not in err and "__init__" not in err
