"""docs/format.md says what the code does."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from formats import CONFIGS, make
from tiny_checkpoint import write_checkpoint

from dflash_mlx.convert import convert
from dflash_mlx.convert.tensors import model_parameters
from dflash_mlx.drafter.config import FORMAT_VERSION, MODEL_TYPE, DrafterConfig
from dflash_mlx.drafter.rope_config import RopeConfig

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
CONFIG_PART, TENSOR_PART = PAGE.split("## Tensors")


def rows(text: str) -> list[list[str]]:
    """The cells of every table row."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def documented() -> dict[str, str]:
    """Every key of the two tables with the default that the page gives it."""
    return {
        key: cells[2]
        for cells in rows(CONFIG_PART)
        if cells[0] != "key"
        for key in re.findall(r"`(\w+)`", cells[0])
    }


def default_of(field: dataclasses.Field) -> str:
    if field.default is dataclasses.MISSING:
        return ""
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    text = json.dumps(value)
    return text if text in ("null", "true", "false", "1.0") else f"`{text}`"


def test_every_field_with_its_default() -> None:
    fields = [*dataclasses.fields(DrafterConfig), *dataclasses.fields(RopeConfig)]
    assert documented() == {field.name: default_of(field) for field in fields}


def test_order_and_constants() -> None:
    """The keys are in the order in which they are written."""
    written = [key for key in documented() if key in DrafterConfig.__dataclass_fields__]
    assert written == [field.name for field in dataclasses.fields(DrafterConfig)]
    assert f'`model_type` is `"{MODEL_TYPE}"` and `format_version` is `{FORMAT_VERSION}`' in PAGE


def patterns() -> set[str]:
    """The tensor names of the page, ``i`` for a layer's number."""
    names = set()
    for cells in rows(TENSOR_PART):
        for name in re.findall(r"`([\w.{},]+)`", re.sub(r"\(.*?\)", "", cells[0])):
            choices = re.search(r"\{(.*)\}", name)
            several = choices[1].split(",") if choices else [""]
            names |= {re.sub(r"\{.*\}", choice, name) for choice in several}
    return names - {"tensor"}


def test_every_tensor() -> None:
    """All formats together have every tensor of the page, and no other."""
    found = set()
    drafters = [make(name, own_tables=name == "z-lab").config for name in CONFIGS]
    drafters.append(dataclasses.replace(drafters[0], attention_bias=True, has_mask_embedding=True))
    for drafter in drafters:
        found |= {re.sub(r"layers\.\d+\.", "layers.i.", name) for name in model_parameters(drafter)}
    assert patterns() == found


@pytest.mark.parametrize("quantize", [False, True])
def test_every_other_key_of_the_file(tmp_path: Path, quantize: bool) -> None:
    source = write_checkpoint(tmp_path / "source")
    folder = convert(source, tmp_path / "out", quantize=quantize, q_group_size=32)
    config = json.loads((folder / "config.json").read_text())
    for key in [*set(config) - set(documented()), *config["source"]]:
        assert f"`{key}`" in PAGE, key
