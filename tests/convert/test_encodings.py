"""Quantized checkpoints, whole: converted to the exact numbers, or refused in a sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from quantized_checkpoint import ENCODINGS, compressed, make_tensors, modelopt, write_quantized
from raw_tensors import Raw, bf16
from test_any_value import VALUES, changed, paths
from tiny_checkpoint import (
    Tensors,
    arrays,
    recorded,
    snapshot,
    tiny_config,
    tiny_weights,
    write_checkpoint,
)

from dflash_mlx.convert import convert
from dflash_mlx.convert.declared import read_declared
from dflash_mlx.errors import UserError

NOWHERE = Path("nowhere")
GATE = "layers.0.mlp.gate_proj"


def converted(
    tmp_path: Path, encoding: str, quantize_fc: bool = True, **options: Any
) -> tuple[Tensors, dict[str, np.ndarray]]:
    """What a conversion writes, and the float32 values that the checkpoint stands for."""
    tensors, values = make_tensors(encoding, quantize_fc)
    source = write_quantized(tmp_path / "source", tensors, ENCODINGS[encoding][1])
    return arrays(convert(source, tmp_path / "out", **options)), values


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
    found, values = converted(tmp_path, encoding, quantize_fc, dtype="float32")
    assert set(found) == set(values)
    for name, expected in values.items():
        assert found[name].dtype == mx.float32
        np.testing.assert_array_equal(np.array(found[name]), expected, err_msg=name)


@pytest.mark.parametrize("encoding", ["fp8 per tensor", "nvfp4 of ModelOpt"])
def test_rounded_once_to_bfloat16(tmp_path: Path, encoding: str) -> None:
    found, values = converted(tmp_path, encoding)
    for name, expected in values.items():
        assert found[name].dtype == mx.bfloat16
        assert mx.array_equal(found[name], mx.array(expected).astype(mx.bfloat16)), name


def test_quantized_again_for_mlx(tmp_path: Path) -> None:
    options = {"quantize": True, "q_bits": 8, "q_group_size": 32}
    found, values = converted(tmp_path, "nvfp4 compressed", **options)
    parts = mx.quantize(mx.array(values["fc.weight"]).astype(mx.bfloat16), group_size=32, bits=8)
    for name, expected in zip(("weight", "scales", "biases"), parts, strict=True):
        assert mx.array_equal(found[f"fc.{name}"], expected)


def test_scales_of_activations_are_left_out(tmp_path: Path) -> None:
    tensors, values = make_tensors("fp8 per tensor", quantize_fc=False)
    one = ("F32", np.ones((), np.float32))
    attention = ("layers.1.self_attn.k_proj.k_scale", "layers.0.self_attn.v_scale")
    places = (f"{GATE}.input_scale", *attention)
    source = write_quantized(
        tmp_path / "source", tensors | dict.fromkeys(places, one), modelopt("FP8")
    )
    assert set(arrays(convert(source, tmp_path / "out"))) == set(values)


def test_scales_of_activations_need_quantized_weights(tmp_path: Path) -> None:
    """Or a declaration that at least the cache is quantized."""
    scale = "layers.0.self_attn.k_scale"
    weights = tiny_weights() | {scale: mx.ones(1)}
    plain = write_checkpoint(tmp_path / "plain", weights=weights)
    with pytest.raises(UserError, match="k_scale"):
        convert(plain, tmp_path / "out")
    config = tiny_config(quantization_config=modelopt(None))
    source = write_checkpoint(tmp_path / "source", config, weights)
    origin = recorded(convert(source, tmp_path / "out"))
    assert (list(origin["dropped"]), origin["encodings"]) == ([scale], [])


def test_declared_by_modelopts_own_file(tmp_path: Path) -> None:
    tensors, values = make_tensors("nvfp4 of ModelOpt", quantize_fc=False)
    declaration = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    source = write_quantized(tmp_path / "source", tensors, None, declaration)
    found = arrays(convert(source, tmp_path / "out", dtype="float32"))
    np.testing.assert_array_equal(np.array(found[f"{GATE}.weight"]), values[f"{GATE}.weight"])


Edit = Callable[[dict[str, Raw]], object]


def drop(part: str) -> Edit:
    return lambda tensors: tensors.pop(f"{GATE}.{part}")


def put(part: str, raw: Raw) -> Edit:
    return lambda tensors: tensors.update({f"{GATE}.{part}": raw})


def edit(part: str, change: Callable[[np.ndarray], np.ndarray]) -> Edit:
    def apply(tensors: dict[str, Raw]) -> None:
        dtype, array = tensors[f"{GATE}.{part}"]
        tensors[f"{GATE}.{part}"] = dtype, change(array)

    return apply


def plain(tensors: dict[str, Raw]) -> None:
    for name in [*tensors]:
        raw = tensors.pop(name)
        if name.endswith("weight"):
            tensors[name] = bf16(np.ones(raw[1].shape))


ONES = np.ones((12, 2), np.int32)
CORRUPTIONS: list[tuple[str, Edit, str]] = [
    ("fp8 per tensor", drop("weight_scale"), "gate_proj is quantized in a way"),
    ("nvfp4 of ModelOpt", drop("weight_scale_2"), "gate_proj is quantized in a way"),
    ("fp8 per tensor", put("weight", ("F8_E5M2", np.ones((96, 64), np.uint8))), "weight F8_E5M2"),
    ("fp8 per channel", edit("weight_scale", lambda a: a.T), r"shape \[96, 64\].*\[1, 96\]"),
    ("fp8 in blocks", edit("weight_scale_inv", lambda a: a[:-1]), r"scales of shape \[2, 2\]"),
    ("nvfp4 compressed", edit("weight_packed", lambda a: a[:, :-1]), r"NVFP4 .* \[96, 62\]"),
    ("mxfp4 compressed", edit("weight_scale", lambda a: np.repeat(a, 2, 1)), "do not fit"),
    ("int4", edit("weight_scale", lambda a: np.repeat(a, 3, 1)[:, :5]), "do not fit"),
    ("fp8 per tensor", edit("weight", lambda a: a.reshape(-1)), r"not \[out, in\]"),
    (
        "nvfp4 of ModelOpt",
        edit("weight_scale_2", lambda a: np.ones(3, np.float32)),
        "weight_scale_2 has shape",
    ),
    ("int4", edit("weight_shape", lambda a: a[:1]), "weight_shape has shape"),
    ("int4", edit("weight_shape", lambda a: a - 1), r"weight_shape \[95, 63\]"),
    ("fp8 per tensor", edit("weight", lambda a: a[:-1]), r"gate_proj.weight has shape \[95, 64\]"),
    ("fp8 per tensor", edit("weight", lambda a: np.full_like(a, 127)), "gate_proj.weight .*NaN"),
    ("mxfp8", edit("weight_scale", lambda a: np.full_like(a, 255)), "gate_proj.weight holds NaN"),
    ("fp8 per tensor", edit("weight_scale", np.zeros_like), "gate_proj.weight is all zeros"),
    ("int4", put("weight", bf16(np.ones((96, 64)))), "gate_proj is quantized in a way"),
    ("int4", put("qweight", ("I32", ONES)), "quantized with GPTQ or AWQ"),
    ("int4", put("weight_zero_point", ("I32", ONES)), "asymmetric"),
    ("nvfp4 of ModelOpt", put("pre_quant_scale", bf16(np.ones(64))), "quantized with AWQ"),
    ("fp8 per tensor", plain, "has unquantized weights, but its configuration declares FP8"),
]


@pytest.mark.parametrize(("encoding", "corrupt", "problem"), CORRUPTIONS)
def test_corruption(tmp_path: Path, encoding: str, corrupt: Edit, problem: str) -> None:
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


MIXED = modelopt("MIXED_PRECISION") | {"quantized_layers": {"a": {"quant_algo": "NVFP4"}}}
DECLARATIONS = [{"quantization_config": config} for _, config in ENCODINGS.values()]
DECLARATIONS.append({"quantization_config": MIXED})


@pytest.mark.parametrize("declaration", DECLARATIONS)
def test_any_value_of_any_key_is_read_or_refused(declaration: dict[str, Any]) -> None:
    for path in paths(declaration):
        for value in VALUES:
            try:
                found = read_declared(NOWHERE, changed(declaration, path, value))
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
