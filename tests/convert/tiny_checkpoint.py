"""Tiny random checkpoints in z-lab's layout, and torch.save files written without torch."""

import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_mlx.convert.detect import parse
from dflash_mlx.convert.keys import Additions
from dflash_mlx.convert.tensors import model_parameters
from dflash_mlx.drafter.config import DrafterConfig

Tensors = dict[str, mx.array]


def parsed_config(config: dict[str, Any], *tables: str, **additions: Any) -> DrafterConfig:
    """The drafter of a raw config.json without a mask embedding, with these tables as well."""
    first, _ = parse(config, None, Additions(**additions))
    names = {*model_parameters(first.config), *tables} - {"mask_embedding"}
    return parse(config, names, Additions(**additions))[0].config


def without_nones(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def tiny_config(**changes: Any) -> dict[str, Any]:
    """A raw config.json; a change to None removes the key, ``dflash_config`` is merged."""
    nested = {"mask_token_id": 63, "target_layer_ids": [1, 5, 9]} | changes.pop("dflash_config", {})
    config = {
        "architectures": ["DFlashDraftModel"],
        "attention_bias": False,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": 8,
        "dflash_config": without_nones(nested),
        "dtype": "bfloat16",
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "layer_types": ["full_attention", "full_attention"],
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_target_layers": 12,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "vocab_size": 64,
    }
    return without_nones(config | changes)


def random_tensors(config: DrafterConfig, dtype: mx.Dtype = mx.bfloat16) -> Tensors:
    """Random weights by MLX name; ``d2t`` holds the target's ids."""
    mx.random.seed(11)
    tensors = {
        name: mx.random.normal(array.shape).astype(dtype)
        for name, array in model_parameters(config).items()
    }
    if config.draft_vocab_size is not None:
        chosen = mx.random.permutation(config.vocab_size)[: config.draft_vocab_size]
        tensors["d2t"] = mx.sort(chosen).astype(mx.int32)
    return tensors


def tiny_weights(**changes: Any) -> Tensors:
    """Random weights for ``tiny_config``."""
    return random_tensors(parsed_config(tiny_config(**changes)))


def write_checkpoint(
    folder: Path,
    config: dict[str, Any] | None = None,
    weights: Tensors | None = None,
    shards: int = 1,
) -> Path:
    """Write a checkpoint in one file, or in shards with an index."""
    config = tiny_config() if config is None else config
    weights = random_tensors(parsed_config(config)) if weights is None else weights
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        mx.save_safetensors(str(folder / "model.safetensors"), weights)
        return folder
    weight_map = {}
    names = sorted(weights)
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: weights[name] for name in names[i::shards]}
        mx.save_safetensors(str(folder / file), part)
        weight_map |= dict.fromkeys(part, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def arrays(folder: Path) -> Tensors:
    return mx.load(str(folder / "model.safetensors"))


def recorded(folder: Path) -> dict[str, Any]:
    """What a converted drafter says about its origin."""
    return json.loads((folder / "config.json").read_text())["source"]


def assert_same(found: Tensors, expected: Tensors) -> None:
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert mx.array_equal(found[name], array), name


def snapshot(folder: Path) -> dict[str, Any]:
    """Every path under a folder, to show that nothing was left behind."""
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*")}


def write_torch_file(path: Path, values: mx.array, token_id: int | None = None) -> None:
    """What ``torch.save`` writes for a tensor, or for ``{"mask_token_id", "embedding"}``."""
    value = _tensor_ops(values)
    if token_id is not None:
        value = b"}(" + _ops("mask_token_id", token_id, "embedding") + value + b"u"
    write_torch_pickle(path, b"\x80\x02" + value + b".", values)


def write_torch_pickle(path: Path, pickled: bytes, values: mx.array) -> None:
    """A torch.save archive with any pickle and one storage."""
    raw = values.view(mx.uint16 if values.itemsize == 2 else mx.uint32)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("mask_embedding/data.pkl", pickled)
        archive.writestr("mask_embedding/byteorder", "little")
        archive.writestr("mask_embedding/data/0", bytes(memoryview(raw)))
        archive.writestr("mask_embedding/version", "3\n")


def _tensor_ops(values: mx.array) -> bytes:
    """Pickle opcodes of a tensor: ``_rebuild_tensor_v2(storage, 0, shape, stride, False, {})``."""
    storage = {
        mx.float32: "FloatStorage",
        mx.float16: "HalfStorage",
        mx.bfloat16: "BFloat16Storage",
    }
    strides = [1]
    for size in reversed(values.shape[1:]):
        strides.insert(0, strides[0] * size)
    return b"".join(
        [
            b"ctorch._utils\n_rebuild_tensor_v2\n((",
            _ops("storage") + f"ctorch\n{storage[values.dtype]}\n".encode(),
            _ops("0", "cpu", values.size) + b"tQ" + _ops(0),
            b"(" + _ops(*values.shape) + b"t(" + _ops(*strides) + b"t\x89",
            b"ccollections\nOrderedDict\n)RtR",
        ]
    )


def _ops(*values: str | int) -> bytes:
    """Opcodes that push strings and integers."""
    pushed = b""
    for value in values:
        if isinstance(value, str):
            pushed += pickle.BINUNICODE + struct.pack("<I", len(value)) + value.encode()
        else:
            pushed += pickle.BININT + struct.pack("<i", value)
    return pushed
