"""Checkpoints of every format, converted: every tensor arrives, under its MLX name."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from formats import CONFIGS, as_source, drafter_of, random_tensors
from published import PLANS, RUNS, completed, plan
from tiny_checkpoint import parsed_config, write_checkpoint, write_torch_file

from dflash_mlx.convert import convert
from dflash_mlx.convert.detect import parse
from dflash_mlx.convert.keys import Additions
from dflash_mlx.drafter.config import DrafterConfig

OWN_TABLES = ("z-lab", "speculators, whole vocabulary")
# Sizes of a scaled-down checkpoint, small enough for the fast tests.
SCALED = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 16,
    "v_head_dim": 16,
    "vocab_size": 128,
    "selector_rank": 8,
}


def scaled_down(config: dict[str, Any]) -> dict[str, Any]:
    """A published config with small dimensions; layers, taps, windows and blocks stay."""
    small: dict[str, Any] = {}
    heads = config.get("num_attention_heads", 32)
    for key, value in config.items():
        if isinstance(value, dict):
            small[key] = scaled_down(value)
        elif key == "num_attention_heads":
            small[key] = 4
        elif key == "num_key_value_heads":
            small[key] = max(1, 4 * value // heads)
        elif key == "mask_token_id" or key == "pard_token":
            small[key] = 127
        elif key == "draft_vocab_size":
            small[key] = 24 if value == 32000 else value
        else:
            small[key] = SCALED.get(key, value)
    if "hidden_size" in small:
        small["intermediate_size"] = SCALED["intermediate_size"]
    return small


def read_back(folder: Path) -> tuple[DrafterConfig, dict[str, mx.array]]:
    config = DrafterConfig.from_dict(json.loads((folder / "config.json").read_text()))
    return config, mx.load(str(folder / "model.safetensors"))


def assert_same(found: dict[str, mx.array], expected: dict[str, mx.array]) -> None:
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert mx.array_equal(found[name], array), name


def write(
    folder: Path, format_name: str, shards: int = 1, *, own_tables: bool = False
) -> tuple[DrafterConfig, dict[str, mx.array]]:
    config = drafter_of(format_name, own_tables=own_tables)
    tensors = random_tensors(config)
    write_checkpoint(
        folder, CONFIGS[format_name](), as_source(tensors, config, format_name), shards
    )
    return config, tensors


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("format_name", CONFIGS)
def test_every_format(tmp_path: Path, format_name: str, shards: int) -> None:
    config, tensors = write(tmp_path / "source", format_name, shards)
    found, weights = read_back(convert(tmp_path / "source", tmp_path / "out"))
    assert found == config
    assert_same(weights, tensors)


@pytest.mark.parametrize("format_name", OWN_TABLES)
def test_shipped_tables_are_kept(tmp_path: Path, format_name: str) -> None:
    config, tensors = write(tmp_path / "source", format_name, own_tables=True)
    assert (config.has_embed_tokens, config.has_lm_head) == (True, True)
    found, weights = read_back(convert(tmp_path / "source", tmp_path / "out"))
    assert found == config
    assert_same(weights, tensors)


@pytest.mark.parametrize("name", RUNS)
def test_every_published_drafter(tmp_path: Path, name: str) -> None:
    """With its own names of tensors and small dimensions."""
    raw = scaled_down(completed(name))
    outside = name == "z-lab__Alpamayo-1.5-10B-DFlash"
    names = list(plan(name)) if name in PLANS else None
    parsed, (used, _) = parse(raw, names, Additions(), has_mask_file=outside)
    drafter = parsed.config
    if names is None:
        # No list of tensors is known, but the config says which there are.
        drafter = parsed_config(raw)
    tensors = random_tensors(drafter)
    stored = dict(tensors)
    if outside:
        del stored["mask_embedding"]
    if names is not None:
        assert set(used) == set(stored)
        stored = {used[key]: array for key, array in stored.items()}
    if "d2t" in stored:
        stored["d2t"] = stored["d2t"].astype(mx.int64) - mx.arange(24)
        stored["t2d"] = (mx.arange(128)[:, None] == tensors["d2t"]).any(axis=1)
    source = write_checkpoint(tmp_path / "source", raw, stored)
    if outside:
        write_torch_file(source / "mask_embedding.pt", tensors["mask_embedding"], 127)
    found, weights = read_back(convert(source, tmp_path / "out"))
    assert found == drafter
    assert_same(weights, tensors)


@pytest.mark.parametrize("prefix", ["model.", "module.", "draft_model."])
def test_prefixes(tmp_path: Path, prefix: str) -> None:
    config = drafter_of("speculators")
    tensors = random_tensors(config)
    outside = ("lm_head.weight", "d2t", "t2d")
    stored = {
        name if name in outside else prefix + name: array
        for name, array in as_source(tensors, config, "speculators").items()
    }
    source = write_checkpoint(tmp_path / "source", CONFIGS["speculators"](), stored)
    assert_same(read_back(convert(source, tmp_path / "out"))[1], tensors)


def test_what_is_left_out_is_recorded(tmp_path: Path) -> None:
    config = drafter_of("speculators")
    tensors = random_tensors(config)
    stored = as_source(tensors, config, "speculators") | {
        "verifier_norm.weight": mx.ones(64),
        "layers.0.self_attn.rotary_emb.inv_freq": mx.ones(8),
    }
    source = write_checkpoint(tmp_path / "source", CONFIGS["speculators"](), stored)
    folder = convert(source, tmp_path / "out")
    assert_same(read_back(folder)[1], tensors)
    recorded = json.loads((folder / "config.json").read_text())["source"]
    assert set(recorded["dropped"]) == {
        "t2d",
        "verifier_norm.weight",
        "layers.0.self_attn.rotary_emb.inv_freq",
    }
    assert (recorded["format"], recorded["tap_base"]) == ("speculators", 1)
    assert "a - k <= sliding_window" in recorded["window_rule"]
    assert recorded["verifier"]["name_or_path"] == "Qwen/Qwen3-8B"
    card = (folder / "README.md").read_text()
    assert "| target | Qwen/Qwen3-8B |" in card
    assert "| layers | 3, of which 2 sliding over 6 rows and 2 causal |" in card
    assert "| brings its own | head of 24 tokens |" in card


@pytest.mark.parametrize("form", ["offsets", "absolute", "offsets without t2d"])
def test_both_forms_of_the_vocabulary(tmp_path: Path, form: str) -> None:
    config = drafter_of("speculators")
    tensors = random_tensors(config)
    stored = as_source(tensors, config, "speculators")
    if form == "absolute":
        stored["d2t"] = tensors["d2t"].astype(mx.int64)
    if form == "offsets without t2d":
        del stored["t2d"]
    source = write_checkpoint(tmp_path / "source", CONFIGS["speculators"](), stored)
    assert_same(read_back(convert(source, tmp_path / "out"))[1], tensors)


def test_map_of_the_whole_vocabulary_says_nothing(tmp_path: Path) -> None:
    name = "speculators, whole vocabulary"
    config = drafter_of(name)
    tensors = random_tensors(config)
    maps = {"d2t": mx.zeros(64, mx.int64), "t2d": mx.ones(64, mx.bool_)}
    source = write_checkpoint(tmp_path / "source", CONFIGS[name](), tensors | maps)
    folder = convert(source, tmp_path / "out")
    assert_same(read_back(folder)[1], tensors)
    assert "d2t" in json.loads((folder / "config.json").read_text())["source"]["dropped"]


def test_codebooks_in_either_spelling(tmp_path: Path) -> None:
    config = drafter_of("z-lab DFlash 2")
    tensors = random_tensors(config)
    source = write_checkpoint(tmp_path / "source", CONFIGS["z-lab DFlash 2"](), tensors)
    assert_same(read_back(convert(source, tmp_path / "out"))[1], tensors)


def test_parts_that_training_starts_from_zero(tmp_path: Path) -> None:
    config = drafter_of("z-lab DFlash 2")
    tensors = random_tensors(config)
    for name in tensors:
        if name.endswith(("kernel_projection.weight", "successor_codebook.weight")):
            tensors[name] = tensors[name] * 0
    source = write_checkpoint(tmp_path / "source", CONFIGS["z-lab DFlash 2"](), tensors)
    assert_same(read_back(convert(source, tmp_path / "out"))[1], tensors)


@pytest.mark.parametrize("format_name", ["z-lab DFlash 2", "DeepSpec", "speculators"])
def test_quantized(tmp_path: Path, format_name: str) -> None:
    """Linear layers and tables; DFlash 2's kernels and selector, norms and maps stay."""
    _, tensors = write(tmp_path / "source", format_name)
    folder = convert(tmp_path / "source", tmp_path / "out", quantize=True, q_group_size=32)
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization"] == {"bits": 4, "group_size": 32, "mode": "affine"}
    weights = mx.load(str(folder / "model.safetensors"))
    kept = ("norm.weight", "d2t", "base_kernel", "kernel_projection.weight")
    for name, array in tensors.items():
        if name.endswith(kept) or name.startswith("candidate_selector."):
            assert mx.array_equal(weights.pop(name), array), name
            continue
        found = [weights.pop(name.removesuffix("weight") + part) for part in PARTS]
        expected = mx.quantize(array, 32, 4)
        assert all(mx.array_equal(x, y) for x, y in zip(found, expected, strict=True)), name
    assert not weights


