"""``train`` and ``evaluate`` end to end: a drafter for a target that speaks a small language."""

import json
import re
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import quantize_model, save_model
from support.disk import FULL, files_up_to, listing
from support.folders import VOCAB, drafter_config, save_drafter, save_target
from support.grammar import prompts, save_grammar_target
from support.pairs import tiny_drafter
from support.tokenizer import EOS, byte_tokenizer

from dflash_mlx.cli import train as train_command
from dflash_mlx.cli.main import main
from dflash_mlx.cli.progress import Progress
from dflash_mlx.drafter.model import Drafter


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``dflash-mlx``."""
    try:
        code = main([str(a) for a in arguments])
    except SystemExit as exit_:
        code = exit_.code
    out, err = capsys.readouterr()
    return code, out, err


def write_rows(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, dict]:
    code, out, err = run(capsys, "evaluate", *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    save_grammar_target(folder)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [{"prompt": p, "kind": f"order {p[0]}"} for p in prompts()]
    return write_rows(tmp_path / "prompts.jsonl", rows)


def test_a_drafter_learns_a_language_and_a_resumed_one_too(target, data, tmp_path, capsys):
    """In well under two minutes, from prompts alone; the process is stopped on the way."""
    output = tmp_path / "drafter"
    train = ["train", "--model", target, "--data", data, "--output", output, "--max-tokens", 32]
    train += ["--layers", 1, "--block-size", 8, "--steps", 60, "--learning-rate", 5e-3]
    train += ["--eval-every", 20, "--held-out", 6]
    pair = ["--model", target, "--draft-model", output, "--prompts", data, "-m", 24]

    code, out, err = run(capsys, *train, "--time-limit", 1e-6)
    assert code == 0, err
    assert "--resume goes on" in out and "simulated τ 1.0" in out
    untrained = evaluated(capsys, *pair)
    assert untrained["total"]["tau"] == pytest.approx(1.0, abs=0.05)

    assert "add --resume" in run(capsys, *train)[2]
    code, out, err = run(capsys, *train, "--resume")
    assert code == 0, err
    assert "all steps are taken" in out
    charts = out[out.index("training loss\n") :]
    assert "└ step 1 to 60" in charts and "simulated τ\n" in charts and "└ step 0 to 60" in charts
    trained = evaluated(capsys, *pair)
    assert trained["total"]["tau"] >= 2.5
    assert list(trained) == ["order 0", "order 1", "order 2", "total"]
    assert sum(trained[k]["tokens"] for k in list(trained)[:3]) == trained["total"]["tokens"]
    assert len(trained["total"]["acceptance"]) == 7

    log = [json.loads(x) for x in (output / "training" / "log.jsonl").read_text().splitlines()]
    assert [e["step"] for e in log if "loss" in e] == list(range(1, 61))
    assert [e["step"] for e in log if "tau" in e] == [0, 20, 40, 60]
    card = (output / "README.md").read_text()
    assert "simulated τ" in card and "step 0 to 60" in card
    # Of the weights that are there, though the last evaluation may have been a worse one.
    best = max((e for e in log if "tau" in e), key=lambda e: e["tau"])
    assert f"| steps | {best['step']} |" in card and "| planned steps | 60 |" in card
    source = json.loads((output / "config.json").read_text())["source"]
    assert (source["steps"], source["simulated_tau"]) == (best["step"], round(best["tau"], 3))

    speak = ["generate", "--model", target, "-p", prompts()[3], "-m", 40, "--quiet"]
    drafted = run(capsys, *speak, "--draft-model", output)
    assert drafted == run(capsys, *speak) and drafted[0] == 0


def test_a_drafter_is_recalibrated(tmp_path, capsys):
    """From an MLX drafter; options of a new drafter are refused beside it."""
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "old")
    data = write_rows(tmp_path / "x.jsonl", [{"text": f"text number {i}"} for i in range(6)])
    train = ["train", "--model", tmp_path / "target", "--data", data, "--init-from"]
    train += [tmp_path / "old", "--output", tmp_path / "new", "--steps", 3, "--held-out", 1]
    code, _, err = run(capsys, *train, "--layers", 3)
    assert code == 2 and "--init-from" in err and not (tmp_path / "new").exists()
    assert run(capsys, *train, "--batch-size", 2)[0] == 0
    old, new = (mx.load(str(tmp_path / x / "model.safetensors")) for x in ("old", "new"))
    assert old.keys() == new.keys()
    configs = [json.loads((tmp_path / x / "config.json").read_text()) for x in ("old", "new")]
    assert configs[1].pop("source")["begun_from"] == "old"
    assert configs[0] == configs[1]


def test_a_quantized_drafter_is_recalibrated_unquantized(tmp_path, capsys):
    save_target(tmp_path / "target")
    config = drafter_config()
    drafter, written = quantize_model(tiny_drafter(vocab_size=VOCAB), config.to_dict(), 32, 8)
    save_model(tmp_path / "old", drafter)
    (tmp_path / "old" / "config.json").write_text(json.dumps(written))
    data = write_rows(tmp_path / "x.jsonl", [{"text": f"text number {i}"} for i in range(6)])
    train = ["train", "--model", tmp_path / "target", "--data", data, "--init-from"]
    train += [tmp_path / "old", "--output", tmp_path / "new", "--steps", 2, "--held-out", 1]
    code, _, err = run(capsys, *train)
    assert code == 0, err
    weights = mx.load(str(tmp_path / "new" / "model.safetensors"))
    assert weights.keys() == dict(tree_flatten(Drafter(config).parameters())).keys()
    pair = ["--model", tmp_path / "target", "--draft-model", tmp_path / "new"]
    assert evaluated(capsys, *pair, "--prompts", write_rows(tmp_path / "p", [{"prompt": "a"}]))


def test_a_target_with_adapters(tmp_path, capsys):
    model = save_target(tmp_path / "target")
    settings = {"rank": 4, "scale": 20.0, "dropout": 0.0}
    linear_to_lora_layers(model, 2, settings)
    adapters = dict(tree_flatten(model.trainable_parameters()))
    random = {k: mx.random.normal(v.shape) for k, v in adapters.items() if "lora" in k}
    (tmp_path / "lora").mkdir()
    mx.save_safetensors(str(tmp_path / "lora" / "adapters.safetensors"), random)
    config = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": settings}
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps(config))
    data = write_rows(tmp_path / "x.jsonl", [{"text": f"text number {i}"} for i in range(6)])
    train = ["train", "--model", tmp_path / "target", "--data", data, "--steps", 1]
    lora = ["--adapter-path", tmp_path / "lora"]
    losses = []
    for name, more in (("plain", []), ("tuned", lora)):
        code, _, err = run(capsys, *train, "--output", tmp_path / name, *more)
        assert code == 0, err
        log = (tmp_path / name / "training" / "log.jsonl").read_text().splitlines()
        losses.append(json.loads(log[0])["eval_loss"])
    assert abs(losses[0] - losses[1]) > 1e-3
    assert "with the adapters lora" in (tmp_path / "tuned" / "README.md").read_text()


def test_answers_in_the_data_are_used(tmp_path, capsys):
    save_target(tmp_path / "target")
    rows = [{"prompt": f"p{i}", "completion": "answer"} for i in range(6)]
    data = write_rows(tmp_path / "x.jsonl", rows)
    train = ["train", "--model", tmp_path / "target", "--data", data, "--steps", 1]
    code, out, _ = run(capsys, *train, "--output", tmp_path / "a", "--held-out", 1)
    # The answer and its end token.
    assert "training loss\n" in out and out.count("└ step") == 2
    assert code == 0 and "Training: 5 sequences, 45 tokens, 35 of them answers" in out
    assert "Held out: 1 sequence, 9 tokens" in out and "Stopped after 1 step: " in out
    assert not list((tmp_path / "a" / "training").glob("answers*"))
    assert (
        run(capsys, *train, "--output", tmp_path / "b", "--regenerate", "--max-tokens", 8)[0] == 0
    )
    assert list((tmp_path / "b" / "training").glob("answers*"))


VARIANTS = {
    "JetSpec": ["--causal", "--window", 16, "--loss", "kl", "--weighting", "uniform"],
    "DFlash 2": ["--dflash2", "--block-size", 8],
    "two passes": ["--draft-passes", 2, "--weighting", "dpace", "--block-size", 8],
    "stored in 16 bit": ["--dtype", "bfloat16"],
    "warm start": ["--warm-start", "--taps", "0,2", "--cache-features", 0.001],
}


DESCRIBED = {
    (): "one draft pass\n",
    ("--dflash2",): "convolutions over 2 rows in groups of 16, selector of rank 256 among 16\n",
    ("--draft-passes", 2): "two draft passes\n",
}


@pytest.mark.parametrize("more", DESCRIBED)
def test_the_defaults_are_printed(more, tmp_path, capsys):
    save_target(tmp_path / "target")
    data = write_rows(tmp_path / "x.jsonl", [{"text": f"text number {i}"} for i in range(6)])
    train = ["train", "--model", tmp_path / "target", "--data", data, "--steps", 1]
    code, out, err = run(capsys, *train, "--output", tmp_path / "x", *more)
    assert code == 0, err
    described = next(line for line in out.splitlines(True) if line.startswith("Drafter: "))
    assert (
        "1 layer, block size 16, taps [0, 1, 2] of 3, mask token 257, intermediate size 48, window "
        "none, bidirectional blocks, "
    ) in described
    assert described.endswith(DESCRIBED[more])


def test_prompts_are_invented(tmp_path, capsys):
    """By a target that has a chat template, and nothing else to learn from."""
    target = tmp_path / "target"
    save_target(target)
    tokenizer = byte_tokenizer()
    tokenizer._tokenizer.chat_template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    tokenizer.save_pretrained(target)
    config = json.loads((target / "config.json").read_text())
    # A random target hardly ever ends by its one token.
    config["eos_token_id"] = [EOS, *range(0, 256, 16)]
    (target / "config.json").write_text(json.dumps(config))
    train = ["train", "--model", target, "--self-prompts", 6, "--output", tmp_path / "x"]
    train += ["--steps", 1, "--held-out", 1, "--max-tokens", 8, "--generation-batch", 16]
    code, out, err = run(capsys, *train, "--temp", 1)
    assert code == 0, err
    prompts = (tmp_path / "x" / "training" / "prompts.jsonl").read_text().splitlines()
    assert len({json.loads(line)["prompt"] for line in prompts}) == 6
    assert "Held out: 1 sequence" in out and (tmp_path / "x" / "model.safetensors").is_file()
    kept = listing(tmp_path / "x" / "training")["prompts.jsonl"]
    assert run(capsys, *train, "--temp", 1, "--resume")[0] == 0
    assert listing(tmp_path / "x" / "training")["prompts.jsonl"] == kept


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_train_and_generate(variant, tmp_path, capsys):
    save_target(tmp_path / "target")
    data = write_rows(tmp_path / "x.jsonl", [{"text": f"text number {i}"} for i in range(6)])
    target = ["--model", tmp_path / "target"]
    train = ["train", *target, "--data", data, "--output", tmp_path / "new", "--layers", 2]
    code, _, err = run(capsys, *train, "--steps", 2, "--held-out", 1, *VARIANTS[variant])
    assert code == 0, err
    speak = ["generate", *target, "-p", "text", "-m", 30, "--quiet"]
    assert run(capsys, *speak, "--draft-model", tmp_path / "new") == run(capsys, *speak)


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
    for option, value in {"limit": 0, "block-size": 9, "temp": -1, "top-p": 0.5}.items():
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


@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupted_training_says_how_to_go_on(begun, tmp_path, capsys, monkeypatch):
    def interrupt(options, say):
        if begun:
            (options.output / "training").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(train_command, "train", interrupt)
    code, _, err = run(capsys, "train", "--output", tmp_path / "x", "--self-prompts", 1)
    assert code == 130 and ("--resume goes on" in err) == begun


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


@pytest.mark.parametrize("kind", ["DFlashDraftModel", "DFlash2DraftModel"])
def test_a_trained_drafter_is_exported(kind, tmp_path, capsys):
    save_target(tmp_path / "target")
    data = write_rows(tmp_path / "x.jsonl", [{"text": f"text number {i}"} for i in range(6)])
    train = ["train", "--model", tmp_path / "target", "--data", data, "--steps", 1]
    train += ["--dflash2"] if kind == "DFlash2DraftModel" else []
    mlx, official = tmp_path / "new", tmp_path / "official"
    assert run(capsys, *train, "--output", mlx)[0] == 0
    export = ["convert", "--export", "z-lab", "--mlx-path", mlx, "--hf-path", official]
    code, _, err = run(capsys, *export)
    assert code == 0, err
    config = json.loads((official / "config.json").read_text())
    assert config["architectures"] == [kind]
    weights = mx.load(str(official / "model.safetensors"))
    assert "fc.weight" in weights and all(w.size for w in weights.values())


def test_a_drafter_of_two_passes_is_not_exported(tmp_path, capsys):
    save_target(tmp_path / "target")
    data = write_rows(tmp_path / "x.jsonl", [{"text": f"text number {i}"} for i in range(6)])
    train = ["train", "--model", tmp_path / "target", "--data", data, "--steps", 1]
    two = tmp_path / "two"
    assert run(capsys, *train, "--output", two, "--draft-passes", 2)[0] == 0
    export = ["convert", "--export", "z-lab", "--mlx-path", two, "--hf-path", tmp_path / "none"]
    code, _, err = run(capsys, *export)
    assert code == 2 and "draft_passes" in err


def test_a_trained_drafter_is_quantized(tmp_path, capsys):
    save_target(tmp_path / "target")
    data = write_rows(tmp_path / "x.jsonl", [{"text": f"text number {i}"} for i in range(6)])
    train = ["train", "--model", tmp_path / "target", "--data", data, "--steps", 1]
    assert run(capsys, *train, "--output", tmp_path / "new", "--intermediate-size", 64)[0] == 0
    smaller = ["convert", "--hf-path", tmp_path / "new", "--mlx-path", tmp_path / "small"]
    code, _, err = run(capsys, *smaller, "-q", "--q-bits", 8, "--q-group-size", 32)
    assert code == 0, err
    assert "| weights | 8-bit, group size 32 |" in (tmp_path / "small" / "README.md").read_text()
    before, after = (
        json.loads((tmp_path / x / "config.json").read_text()) for x in ("new", "small")
    )
    assert after["source"] == before["source"] and "trainer" in after["source"]
    pair = ["--model", tmp_path / "target", "--draft-model", tmp_path / "small"]
    assert run(capsys, "generate", *pair, "-p", "hello", "-m", 9, "--block-size", 4)[0] == 0
