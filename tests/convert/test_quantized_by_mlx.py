"""Drafters in a published layout that MLX has quantized: its weights stay as they are."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from formats import CONFIGS, make
from tiny_checkpoint import Tensors, arrays, recorded, write_checkpoint

from dflash_mlx.convert import convert, convert_cached
from dflash_mlx.convert.inspection import inspect
from dflash_mlx.drafter.model import Drafter
from dflash_mlx.errors import UserError
from dflash_mlx.loading.loader import load_drafter

FOUR = {"group_size": 32, "bits": 4, "mode": "affine"}
EIGHT = {"group_size": 64, "bits": 8, "mode": "affine"}
MXFP4 = {"group_size": 32, "bits": 4, "mode": "mxfp4"}
MXFP8 = {"group_size": 32, "bits": 8, "mode": "mxfp8"}
SETTINGS = [FOUR, FOUR | {"bits": 8}, FOUR | {"bits": 3}, MXFP4, MXFP8]
LEAVES = ("weight", "scales", "biases")


def quantize(stored: Tensors, settings: dict[str, Any], **others: dict[str, Any]) -> Tensors:
    """A checkpoint's tensors with every linear layer and table quantized, as MLX's tools do it."""
    result: Tensors = {}
    for name, array in stored.items():
        module = name.removesuffix(".weight")
        if array.ndim != 2 or module == name:
            result[name] = array
            continue
        parts = mx.quantize(array, **others.get(module, settings))
        result |= {f"{module}.{leaf}": part for leaf, part in zip(LEAVES, parts, strict=False)}
    return result


def write(
    folder: Path, format_name: str, settings: dict[str, Any], **others: dict[str, Any]
) -> Tensors:
    """Such a checkpoint in a format of ours; its tensors by their names there."""
    stored = quantize(make(format_name).stored, settings, **others)
    both = settings | others
    config = CONFIGS[format_name]() | {"quantization": both, "quantization_config": both}
    write_checkpoint(folder, config, stored)
    return stored


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: f"{s['mode']}-{s['bits']}")
@pytest.mark.parametrize("format_name", ["z-lab", "Muse assistant", "AngelSpec", "speculators"])
def test_weights_stay_as_they_are(
    tmp_path: Path, format_name: str, settings: dict[str, Any]
) -> None:
    """And the drafter that is loaded is the one that mlx's own quantization makes."""
    write(tmp_path / "source", format_name, settings)
    drafter = load_drafter(convert(tmp_path / "source", tmp_path / "out"))
    made = make(format_name)
    expected = Drafter(made.config)
    expected.load_weights(list(made.tensors.items()))
    nn.quantize(expected, **settings)
    found, wanted = (dict(nn.utils.tree_flatten(x.parameters())) for x in (drafter, expected))
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype, name
        assert mx.array_equal(found[name], array), name
    modules = dict(drafter.named_modules())
    assert {modules["fc"].group_size, modules["fc"].bits} == {
        settings["group_size"],
        settings["bits"],
    }
    assert modules["fc"].mode == settings["mode"]
    assert recorded(tmp_path / "out")["encodings"] == ["MLX"]


def test_layers_of_their_own_settings(tmp_path: Path) -> None:
    """By the names that the layout has, in the converted config by ours."""
    other = {"encoder.fc": EIGHT, "layers.0.mlp.up_proj": MXFP4}
    write(tmp_path / "source", "Muse assistant", FOUR, **other)
    folder = convert(tmp_path / "source", tmp_path / "out")
    quantization = json.loads((folder / "config.json").read_text())["quantization"]
    assert quantization == FOUR | {"fc": EIGHT, "layers.0.mlp.up_proj": MXFP4}
    modules = dict(load_drafter(folder).named_modules())
    assert (modules["fc"].bits, modules["layers.0.mlp.up_proj"].mode) == (8, "mxfp4")
    assert modules["layers.1.mlp.up_proj"].bits == 4


