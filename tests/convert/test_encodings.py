"""Quantized checkpoints, whole: converted to the exact numbers, or refused in a sentence."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from quantized_checkpoint import ENCODINGS, compressed, make_tensors, modelopt, write_quantized
from raw_tensors import Raw, bf16
from tiny_checkpoint import snapshot, tiny_config, tiny_weights, write_checkpoint

from dflash_mlx.convert import convert
from dflash_mlx.convert.declared import read_declared
from dflash_mlx.errors import UserError

NOWHERE = Path("nowhere")
GATE = "layers.0.mlp.gate_proj"


def refused(tmp_path: Path, problem: str, tensors: dict[str, Raw], *configs: Any) -> None:
    source = write_quantized(tmp_path / "source", tensors, *configs)
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=problem) as error:
        convert(source, tmp_path / "out")
    assert len(str(error.value).splitlines()) == 1
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("quantize_fc", [True, False])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_exact_in_float32(tmp_path: Path, encoding: str, quantize_fc: bool) -> None:
    tensors, values = make_tensors(encoding, quantize_fc)
    source = write_quantized(tmp_path / "source", tensors, ENCODINGS[encoding][1])
    found = mx.load(str(convert(source, tmp_path / "out", dtype="float32") / "model.safetensors"))
    assert set(found) == set(values)
    for name, expected in values.items():
        assert found[name].dtype == mx.float32
        np.testing.assert_array_equal(np.array(found[name]), expected, err_msg=name)


@pytest.mark.parametrize("encoding", ["fp8 per tensor", "nvfp4 of ModelOpt"])
def test_rounded_once_to_bfloat16(tmp_path: Path, encoding: str) -> None:
    tensors, values = make_tensors(encoding, quantize_fc=True)
    source = write_quantized(tmp_path / "source", tensors, ENCODINGS[encoding][1])
    found = mx.load(str(convert(source, tmp_path / "out") / "model.safetensors"))
    for name, expected in values.items():
        assert found[name].dtype == mx.bfloat16
        assert mx.array_equal(found[name], mx.array(expected).astype(mx.bfloat16)), name


def test_quantized_again_for_mlx(tmp_path: Path) -> None:
    tensors, values = make_tensors("nvfp4 compressed", quantize_fc=True)
    source = write_quantized(tmp_path / "source", tensors, ENCODINGS["nvfp4 compressed"][1])
    folder = convert(source, tmp_path / "out", quantize=True, q_bits=8, q_group_size=32)
    found = mx.load(str(folder / "model.safetensors"))
    weight = mx.array(values["fc.weight"]).astype(mx.bfloat16)
    packed, scale, bias = mx.quantize(weight, group_size=32, bits=8)
    for part, expected in (("weight", packed), ("scales", scale), ("biases", bias)):
        assert mx.array_equal(found[f"fc.{part}"], expected)


def test_scales_of_activations_are_left_out(tmp_path: Path) -> None:
    tensors, values = make_tensors("fp8 per tensor", quantize_fc=False)
    one = ("F32", np.ones((), np.float32))
    extra = {f"{GATE}.input_scale": one, "layers.1.self_attn.k_proj.k_scale": one}
    extra["layers.0.self_attn.v_scale"] = one
    source = write_quantized(tmp_path / "source", tensors | extra, modelopt("FP8"))
    found = mx.load(str(convert(source, tmp_path / "out") / "model.safetensors"))
    assert set(found) == set(values)


def test_scales_of_activations_need_quantized_weights(tmp_path: Path) -> None:
    plain = write_checkpoint(tmp_path / "plain")
    weights = mx.load(str(plain / "model.safetensors"))
    weights["layers.0.self_attn.k_scale"] = mx.ones(1)
    mx.save_safetensors(str(plain / "model.safetensors"), weights)
    with pytest.raises(UserError, match="k_scale"):
        convert(plain, tmp_path / "out")


def test_declared_by_modelopts_own_file(tmp_path: Path) -> None:
    tensors, values = make_tensors("nvfp4 of ModelOpt", quantize_fc=False)
    declaration = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    source = write_quantized(tmp_path / "source", tensors, None, declaration)
    folder = convert(source, tmp_path / "out", dtype="float32")
    found = mx.load(str(folder / "model.safetensors"))
    np.testing.assert_array_equal(np.array(found[f"{GATE}.weight"]), values[f"{GATE}.weight"])


def test_only_the_cache_is_declared_quantized(tmp_path: Path) -> None:
    weights = tiny_weights(tiny_config()) | {"layers.0.self_attn.k_scale": mx.ones(1)}
    config = tiny_config(quantization_config=modelopt(None))
    folder = convert(write_checkpoint(tmp_path / "source", config, weights), tmp_path / "out")
    source = json.loads((folder / "config.json").read_text())["source"]
    assert list(source["dropped"]) == ["layers.0.self_attn.k_scale"]
    assert source["encodings"] == []


def change(name: str, dtype: str | None, edit: Callable[[np.ndarray], np.ndarray]) -> Any:
    def apply(tensors: dict[str, Raw]) -> None:
        found, array = tensors[name]
        tensors[name] = (dtype or found, edit(array))

    return apply


CORRUPTIONS: dict[str, tuple[str, Callable[[dict[str, Raw]], object], str]] = {
    "no scale": (
        "fp8 per tensor",
        lambda t: t.pop(f"{GATE}.weight_scale"),
        "gate_proj is quantized in a way",
    ),
    "no tensor scale": (
        "nvfp4 of ModelOpt",
        lambda t: t.pop(f"{GATE}.weight_scale_2"),
        "gate_proj is quantized in a way",
    ),
    "e5m2": (
        "fp8 per tensor",
        change(f"{GATE}.weight", "F8_E5M2", lambda a: a),
        "weight F8_E5M2",
    ),
    "transposed channels": (
        "fp8 per channel",
        change(f"{GATE}.weight_scale", None, lambda a: a.T),
        r"gate_proj has FP8 weights for shape \[96, 64\], but scales of shape \[1, 96\]",
    ),
    "a block too few": (
        "fp8 in blocks",
        change(f"{GATE}.weight_scale_inv", None, lambda a: a[:-1]),
        r"scales of shape \[2, 2\]",
    ),
    "odd columns": (
        "nvfp4 compressed",
        change(f"{GATE}.weight_packed", None, lambda a: a[:, :-1]),
        r"NVFP4 weights for shape \[96, 62\]",
    ),
    "groups of 16 for mxfp4": (
        "mxfp4 compressed",
        change(f"{GATE}.weight_scale", None, lambda a: np.repeat(a, 2, 1)),
        "do not fit",
    ),
    "groups that do not divide": (
        "int4",
        change(f"{GATE}.weight_scale", None, lambda a: np.repeat(a, 3, 1)[:, :5]),
        "do not fit",
    ),
    "a weight of one axis": (
        "fp8 per tensor",
        change(f"{GATE}.weight", None, lambda a: a.reshape(-1)),
        r"not \[out, in\]",
    ),
    "several tensor scales": (
        "nvfp4 of ModelOpt",
        change(f"{GATE}.weight_scale_2", None, lambda a: np.ones(3, np.float32)),
        "weight_scale_2 has shape",
    ),
    "padded words": (
        "int4",
        change(f"{GATE}.weight_shape", None, lambda a: a - 1),
        r"weight_shape \[95, 63\]",
    ),
    "wrong size after all": (
        "fp8 per tensor",
        change(f"{GATE}.weight", None, lambda a: a[:-1]),
        r"gate_proj.weight has shape \[95, 64\]",
    ),
    "NaN code": (
        "fp8 per tensor",
        change(f"{GATE}.weight", None, lambda a: np.full_like(a, 127)),
        "gate_proj.weight holds NaN",
    ),
    "NaN exponent": (
        "mxfp8",
        change(f"{GATE}.weight_scale", None, lambda a: np.full_like(a, 255)),
        "gate_proj.weight holds NaN or infinity",
    ),
    "zero scale": (
        "fp8 per tensor",
        change(f"{GATE}.weight_scale", None, np.zeros_like),
        "gate_proj.weight is all zeros",
    ),
    "plain as well": (
        "int4",
        lambda t: t.update({f"{GATE}.weight": bf16(np.ones((96, 64)))}),
        "gate_proj is quantized in a way",
    ),
    "GPTQ": (
        "int4",
        lambda t: t.update({f"{GATE}.qweight": ("I32", np.ones((8, 96), np.int32))}),
        "quantized with GPTQ or AWQ",
    ),
    "zero points": (
        "int4",
        lambda t: t.update({f"{GATE}.weight_zero_point": ("I32", np.ones((12, 2), np.int32))}),
        "asymmetric",
    ),
    "smoothed": (
        "nvfp4 of ModelOpt",
        lambda t: t.update({f"{GATE}.pre_quant_scale": bf16(np.ones(64))}),
        "quantized with AWQ",
    ),
    "none is quantized": (
        "fp8 per tensor",
        lambda t: [
            t.update({n: bf16(np.ones(t[n][1].shape))}) if n.endswith("weight") else t.pop(n)
            for n in list(t)
        ],
        "has unquantized weights, but its configuration declares FP8",
    ),
}


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_corruption(tmp_path: Path, corruption: str) -> None:
    encoding, corrupt, problem = CORRUPTIONS[corruption]
    tensors, _ = make_tensors(encoding, quantize_fc=False)
    corrupt(tensors)
    refused(tmp_path, problem, tensors, ENCODINGS[encoding][1])


@pytest.mark.parametrize(
    ("quantization", "problem"),
    [
        (None, "has FP8 weights, but its configuration declares unquantized"),
        (modelopt("NVFP4"), "has FP8 weights, but its configuration declares NVFP4"),
        (modelopt("NVFP4_AWQ"), "quantized as NVFP4_AWQ"),
        (modelopt("INT8_SQ"), "INT8_SQ"),
        ({"quant_method": "gptq", "bits": 4}, "quantized with 'gptq'"),
        ({"quant_method": "awq"}, "'awq'"),
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes'"),
        ({}, "None"),
        ("fp8", "must be an object"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "two numbers"),
        (compressed(type="int", num_bits=8), "8-bit int"),
        (compressed(type="int", num_bits=4, symmetric=False), "asymmetric"),
        (compressed(type="int", num_bits=4, actorder="group"), "reorders"),
        ({"quant_method": "compressed-tensors"}, "config_groups"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers"),
    ],
)
def test_declaration(tmp_path: Path, quantization: Any, problem: str) -> None:
    tensors, _ = make_tensors("fp8 per tensor", quantize_fc=False)
    refused(tmp_path, problem, tensors, quantization)


def test_two_declarations_that_differ(tmp_path: Path) -> None:
    tensors, _ = make_tensors("fp8 per tensor", quantize_fc=False)
    other = {"quantization": {"quant_algo": "NVFP4"}}
    refused(tmp_path, "declares FP8 weights, but", tensors, modelopt("FP8"), other)


ODD_VALUES = (None, True, -1, 1.5, "", "x", [], [1], {}, {"a": None})


def places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every key in a nested object."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from places(inner, (*path, key))


def with_value(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    key, *rest = path
    return config | {key: with_value(config[key], tuple(rest), value) if rest else value}


MIXED = modelopt("MIXED_PRECISION") | {"quantized_layers": {"a": {"quant_algo": "NVFP4"}}}
DECLARATIONS = [{"quantization_config": config} for _, config in ENCODINGS.values()]
DECLARATIONS.append({"quantization_config": MIXED})


@pytest.mark.parametrize("declaration", DECLARATIONS)
def test_any_value_of_any_key_is_read_or_refused(declaration: dict[str, Any]) -> None:
    for path in places(declaration):
        for value in ODD_VALUES:
            try:
                found = read_declared(NOWHERE, with_value(declaration, path, value))
            except UserError as error:
                assert len(str(error).splitlines()) == 1
            else:
                assert found.encodings <= {"FP8", "NVFP4", "MXFP4", "MXFP8", "INT4"}


def test_several_encodings_in_one_checkpoint() -> None:
    layers = {"a": {"quant_algo": "NVFP4"}, "b": {"quant_algo": "FP8"}, "c": {}}
    mixed = modelopt("MIXED_PRECISION") | {"quantized_layers": layers}
    declared = read_declared(NOWHERE, {"quantization_config": mixed})
    assert declared.encodings == {"NVFP4", "FP8"}
    both = compressed(type="float", num_bits=8, strategy="channel")
    both["config_groups"]["group_1"] = {"weights": {"type": "int", "num_bits": 4}}
    both["config_groups"]["group_2"] = {"weights": None}
    assert read_declared(NOWHERE, {"quantization_config": both}).encodings == {"FP8", "INT4"}
