"""``train`` end to end: a drafter for a target that speaks a small language."""

import json
from pathlib import Path

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

from dflash_mlx.cli import train as train_command
from dflash_mlx.drafter.model import Drafter


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
    "cached features": ["--taps", "0,2", "--cache-features", 0.001],
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


@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupted_training_says_how_to_go_on(begun, tmp_path, capsys, monkeypatch):
    def interrupt(options, say):
        if begun:
            (options.output / "training").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(train_command, "train", interrupt)
    code, _, err = run(capsys, "train", "--output", tmp_path / "x", "--self-prompts", 1)
    assert code == 130 and ("--resume goes on" in err) == begun


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
