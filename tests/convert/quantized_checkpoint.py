"""Tiny checkpoints with quantized linear layers, as each tool writes them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from raw_tensors import (
    E2M1,
    E4M3,
    Raw,
    bf16,
    codes,
    nibbles,
    nvfp4,
    scales,
    spread,
    write_raw,
)
from tiny_checkpoint import parsed_config, tiny_config

from dflash_mlx.convert.tensors import model_parameters

# The parts of one weight by their last name, and its values.
Weight = tuple[dict[str, Raw], np.ndarray]
Maker = Callable[[np.random.RandomState, int, int], Weight]


def _fp8(name: str, shape: Callable[[int, int], tuple[int, ...]]) -> Maker:
    def make(random: np.random.RandomState, rows: int, columns: int) -> Weight:
        weight, scale = codes(random, rows, columns), scales(random, *shape(rows, columns))
        blocks = scale if scale.ndim == 2 else scale.reshape(1, 1)
        values = E4M3[weight].astype(np.float32) * spread(blocks, rows, columns)
        return {"weight": ("F8_E4M3", weight), name: ("F32", scale)}, values

    return make


def _nvfp4(packed_name: str, tensor_name: str, divide: bool) -> Maker:
    def make(random: np.random.RandomState, rows: int, columns: int) -> Weight:
        packed, block, tensor = nvfp4(random, rows, columns)
        tensor = np.float32(1 / tensor) if divide else tensor
        scale = E4M3[block].astype(np.float32)
        scale = scale / tensor if divide else scale * tensor
        values = E2M1[nibbles(packed)].astype(np.float32) * spread(scale, rows, columns)
        parts = {
            packed_name: ("U8", packed),
            "weight_scale": ("F8_E4M3", block),
            tensor_name: ("F32", np.array(tensor) if not divide else np.array([tensor])),
        }
        return parts, values

    return make


def _mx(packed_name: str, bits: int) -> Maker:
    def make(random: np.random.RandomState, rows: int, columns: int) -> Weight:
        exponents = random.randint(118, 124, (rows, columns // 32)).astype(np.uint8)
        if bits == 4:
            stored = random.randint(0, 256, (rows, columns // 2)).astype(np.uint8)
            values, dtype = E2M1[nibbles(stored)], "U8"
        else:
            stored = codes(random, rows, columns)
            values, dtype = E4M3[stored], "F8_E4M3"
        values = values * spread(2.0 ** (exponents - 127.0), rows, columns)
        return {packed_name: (dtype, stored), "weight_scale": ("U8", exponents)}, values

    return make


def _int4(random: np.random.RandomState, rows: int, columns: int) -> Weight:
    values = random.randint(-8, 8, (rows, columns))
    packed = np.zeros((rows, columns // 8), np.uint32)
    for i in range(8):
        packed |= (values[:, i::8] + 8).astype(np.uint32) << (4 * i)
    scale = (random.randint(1, 64, (rows, columns // 32)) / 4096).astype(np.float32)
    parts = {
        "weight_packed": ("I32", packed.view(np.int32)),
        "weight_scale": bf16(scale),
        "weight_shape": ("I64", np.array([rows, columns], np.int64)),
    }
    return parts, values * spread(scale, rows, columns)


def compressed(**weights: Any) -> dict[str, Any]:
    """A quantization_config of compressed-tensors with one group."""
    group = {"targets": ["Linear"], "weights": {"symmetric": True} | weights}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


def modelopt(algorithm: str | None) -> dict[str, Any]:
    """A quantization_config of ModelOpt."""
    return {"quant_method": "modelopt", "quant_algo": algorithm}


def _blocks(rows: int, columns: int) -> tuple[int, int]:
    return -(-rows // 32), -(-columns // 32)


# Every encoding that is read: how a weight is made, and what config.json says.
ENCODINGS: dict[str, tuple[Maker, dict[str, Any]]] = {
    "fp8 per tensor": (_fp8("weight_scale", lambda r, c: ()), modelopt("FP8")),
    "fp8 per channel": (
        _fp8("weight_scale", lambda r, c: (r, 1)),
        compressed(type="float", num_bits=8, strategy="channel"),
    ),
    "fp8 in blocks": (
        _fp8("weight_scale_inv", _blocks),
        {"quant_method": "fp8", "weight_block_size": [32, 32]},
    ),
    "fp8 in blocks, compressed": (
        _fp8("weight_scale", _blocks),
        compressed(type="float", num_bits=8, strategy="block", block_structure=[32, 32]),
    ),
    "nvfp4 of ModelOpt": (_nvfp4("weight", "weight_scale_2", False), modelopt("NVFP4")),
    "nvfp4 compressed": (
        _nvfp4("weight_packed", "weight_global_scale", True),
        compressed(type="float", num_bits=4, strategy="tensor_group", group_size=16),
    ),
    "mxfp4 of ModelOpt": (_mx("weight", 4), modelopt("MXFP4")),
    "mxfp4 compressed": (
        _mx("weight_packed", 4),
        compressed(type="float", num_bits=4, strategy="group", group_size=32),
    ),
    "mxfp8": (_mx("weight", 8), modelopt("MXFP8")),
    "int4": (_int4, compressed(type="int", num_bits=4, strategy="group", group_size=32)),
}


def make_tensors(encoding: str, quantize_fc: bool) -> tuple[dict[str, Raw], dict[str, np.ndarray]]:
    """A whole drafter's raw tensors, and the float32 values they stand for."""
    random, make = np.random.RandomState(3), ENCODINGS[encoding][0]
    tensors: dict[str, Raw] = {}
    values: dict[str, np.ndarray] = {}
    for name, expected in model_parameters(parsed_config(tiny_config())).items():
        if len(expected.shape) == 1 or (name == "fc.weight" and not quantize_fc):
            plain = bf16(random.standard_normal(expected.shape))
            tensors[name] = plain
            values[name] = (plain[1].astype(np.uint32) << 16).view(np.float32)
            continue
        parts, values[name] = make(random, *expected.shape)
        module = name.removesuffix("weight")
        tensors |= {module + part: raw for part, raw in parts.items()}
    return tensors, {name: array.astype(np.float32) for name, array in values.items()}


def write_quantized(
    folder: Path,
    tensors: dict[str, Raw],
    quantization: dict[str, Any] | None,
    hf_quant_config: dict[str, Any] | None = None,
) -> Path:
    """A checkpoint in two shards, so that a weight and its scales are in different files."""
    folder.mkdir()
    config = tiny_config(quantization_config=quantization)
    (folder / "config.json").write_text(json.dumps(config))
    if hf_quant_config is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(hf_quant_config))
    names = sorted(tensors)
    weight_map = {}
    for i in range(2):
        file = f"model-{i + 1:05d}-of-00002.safetensors"
        write_raw(folder / file, {name: tensors[name] for name in names[i::2]})
        weight_map |= dict.fromkeys(names[i::2], file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return folder
