"""Every value and every byte that a checkpoint brings, replaced: an answer, and never a traceback.

What is drawn depends on a seed alone, so a case that fails fails again.
"""

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from formats import CONFIGS, make
from quantized_checkpoint import ENCODINGS, make_tensors, write_quantized
from support.folders import save_target
from test_any_value import changed, paths
from test_quantized_by_mlx import FOUR, write
from tiny_checkpoint import tiny_config, write_checkpoint, write_torch_file

from dflash_mlx.cli.inspect import _lines
from dflash_mlx.convert import convert
from dflash_mlx.convert.inspection import inspect
from dflash_mlx.convert.torch_file import read_mask_embedding
from dflash_mlx.errors import UserError

# As JSON has them: what a value may be replaced by.
VALUES = (
    *("null", "true", "false", "-1", "0", "1", "2", "1.5", "1e39", "1e-300", "1e999", "NaN"),
    *("65536", "2147483647", "2147483648", "9" * 30, "9" * 400, "-" + "9" * 4400),
    *('""', '"x"', '"\\ud800"', '"\\u0000\\u001b[2J\\n"', "[]", "[1]", '["x"]', "[[1]]", "[null]"),
    *("{}", '{"x": 1}', '{"": {}}', "[" * 500 + "]" * 500, "[true, false]"),
)
JSON_CASES = 64
HERE = "HERE"


@pytest.fixture(autouse=True)
def _no_known_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading their table takes longer than all the rest of an answer."""
    monkeypatch.setattr("dflash_mlx.convert.inspection.known_pairs", tuple)
    monkeypatch.setattr("dflash_mlx.convert.inspection.pairs_of_config", lambda config: [])


def answer(folder: Path) -> dict[str, Any] | None:
    """What is found, in a form that JSON and people can have; None if it cannot be described."""
    try:
        found = inspect(str(folder))
    except UserError as error:
        assert str(error).isprintable()
        return None
    json.dumps(found)
    assert all(isinstance(text, str) for pair in _lines(found) for text in pair)
    assert found["problem"] is None or found["problem"].isprintable()
    return found


def answers(folder: Path, out: Path) -> bool:
    """Whether it is converted; inspected or not, it is refused in a sentence or not at all."""
    found = answer(folder)
    try:
        convert(folder, out, dtype="float32")
    except UserError as error:
        assert str(error).isprintable()
        return False
    # What converts was not refused before. (Values are read by conversion alone.)
    assert found is not None and found["problem"] is None
    return True


def mutated(config: dict[str, Any], case: random.Random) -> str:
    """A config with one value or key replaced, as text."""
    path = case.choice([*paths(config)])
    if case.random() < 0.1:
        return json.dumps(changed(config, path, ...))
    return json.dumps(changed(config, path, HERE)).replace(f'"{HERE}"', case.choice(VALUES))


def checkpoints(folder: Path) -> Iterator[Path]:
    """One of every kind."""
    for name, config in CONFIGS.items():
        write_checkpoint(folder / name, config(), make(name).stored)
        yield folder / name
    yield write_checkpoint(folder / "sharded", shards=2)
    write(folder / "of MLX", "z-lab", FOUR)
    yield folder / "of MLX"
    for name in ("fp8 in blocks, compressed", "nvfp4 of ModelOpt", "int4"):
        yield write_quantized(folder / name, make_tensors(name, True)[0], ENCODINGS[name][1])
    yield convert(folder / "sharded", folder / "converted")
    yield convert(folder / "sharded", folder / "packed", quantize=True, q_group_size=32)
    save_target(folder / "target")
    yield folder / "target"


def test_values(tmp_path: Path) -> None:
    """Of config.json and of the index."""
    converted = cases = 0
    for folder in [*checkpoints(tmp_path)]:
        case = random.Random(folder.name)
        files = [folder / "config.json", *folder.glob("*.index.json")]
        for file in files:
            text = file.read_text()
            for _ in range(JSON_CASES // len(files)):
                file.write_text(mutated(json.loads(text), case))
                cases += 1
                if cases % 8:
                    answer(folder)
                else:
                    converted += answers(folder, tmp_path / "out" / str(cases))
            file.write_text(text)
    assert 5 < converted < cases / 8


@pytest.mark.parametrize("kind", ["z-lab", "speculators", "of MLX", "fp8 in blocks, compressed"])
def test_bytes_of_headers(tmp_path: Path, kind: str) -> None:
    folder = next(path for path in checkpoints(tmp_path) if path.name == kind)
    file = next(iter(sorted(folder.glob("*.safetensors"))))
    whole, case = file.read_bytes(), random.Random(kind)
    end = 8 + struct.unpack("<Q", whole[:8])[0]
    refused = 0
    for place in range(0, end, max(1, end // 150)):
        spoilt = bytearray(whole)
        spoilt[place] = case.choice(b'0189[]{},:"\\-.eE \x00\x1b\x7f\xff')
        file.write_bytes(spoilt)
        found = answer(folder)
        refused += found is None or found["problem"] is not None
    assert refused > 90


def test_bytes_of_a_mask_embedding(tmp_path: Path) -> None:
    file = tmp_path / "mask_embedding.pt"
    write_torch_file(file, mx.ones(16), 3)
    whole, case, read = file.read_bytes(), random.Random(7), 0
    for place in range(len(whole)):
        for value in (case.randrange(256), 0xFF):
            file.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            try:
                read_mask_embedding(file)
                read += 1
            except UserError as error:
                assert str(error).isprintable()
    assert len(whole) < 2 * (2 * len(whole) - read)


def test_config_cut_off(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "source")
    text = json.dumps(tiny_config()).encode()
    for end in range(len(text)):
        (folder / "config.json").write_bytes(text[:end])
        assert answer(folder) is None
