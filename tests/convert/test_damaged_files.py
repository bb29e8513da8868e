"""Damaged files of weights, indices and configs: one clear sentence each, and nothing is left."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from test_damaged_weights import refused
from tiny_checkpoint import write_checkpoint


def rewrite_header(path: Path, change: Callable[[dict], object]) -> None:
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[end:])


def set_norm(path: Path, **values: object) -> None:
    rewrite_header(path, lambda header: header["norm.weight"].update(values))


def name_twice(path: Path) -> None:
    """Which safetensors itself does not refuse."""
    rewrite_header(path, lambda header: header.update(twice=header["norm.weight"]))
    path.write_bytes(path.read_bytes().replace(b'"twice"', b'"n\\u006frm.weight"'))
    data = path.read_bytes()
    length = data.index(b"}}", 8) + 2 - 8
    path.write_bytes(struct.pack("<Q", length) + data[8:])


def two_files(path: Path) -> None:
    (path.parent / "other.safetensors").write_bytes(path.read_bytes())
    path.rename(path.parent / "another.safetensors")


CORRUPT = "model.safetensors is truncated or corrupt"
FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:-100]), CORRUPT),
    "truncated header": (lambda p: p.write_bytes(p.read_bytes()[:300]), CORRUPT),
    "empty": (lambda p: p.write_bytes(b""), CORRUPT),
    "trailing bytes": (lambda p: p.write_bytes(p.read_bytes() + b"xyz"), CORRUPT),
    "a web page": (lambda p: p.write_bytes(b"<!DOCTYPE html>" * 99), CORRUPT),
    "a pointer": (lambda p: p.write_bytes(b"version https://git-lfs.github.com/spec/v1"), CORRUPT),
    "not JSON": (lambda p: p.write_bytes(struct.pack("<Q", 2) + b"{x"), CORRUPT),
    "no tensors": (lambda p: p.write_bytes(struct.pack("<Q", 2) + b"{}"), "no tensors"),
    "wrong size": (lambda p: set_norm(p, shape=[65]), CORRUPT),
    "overlap": (lambda p: set_norm(p, data_offsets=[0, 128]), CORRUPT),
    "negative shape": (lambda p: set_norm(p, shape=[-64]), CORRUPT),
    "unknown dtype": (lambda p: set_norm(p, dtype="F9"), CORRUPT),
    "a name twice": (name_twice, "norm.weight twice"),
    "a folder": (lambda p: (p.unlink(), p.mkdir()), "no weights"),
    "only a pickle": (lambda p: p.rename(p.parent / "pytorch_model.bin"), "a pickle"),
    "only a GGUF": (lambda p: p.rename(p.parent / "model.gguf"), "a GGUF file"),
    "gone": (lambda p: p.unlink(), "no weights"),
    "two files": (two_files, "2 safetensors files but no index"),
}


@pytest.mark.parametrize("damage", FILES)
def test_damaged_file(tmp_path: Path, damage: str) -> None:
    change, problem = FILES[damage]
    source = write_checkpoint(tmp_path / "source")
    change(source / "model.safetensors")
    refused(tmp_path, source, problem)


def two_indices(source: Path) -> None:
    (source / "other.safetensors.index.json").write_text("{}")


def in_both(source: Path) -> None:
    first, second, _ = sorted(source.glob("*.safetensors"))
    both = mx.load(str(second)) | {"fc.weight": mx.load(str(first))["fc.weight"]}
    mx.eval(both)
    mx.save_safetensors(str(second), both)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda s: (s / "model-00002-of-00003.safetensors").unlink(), "model-00002-of-00003"),
        (lambda s: (s / "model.safetensors.index.json").unlink(), "3 safetensors files but no"),
        (two_indices, "several weight indices"),
        (in_both, "fc.weight is in both model-00001"),
    ],
)
def test_damaged_shards(tmp_path: Path, change: Callable[[Path], object], problem: str) -> None:
    source = write_checkpoint(tmp_path / "source", shards=3)
    change(source)
    refused(tmp_path, source, problem)


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ("{", "not valid JSON"),
        ("[]", "not an object"),
        ("{}", "no weight_map"),
        ('{"weight_map": {"a": "../secret.safetensors"}}', "'../secret.safetensors'"),
        ('{"weight_map": {"a": "pytorch_model.bin"}}', "'pytorch_model.bin'"),
        ('{"weight_map": {"a": 3}}', "names 3"),
        ('{"weight_map": {"a": "model.safetensors"}}', "says that a is in model.safetensors"),
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
def test_unreadable_config(tmp_path: Path, text: bytes, problem: str) -> None:
    source = write_checkpoint(tmp_path / "source")
    (source / "config.json").write_bytes(text)
    refused(tmp_path, source, "config.json", problem)
