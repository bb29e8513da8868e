"""Hundreds of damaged checkpoints, over every format: one clear sentence each, and nothing left."""

import copy
import itertools
from pathlib import Path

import pytest
from damage import CHECKS, Damage
from damaged_config import key_damages, value_damages
from damaged_weights import file_damages, name_damages, tensor_damages, tensors_of
from formats import CONFIGS
from tiny_checkpoint import snapshot, write_checkpoint

from dflash_mlx.convert import convert
from dflash_mlx.errors import UserError

KINDS = (file_damages, tensor_damages, name_damages, value_damages, key_damages)
ALL = [damage for name, kind in itertools.product(CONFIGS, KINDS) for damage in kind(name)]


def test_every_check_in_every_format() -> None:
    assert len(ALL) >= 200
    assert len({damage.id for damage in ALL}) == len(ALL)
    for format_name in CONFIGS:
        found = {damage.check for damage in ALL if damage.format_name == format_name}
        # Some formats have no second place for a key.
        assert set(CHECKS) - found <= {"copies agree"}


@pytest.mark.parametrize("damage", ALL, ids=lambda damage: damage.id.replace(" ", "_"))
def test_one_sentence_and_nothing_left(tmp_path: Path, damage: Damage) -> None:
    config = copy.deepcopy(CONFIGS[damage.format_name]())
    tensors = dict(tensors_of(damage.format_name))
    damage.to_config(config)
    damage.to_tensors(tensors)
    source = write_checkpoint(tmp_path / "source", config, tensors)
    damage.to_folder(source)
    before = snapshot(tmp_path)
    with pytest.raises(UserError) as error:
        convert(source, tmp_path / "new" / "out")
    message = str(error.value)
    assert message.startswith("source: ")
    assert message.endswith(".")
    assert "\n" not in message
    assert all(name in message for name in damage.names), message
    assert snapshot(tmp_path) == before
