"""``train`` end to end: a drafter for a target that speaks a small language, and its variants."""

import json

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import quantize_model, save_model
from support.commands import run, write_rows
from support.disk import listing
from support.folders import VOCAB, drafter_config, save_drafter, save_target
from support.grammar import prompts, save_grammar_target
from support.pairs import tiny_drafter
from support.tokenizer import EOS, byte_tokenizer
from support.training import train_command

from dflash_mlx.cli import train as train_module
from dflash_mlx.drafter.model import Drafter


def succeed(capsys, *arguments):
    """What a command says that ends well."""
    code, out, err = run(capsys, *arguments)
    assert code == 0, err
    return out


def read(path):
    return json.loads(path.read_text())


def test_a_drafter_learns_a_language_and_a_resumed_one_too(tmp_path, capsys):
    """In well under two minutes, from prompts alone; the process is stopped on the way."""
    target, output = tmp_path / "target", tmp_path / "drafter"
    save_grammar_target(target)
    rows = [{"prompt": p, "kind": f"order {p[0]}"} for p in prompts()]
    train = [*train_command(tmp_path, rows, "drafter"), "--max-tokens", 32, "--held-out", 6]
    train += ["--layers", 1, "--block-size", 8, "--steps", 60, "--learning-rate", 5e-3]
    train += ["--eval-every", 20]
    pair = ["--model", target, "--draft-model", output]

    def evaluated():
        data = tmp_path / "rows.jsonl"
        return json.loads(succeed(capsys, "evaluate", *pair, "--prompts", data, "-m", 24, "--json"))

    out = succeed(capsys, *train, "--time-limit", 1e-6)
    assert "--resume goes on" in out and "simulated τ 1.0" in out
    assert "this drafter is no better than none" in out
    assert evaluated()["total"]["tau"] == pytest.approx(1.0, abs=0.05)

    assert "add --resume" in run(capsys, *train)[2]
    out = succeed(capsys, *train, "--resume")
    assert "all steps are taken" in out and "no better than none" not in out
    charts = out[out.index("training loss\n") :]
    assert "└ step 1 to 60" in charts and "simulated τ\n" in charts and "└ step 0 to 60" in charts
    trained = evaluated()
    assert trained["total"]["tau"] >= 2.5
    assert list(trained["kinds"]) == ["order 0", "order 1", "order 2"]
    assert sum(kind["tokens"] for kind in trained["kinds"].values()) == trained["total"]["tokens"]
    assert len(trained["total"]["acceptance"]) == 7

    log = [json.loads(x) for x in (output / "training" / "log.jsonl").read_text().splitlines()]
    assert [e["step"] for e in log if "loss" in e] == list(range(1, 61))
    assert [e["step"] for e in log if "tau" in e] == [0, 20, 40, 60]
    card = (output / "README.md").read_text()
    assert "simulated τ" in card and "step 0 to 60" in card
    # Of the weights that are there, though the last evaluation may have been a worse one.
    best = max((e for e in log if "tau" in e), key=lambda e: e["tau"])
    assert f"| steps | {best['step']} |" in card and "| planned steps | 60 |" in card
    source = read(output / "config.json")["source"]
    assert (source["steps"], source["simulated_tau"]) == (best["step"], round(best["tau"], 3))

    speak = ["generate", "--model", target, "-p", prompts()[3], "-m", 40, "--quiet"]
    assert succeed(capsys, *speak, "--draft-model", output) == succeed(capsys, *speak)


def test_a_drafter_is_recalibrated(tmp_path, capsys):
    """From an MLX drafter; options of a new drafter are refused beside it."""
    save_drafter(tmp_path / "old")
    train = [*train_command(tmp_path), "--init-from", tmp_path / "old", "--steps", 3]
    train += ["--held-out", 1, "--batch-size", 2]
    code, _, err = run(capsys, *train, "--layers", 3)
    assert code == 2 and "--init-from" in err and not (tmp_path / "new").exists()
    succeed(capsys, *train)
    old, new = (mx.load(str(tmp_path / x / "model.safetensors")) for x in ("old", "new"))
    before, after = (read(tmp_path / x / "config.json") for x in ("old", "new"))
    assert old.keys() == new.keys() and after.pop("source")["begun_from"] == "old"
    assert before == after


