"""What the doctor says of a given drafter's kernels is what its rounds do."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
from support.folders import drafter_config, given, save_drafter
from support.launches import Launches, as_on_metal
from support.tiny import tiny_model

from dflash_mlx.cli.main import main
from dflash_mlx.loading.loader import load_drafter, make_pair
from dflash_mlx.measure.finding import Finding
from dflash_mlx.measure.fused import check_fused_parts

WIDE = {"hidden_size": 64, "target_hidden_size": 64, "head_dim": 64, "intermediate_size": 64}
# A drafter, how it is quantized, and what its paths say on Metal.
DRAFTERS = {
    "few rows": (WIDE | {"block_size": 2}, [], "rows (one launch"),
    "more rows": (WIDE | {"block_size": 16}, [], "fragments (one launch"),
    "quantized": (WIDE, ["-q", "--q-bits", "4", "--q-group-size", "32"], "one launch"),
    "5 bits": (WIDE, ["-q", "--q-bits", "5", "--q-group-size", "32"], "5 bits in groups of 32"),
    "narrow heads": ({}, [], "head_dim is 8, not 64 or 128"),
    "bias": (WIDE | {"attention_bias": True}, [], "the projection has a bias"),
}


@pytest.fixture
def metal(monkeypatch):
    """Launches that are only counted, in place of Metal."""
    monkeypatch.setattr(mx.fast, "metal_kernel", Launches())
    as_on_metal(monkeypatch)


def check(folder: Path) -> Finding:
    return check_fused_parts(given(drafter=folder)["drafter"])


def save(folder: Path, changes: dict[str, object], quantize: list[str]) -> Path:
    save_drafter(folder / "dense", **changes)
    if not quantize:
        return folder / "dense"
    convert = ["convert", "--hf-path", folder / "dense", "--mlx-path", folder / "small"]
    assert main([*map(str, convert), *quantize]) == 0
    return folder / "small"


@pytest.mark.parametrize("name", DRAFTERS)
def test_it_is_what_rounds_do(name, tmp_path, metal):
    changes, quantize, words = DRAFTERS[name]
    folder = save(tmp_path, changes, quantize)
    found = check(folder)
    model = tiny_model("llama", vocab_size=260, hidden_size=changes.get("hidden_size", 32))
    with make_pair(model, load_drafter(folder)) as pair:
        assert found.data["path"] == pair.drafter.kernels(pair.drafter.block_size)
    assert found.status == "ok" and words in found.text
    assert f"in a round of {drafter_config(**changes).block_size} rows" in found.text


def test_another_format(tmp_path, metal):
    save_drafter(tmp_path / "drafter", **(WIDE | {"target_layer_ids": (0, 1)}))
    export = ["convert", "--export", "z-lab", "--mlx-path", tmp_path / "drafter"]
    assert main([*map(str, export), "--hf-path", str(tmp_path / "z-lab")]) == 0
    found = [check(tmp_path / x) for x in ("drafter", "z-lab")]
    assert found[0].data == found[1].data and "one launch" in found[0].text


def test_a_kernel_that_cannot_be_built(tmp_path, metal, monkeypatch):
    monkeypatch.setattr(mx.fast, "metal_kernel", Launches(broken="block_heads"))
    found = check(save(tmp_path, WIDE, []))
    assert found.status == "advice" and "block_heads cannot be built" in found.text


@pytest.mark.parametrize("quantization", [{"bits": 3.5}, {"bits": "4"}, {"group_size": 48}])
def test_a_quantization_that_is_none(quantization, tmp_path):
    save_drafter(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"quantization": quantization}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = check(tmp_path)
    assert found.status == "advice" and "is not known" in found.text


def test_a_drafter_that_lacks_weights(tmp_path):
    save_drafter(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    found = check(tmp_path)
    assert found.status == "advice" and "model.safetensors" in found.text
    (tmp_path / "model.safetensors.index.json").unlink()
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"norm.weight": mx.ones(32)})
    found = check(tmp_path)
    assert found.status == "advice" and "hidden_norm" in found.text
