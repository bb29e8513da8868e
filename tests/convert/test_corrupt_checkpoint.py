"""One damage a test: each gives one clear sentence and leaves nothing on the disk."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from tiny_checkpoint import snapshot, tiny_config, tiny_weights, write_checkpoint

from dflash_mlx.convert import convert
from dflash_mlx.errors import UserError

GATE = "layers.1.mlp.gate_proj.weight"


def refused(tmp_path: Path, source: Path, problem: str, **options: str) -> None:
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=problem) as error:
        convert(source, tmp_path / "out", **options)
    assert str(error.value).startswith(f"{source.name}: ")
    assert "\n" not in str(error.value)
    assert snapshot(tmp_path) == before


def at(array: mx.array, value: float) -> mx.array:
    """The array with one value in the middle replaced."""
    flat = array.flatten()
    flat[flat.size // 2] = value
    return flat.reshape(array.shape)


CHANGES: dict[str, tuple[Callable[[dict[str, mx.array]], object], str]] = {
    "missing": (lambda w: w.pop(GATE), f"lacks {GATE}"),
    "missing and misnamed": (
        lambda w: w.update({"last_norm.weight": w.pop("norm.weight")}),
        r"lacks norm.weight; it has the unknown last_norm.weight",
    ),
    "extra": (lambda w: w.update(extra=w["norm.weight"]), "has extra"),
    "extra layer": (
        lambda w: w.update({"layers.2.mlp.up_proj.weight": w["layers.1.mlp.up_proj.weight"]}),
        r"has layers.2.mlp.up_proj.weight",
    ),
    "transposed": (
        lambda w: w.update({GATE: w[GATE].T}),
        r"gate_proj.weight has shape \[64, 96\].*needs \[96, 64\].*intermediate_size 96",
    ),
    "fewer taps": (
        lambda w: w.update({"fc.weight": w["fc.weight"][:, :128]}),
        r"fc.weight.*target_layer_ids \[1, 5, 9\].*128 inputs are 2 taps of 64, not 3",
    ),
    "another head_dim": (
        lambda w: w.update({"layers.0.self_attn.q_norm.weight": mx.ones(16)}),
        r"q_norm.weight has shape \[16\].*head_dim 32",
    ),
    "NaN": (lambda w: w.update({GATE: at(w[GATE], float("nan"))}), f"{GATE} holds NaN"),
    "infinity": (lambda w: w.update({GATE: at(w[GATE], -float("inf"))}), f"{GATE} holds NaN or"),
    "zeros": (lambda w: w.update({GATE: w[GATE] * 0}), f"{GATE} is all zeros"),
    "integers": (lambda w: w.update({GATE: w[GATE].astype(mx.int8)}), "dtype I8"),
    "half a prefix": (
        lambda w: w.update({"model.norm.weight": w.pop("norm.weight")}),
        "1 of 25 tensors have the prefix",
    ),
    "embedding of another vocabulary": (
        lambda w: w.update({"embed_tokens.weight": w["fc.weight"]}),
        r"embed_tokens.weight has shape \[64, 192\].*needs \[64, 64\] \(vocab_size 64",
    ),
    "head of another vocabulary": (
        lambda w: w.update({"lm_head.weight": w["norm.weight"]}),
        r"lm_head.weight has shape \[64\]",
    ),
    "a map without a reduced vocabulary": (
        lambda w: w.update(d2t=mx.arange(64)),
        "d2t that is not all zeros",
    ),
    "adapter": (
        lambda w: w.update({"hidden_dim_adapter.proj.weight": w["norm.weight"]}),
        "has hidden_dim_adapter.proj.weight",
    ),
    "convolution": (
        lambda w: w.update({"layers.0.mlp_conv.base_kernel": w["norm.weight"]}),
        "has layers.0.mlp_conv.base_kernel",
    ),
    "both names of one tensor": (
        lambda w: w.update({"final_norm.weight": w["norm.weight"]}),
        "has both final_norm.weight and norm.weight",
    ),
    "fused projections": (
        lambda w: w.update({"layers.0.self_attn.qkv_proj.weight": w["fc.weight"]}),
        "Laguna's fused projections",
    ),
    "streams": (
        lambda w: w.update({"fc.weight": mx.concatenate([w["fc.weight"]] * 4, axis=1)}),
        "768 inputs are 3 taps of 4 hyper-connection streams of 64",
    ),
    "Markov head": (lambda w: w.update({"markov_w1.weight": w["norm.weight"]}), "DSpark's heads"),
    "packed": (lambda w: w.update({f"{GATE}_scale": w["norm.weight"]}), "is quantized in a way"),
}


@pytest.mark.parametrize("damage", CHANGES)
def test_damaged_tensors(tmp_path: Path, damage: str) -> None:
    change, problem = CHANGES[damage]
    weights = tiny_weights(tiny_config())
    change(weights)
    refused(tmp_path, write_checkpoint(tmp_path / "source", weights=weights), problem)


def test_biases_without_attention_bias(tmp_path: Path) -> None:
    weights = tiny_weights(tiny_config(attention_bias=True))
    source = write_checkpoint(tmp_path / "source", weights=weights)
    refused(tmp_path, source, r"k_proj.bias.*and 4 more")


def test_too_large_for_float16(tmp_path: Path) -> None:
    weights = tiny_weights(tiny_config())
    weights[GATE] = at(weights[GATE], -1e5)
    source = write_checkpoint(tmp_path / "source", weights=weights)
    refused(tmp_path, source, f"{GATE} holds .*, which float16 cannot", dtype="float16")
    convert(source, tmp_path / "out")


def rewrite_header(path: Path, change: Callable[[dict], object]) -> None:
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def widen(header: dict) -> None:
    header["norm.weight"]["shape"] = [65]


def overlap(header: dict) -> None:
    header["norm.weight"]["data_offsets"] = header["hidden_norm.weight"]["data_offsets"]


def negative(header: dict) -> None:
    header["norm.weight"]["shape"] = [-64]


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:-100]), "truncated or corrupt"),
    "truncated header": (lambda p: p.write_bytes(p.read_bytes()[:300]), "truncated or corrupt"),
    "empty": (lambda p: p.write_bytes(b""), "truncated or corrupt"),
    "trailing bytes": (lambda p: p.write_bytes(p.read_bytes() + b"xyz"), "truncated or corrupt"),
    "a web page": (lambda p: p.write_bytes(b"<!DOCTYPE html>" * 99), "truncated or corrupt"),
    "a pointer": (
        lambda p: p.write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
        "truncated or corrupt",
    ),
    "not JSON": (lambda p: p.write_bytes(struct.pack("<Q", 2) + b"{x"), "truncated or corrupt"),
    "no tensors": (lambda p: p.write_bytes(struct.pack("<Q", 2) + b"{}"), "no tensors"),
    "wrong size": (lambda p: rewrite_header(p, widen), "truncated or corrupt"),
    "overlap": (lambda p: rewrite_header(p, overlap), "norm.weight"),
    "negative shape": (lambda p: rewrite_header(p, negative), "-64"),
    "only a pickle": (lambda p: p.rename(p.parent / "pytorch_model.bin"), "a pickle"),
    "gone": (lambda p: p.unlink(), "no weights"),
    "two files": (
        lambda p: (
            (p.parent / "other.safetensors").write_bytes(p.read_bytes())
            and p.rename(p.parent / "another.safetensors")
        ),
        "2 safetensors files but no index",
    ),
}


@pytest.mark.parametrize("damage", FILES)
def test_damaged_file(tmp_path: Path, damage: str) -> None:
    change, problem = FILES[damage]
    source = write_checkpoint(tmp_path / "source")
    change(source / "model.safetensors")
    refused(tmp_path, source, problem)


def test_a_name_twice_in_one_file(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    path = source / "model.safetensors"
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    text = data[8 : 8 + length].rstrip()[:-1]
    entry = json.dumps(json.loads(data[8 : 8 + length])["norm.weight"])
    text += b',"norm.weight":' + entry.encode() + b"}"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    refused(tmp_path, source, r"norm.weight twice")


def test_missing_shard(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", shards=3)
    (source / "model-00002-of-00003.safetensors").unlink()
    refused(tmp_path, source, r"lacks the shard model-00002-of-00003.safetensors")


def test_shards_without_index(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", shards=3)
    (source / "model.safetensors.index.json").unlink()
    refused(tmp_path, source, "3 safetensors files but no index")


def test_duplicate_across_shards(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", shards=2)
    first, second = sorted(source.glob("*.safetensors"))
    arrays = mx.load(str(second)) | {"fc.weight": mx.load(str(first))["fc.weight"]}
    mx.eval(arrays)
    mx.save_safetensors(str(second), arrays)
    refused(tmp_path, source, r"fc.weight is in both model-00001.* and model-00002")


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ("{", "not valid JSON"),
        ("[]", "not an object"),
        ("{}", "no weight_map"),
        ('{"weight_map": {"a": "../secret.safetensors"}}', "names '../secret.safetensors'"),
        ('{"weight_map": {"a": "pytorch_model.bin"}}', r"names 'pytorch_model.bin'"),
        ('{"weight_map": {"a": 3}}', "names 3"),
        ('{"weight_map": {"a": "model.safetensors"}}', r"says that a is in model.safetensors"),
    ],
)
def test_damaged_index(tmp_path: Path, index: str, problem: str) -> None:
    source = write_checkpoint(tmp_path / "source")
    (source / "model.safetensors.index.json").write_text(index)
    refused(tmp_path, source, problem)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe\xfa", "not valid JSON"),
        (b'"text"', "not an object"),
        (b'{"block_size": 8, "block_size": 16}', "block_size twice"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_damaged_config(tmp_path: Path, text: bytes, problem: str) -> None:
    source = write_checkpoint(tmp_path / "source")
    (source / "config.json").write_bytes(text)
    refused(tmp_path, source, problem)