def test_a_quantized_drafter_is_recalibrated_unquantized(tmp_path, capsys):
    config = drafter_config()
    drafter, written = quantize_model(tiny_drafter(vocab_size=VOCAB), config.to_dict(), 32, 8)
    save_model(tmp_path / "old", drafter)
    (tmp_path / "old" / "config.json").write_text(json.dumps(written))
    train = [*train_command(tmp_path), "--init-from", tmp_path / "old", "--steps", 2]
    succeed(capsys, *train, "--held-out", 1)
    weights = mx.load(str(tmp_path / "new" / "model.safetensors"))
    assert weights.keys() == dict(tree_flatten(Drafter(config).parameters())).keys()
    pair = ["--model", tmp_path / "target", "--draft-model", tmp_path / "new"]
    data = write_rows(tmp_path / "p", [{"prompt": "a"}])
    assert json.loads(succeed(capsys, "evaluate", *pair, "--prompts", data, "--json"))


def test_a_target_with_adapters(tmp_path, capsys):
    model, lora = save_target(tmp_path / "target"), tmp_path / "lora"
    settings = {"rank": 4, "scale": 20.0, "dropout": 0.0}
    linear_to_lora_layers(model, 2, settings)
    adapters = dict(tree_flatten(model.trainable_parameters()))
    random = {k: mx.random.normal(v.shape) for k, v in adapters.items() if "lora" in k}
    lora.mkdir()
    mx.save_safetensors(str(lora / "adapters.safetensors"), random)
    config = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": settings}
    (lora / "adapter_config.json").write_text(json.dumps(config))
    losses = []
    for name, more in (("plain", []), ("tuned", ["--adapter-path", lora])):
        succeed(capsys, *train_command(tmp_path, output=name), "--steps", 1, *more)
        log = (tmp_path / name / "training" / "log.jsonl").read_text().splitlines()
        losses.append(json.loads(log[0])["eval_loss"])
    assert abs(losses[0] - losses[1]) > 1e-3
    assert "with the adapters lora" in (tmp_path / "tuned" / "README.md").read_text()


def test_answers_in_the_data_are_used(tmp_path, capsys):
    rows = [{"prompt": f"p{i}", "completion": "answer"} for i in range(6)]
    out = succeed(capsys, *train_command(tmp_path, rows), "--steps", 1, "--held-out", 1)
    # The answer and its end token.
    assert "Training: 5 sequences, 45 tokens, 35 of them answers" in out
    assert "Held out: 1 sequence, 9 tokens" in out and "Stopped after 1 step: " in out
    assert "training loss\n" in out and out.count("└ step") == 2
    assert not list((tmp_path / "new" / "training").glob("answers*"))
    again = train_command(tmp_path, rows, "again")
    succeed(capsys, *again, "--steps", 1, "--regenerate", "--max-tokens", 8)
    assert list((tmp_path / "again" / "training").glob("answers*"))


def test_prompts_are_invented(tmp_path, capsys):
    """By a target that has a chat template, and nothing else to learn from."""
    target, output = tmp_path / "target", tmp_path / "x"
    save_target(target)
    template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    byte_tokenizer(template=template).save_pretrained(target)
    # A random target hardly ever ends by its one token.
    ends = {"eos_token_id": [EOS, *range(0, 256, 16)]}
    (target / "config.json").write_text(json.dumps(read(target / "config.json") | ends))
    train = ["train", "--model", target, "--self-prompts", 6, "--output", output, "--temp", 1]
    train += ["--steps", 1, "--held-out", 1, "--max-tokens", 8, "--generation-batch", 16]
    out = succeed(capsys, *train)
    kept = listing(output / "training")["prompts.jsonl"]
    assert len({json.loads(line)["prompt"] for line in kept.splitlines()}) == 6
    assert "Held out: 1 sequence" in out and (output / "model.safetensors").is_file()
    succeed(capsys, *train, "--resume")
    assert listing(output / "training")["prompts.jsonl"] == kept


