"""A drafter in MLX format, quantized or cast, is the one that a conversion would have written."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
from formats import CONFIGS, as_source, drafter_of, random_tensors
from tiny_checkpoint import snapshot, write_checkpoint

from dflash_mlx.convert import convert
from dflash_mlx.errors import UserError

QUANTIZED = {"quantize": True, "q_bits": 4, "q_group_size": 32}
OPTIONS = [QUANTIZED, {"dtype": "float32"}, QUANTIZED | {"dtype": "float16"}]


def write_source(folder: Path, format_name: str = "z-lab") -> Path:
    config = drafter_of(format_name, own_tables=True)
    stored = as_source(random_tensors(config), config, format_name)
    return write_checkpoint(folder, CONFIGS[format_name](), stored)


@pytest.mark.parametrize("options", OPTIONS, ids=["4-bit", "float32", "4-bit in float16"])
@pytest.mark.parametrize("format_name", CONFIGS)
def test_same_files_as_from_the_checkpoint(
    tmp_path: Path, format_name: str, options: dict[str, object]
) -> None:
    source = write_source(tmp_path / "source", format_name)
    direct = convert(source, tmp_path / "direct", **options)
    again = convert(convert(source, tmp_path / "mlx"), tmp_path / "again", **options)
    assert set(snapshot(direct)) == set(snapshot(again))
    for name in ("config.json", "README.md", "model.safetensors.index.json"):
        assert (direct / name).read_text() == (again / name).read_text()
    found, wanted = (mx.load(str(folder / "model.safetensors")) for folder in (again, direct))
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype, name
        assert mx.array_equal(found[name], array), name


def test_card_of_others_stays(tmp_path: Path) -> None:
    mlx = convert(write_source(tmp_path / "source"), tmp_path / "mlx")
    for text in ("# A drafter of mine, ä\n", None):
        (mlx / "README.md").unlink() if text is None else (mlx / "README.md").write_text(text)
        again = convert(mlx, tmp_path / f"again {text is None}", **QUANTIZED)
        assert (again / "README.md").read_text() == (text or "")


def damage(folder: Path, name: str, array: mx.array | None) -> None:
    weights = mx.load(str(folder / "model.safetensors"))
    mx.eval(weights)
    weights |= {name: array}
    kept = {key: value for key, value in weights.items() if value is not None}
    mx.save_safetensors(str(folder / "model.safetensors"), kept)
    (folder / "model.safetensors.index.json").unlink()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "already in MLX format"),
        (QUANTIZED | {"block_size": 4}, r"leaves nothing out.*block_size"),
        (QUANTIZED | {"q_group_size": 128}, "do not divide into groups"),
    ],
)
def test_what_cannot_be_done(tmp_path: Path, options: dict[str, object], problem: str) -> None:
    mlx = convert(write_source(tmp_path / "source"), tmp_path / "mlx")
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=problem):
        convert(mlx, tmp_path / "out", **options)
    assert snapshot(tmp_path) == before


def test_quantized_ones_are_not_quantized_again(tmp_path: Path) -> None:
    mlx = convert(write_source(tmp_path / "source"), tmp_path / "mlx", **QUANTIZED)
    with pytest.raises(UserError, match="quantized already"):
        convert(mlx, tmp_path / "out", **QUANTIZED)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "array", "problem"),
    [
        ("fc.weight", None, "lacks fc.weight"),
        ("more.weight", mx.ones((2, 2)), "more.weight"),
        ("norm.weight", mx.full((64,), mx.nan), "NaN"),
        ("fc.weight", mx.ones((64, 64)), "shape"),
    ],
)
def test_damaged_weights(tmp_path: Path, name: str, array: mx.array | None, problem: str) -> None:
    mlx = convert(write_source(tmp_path / "source"), tmp_path / "mlx")
    damage(mlx, name, array)
    with pytest.raises(UserError, match=problem):
        convert(mlx, tmp_path / "out", **QUANTIZED)
    assert not (tmp_path / "out").exists()


def test_damaged_config(tmp_path: Path) -> None:
    mlx = convert(write_source(tmp_path / "source"), tmp_path / "mlx")
    config = json.loads((mlx / "config.json").read_text())
    (mlx / "config.json").write_text(json.dumps(config | {"head_dim": "wide"}))
    with pytest.raises(UserError, match="head_dim"):
        convert(mlx, tmp_path / "out", **QUANTIZED)
    assert not (tmp_path / "out").exists()