PARTS = ("weight", "scales", "biases")


@pytest.mark.parametrize("below", ["all", "weights"])
def test_drafter_in_a_subfolder(tmp_path: Path, below: str) -> None:
    """A repository named after its target, with the drafter in ``dflash/``."""
    _, tensors = write(tmp_path / "source" / "dflash", "z-lab", shards=2)
    source = tmp_path / "source"
    for path in sorted((source / "dflash").glob("model-*.safetensors")):
        path.rename(path.with_name(f"dflash_draft_{path.name}"))
    index = source / "dflash" / "model.safetensors.index.json"
    renamed = source / "dflash" / "dflash_draft_model.safetensors.index.json"
    renamed.write_text(index.read_text().replace('"model-', '"dflash_draft_model-'))
    index.unlink()
    if below == "weights":
        (source / "dflash" / "config.json").rename(source / "config.json")
    else:
        # The target's own files are none of the drafter's.
        (source / "config.json").write_text('{"model_type": "mimo"}')
        (source / "model.safetensors").write_text("")
    folder = convert(source, tmp_path / "out")
    assert_same(read_back(folder)[1], tensors)
    recorded = json.loads((folder / "config.json").read_text())["source"]
    assert recorded["path"] == "source"
    assert all(name.startswith("dflash_draft_model-") for name in recorded["sha256"])


def test_what_the_user_added_is_recorded(tmp_path: Path) -> None:
    config = CONFIGS["ModelOpt"]()
    del config["block_size"]
    drafter = drafter_of("ModelOpt")
    source = write_checkpoint(tmp_path / "source", config, random_tensors(drafter))
    folder = convert(source, tmp_path / "out", block_size=4, attention_factor=1.5)
    found, _ = read_back(folder)
    assert (found.block_size, found.rope.attention_factor) == (4, 1.5)
    recorded = json.loads((folder / "config.json").read_text())["source"]
    assert recorded["added"] == {"block_size": 4, "attention_factor": 1.5}