DEFAULTS = (
    "1 layer, block size 16, taps [0, 1, 2] of 3, mask token 257, intermediate size 48, window "
    "none, bidirectional blocks, one draft pass\n"
)
# Options, and how the line that describes the drafter ends.
VARIANTS = {
    "defaults": ([], DEFAULTS),
    "JetSpec": (
        ["--causal", "--window", 16, "--loss", "kl", "--weighting", "uniform", "--layers", 2],
        "window 16, causal blocks, one draft pass\n",
    ),
    "DFlash 2": (
        ["--dflash2", "--block-size", 8],
        "convolutions over 2 rows in groups of 16, selector of rank 256 among 16\n",
    ),
    "two passes": (
        ["--draft-passes", 2, "--weighting", "dpace", "--block-size", 8],
        "two draft passes\n",
    ),
    "stored in 16 bit": (["--dtype", "bfloat16"], DEFAULTS),
    "cached features": (["--taps", "0,2", "--cache-features", 0.001], "one draft pass\n"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_train_and_generate(variant, tmp_path, capsys):
    more, described = VARIANTS[variant]
    out = succeed(capsys, *train_command(tmp_path), "--steps", 2, "--held-out", 1, *more)
    assert described in out
    speak = ["generate", "--model", tmp_path / "target", "-p", "text", "-m", 30, "--quiet"]
    drafted = succeed(capsys, *speak, "--draft-model", tmp_path / "new")
    assert drafted == succeed(capsys, *speak)


@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupted_training_says_how_to_go_on(begun, tmp_path, capsys, monkeypatch):
    def interrupt(recipe, say):
        if begun:
            recipe.folder.mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(train_module, "train", interrupt)
    code, _, err = run(capsys, "train", "--output", tmp_path / "x", "--self-prompts", 1)
    assert code == 130 and ("--resume goes on" in err) == begun


@pytest.mark.parametrize(
    "more, kind",
    [
        ([], "DFlashDraftModel"),
        (["--dflash2"], "DFlash2DraftModel"),
        (["--draft-passes", 2], "draft_passes"),
    ],
)
def test_a_trained_drafter_is_exported(more, kind, tmp_path, capsys):
    """But one of two passes, which the official package does not have."""
    succeed(capsys, *train_command(tmp_path), "--steps", 1, *more)
    export = ["convert", "--export", "z-lab", "--mlx-path", tmp_path / "new", "--hf-path"]
    code, _, err = run(capsys, *export, tmp_path / "official")
    if kind == "draft_passes":
        assert code == 2 and kind in err
        return
    assert code == 0, err
    assert read(tmp_path / "official" / "config.json")["architectures"] == [kind]
    weights = mx.load(str(tmp_path / "official" / "model.safetensors"))
    assert "fc.weight" in weights and all(w.size for w in weights.values())


def test_a_trained_drafter_is_quantized(tmp_path, capsys):
    succeed(capsys, *train_command(tmp_path), "--steps", 1, "--intermediate-size", 64)
    smaller = ["convert", "--hf-path", tmp_path / "new", "--mlx-path", tmp_path / "small"]
    succeed(capsys, *smaller, "-q", "--q-bits", 8, "--q-group-size", 32)
    assert "| weights | 8-bit, group size 32 |" in (tmp_path / "small" / "README.md").read_text()
    before, after = (read(tmp_path / x / "config.json") for x in ("new", "small"))
    assert after["source"] == before["source"] and "trainer" in after["source"]
    pair = ["--model", tmp_path / "target", "--draft-model", tmp_path / "small"]
    succeed(capsys, "generate", *pair, "-p", "hello", "-m", 9, "--block-size", 4)