def test_what_is_never_quantized_is_dequantized(tmp_path: Path) -> None:
    """DFlash 2's kernels and selector."""
    stored = write(tmp_path / "source", "z-lab DFlash 2", MXFP4 | {"group_size": 32})
    name = "candidate_selector.hidden_projection"
    found = arrays(convert(tmp_path / "source", tmp_path / "out"))
    expected = mx.dequantize(stored[f"{name}.weight"], stored[f"{name}.scales"], **MXFP4)
    assert mx.array_equal(found[f"{name}.weight"], expected.astype(mx.bfloat16))
    assert f"{name}.scales" not in found and "fc.scales" in found


def test_cast(tmp_path: Path) -> None:
    stored = write(tmp_path / "source", "z-lab", FOUR)
    found = arrays(convert(tmp_path / "source", tmp_path / "out", dtype="float32"))
    assert found["fc.scales"].dtype == found["norm.weight"].dtype == mx.float32
    assert mx.array_equal(found["fc.scales"], stored["fc.scales"].astype(mx.float32))
    assert mx.array_equal(found["fc.weight"], stored["fc.weight"])


def test_one_copy_of_the_declaration_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    stored = write(tmp_path / "source", "z-lab", FOUR)
    file = tmp_path / "source" / "config.json"
    config = json.loads(file.read_text())
    for key in ("quantization", "quantization_config"):
        # mlx-lm leaves the mode out where it is affine in older versions.
        only = {k: v for k, v in config.items() if not k.startswith("quantization")}
        file.write_text(json.dumps(only | {key: {"group_size": 32, "bits": 4}}))
        found = arrays(convert_cached(tmp_path / "source"))
        assert mx.array_equal(found["fc.weight"], stored["fc.weight"])


def test_inspected(tmp_path: Path) -> None:
    write(tmp_path / "source", "z-lab", FOUR)
    found = inspect(str(tmp_path / "source"))
    assert found["problem"] is None
    assert found["weights"]["quantization"] == "affine, 4 bits in groups of 32"
    assert found["needs"]["memory"] == found["weights"]["bytes"]
    out = convert(tmp_path / "source", tmp_path / "out")
    assert "| weights | 4-bit, group size 32 |" in (out / "README.md").read_text()
    assert inspect(str(out))["problem"] is None


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "bits": ({"bits": 7}, "'bits': 7"),
    "other bits": ({"bits": 8}, "scales of shape"),
    "group size": ({"group_size": 64}, "scales of shape"),
    "mode": ({"mode": "mxfp4"}, "has biases, but its mode is 'mxfp4'"),
    "unknown mode": ({"mode": ["affine"]}, "MLX does not have"),
    "a layer's": ({"fc": {"group_size": 16, "bits": 4}}, "fc is quantized by MLX with"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_declaration_that_does_not_fit(tmp_path: Path, case: str) -> None:
    write(tmp_path / "source", "z-lab", FOUR)
    file = tmp_path / "source" / "config.json"
    config = json.loads(file.read_text())
    changes, problem = WRONG[case]
    wrong = FOUR | changes
    file.write_text(json.dumps(config | {"quantization": wrong, "quantization_config": wrong}))
    assert problem in inspect(str(tmp_path / "source"))["problem"]
    with pytest.raises(UserError, match="source: ") as error:
        convert(tmp_path / "source", tmp_path / "out")
    assert problem in str(error.value)
    file.write_text(json.dumps(config | {"quantization": wrong}))
    with pytest.raises(UserError, match="but quantization_config is"):
        convert(tmp_path / "source", tmp_path / "out")


def test_what_is_quantized_is_not_quantized_again(tmp_path: Path) -> None:
    write(tmp_path / "source", "z-lab", FOUR)
    with pytest.raises(UserError, match="quantized already"):
        convert(tmp_path / "source", tmp_path / "out", quantize=True)
