"""What ``inspect`` finds on the Hub, without the weights."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.folders import save_drafter
from support.hub_server import MAIN, HubServer
from tiny_checkpoint import tiny_config, tiny_weights, write_checkpoint

from dflash_mlx.convert.inspection import inspect
from dflash_mlx.errors import UserError

ODD_SHAPES = (2, {}, None, [-2], [2.5], ["2"], [[2]], [None], [10**400])


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.mark.parametrize("shards", [1, 2])
def test_hub_without_its_weights(tmp_path: Path, hub: HubServer, shards: int) -> None:
    # Larger than what a client reads to find the end of a header.
    config = tiny_config(intermediate_size=2048)
    remote = write_checkpoint(tmp_path / "remote", config, shards=shards)
    (remote / "other.safetensors").write_bytes(b"of something else")
    hub.publish("z-lab/Tiny", remote)
    found = inspect("z-lab/Tiny")
    assert (found["name"], found["revision"], found["problem"]) == ("z-lab/Tiny", MAIN, None)
    assert found["weights"]["files"] == shards
    assert found["weights"]["bytes"] == size_of(remote) - len(b"of something else")
    assert found["weights"]["tensors"] == len(tiny_weights())
    assert hub.sent(".safetensors") < size_of(remote)


@pytest.mark.parametrize("config_too", [True, False])
def test_hub_subfolder(tmp_path: Path, hub: HubServer, config_too: bool) -> None:
    remote = tmp_path / "remote"
    write_checkpoint(remote / "dflash", shards=2)
    if config_too:
        (remote / "model.safetensors").write_bytes(b"the target")
    else:
        (remote / "dflash" / "config.json").rename(remote / "config.json")
    hub.publish("z-lab/Tiny", remote)
    found = inspect("z-lab/Tiny")
    assert found["problem"] is None
    assert found["weights"]["bytes"] == size_of(remote / "dflash")


def test_hub_of_an_mlx_drafter(tmp_path: Path, hub: HubServer) -> None:
    save_drafter(tmp_path / "remote")
    hub.publish("z-lab/Tiny", tmp_path / "remote")
    found = inspect("z-lab/Tiny")
    assert (found["kind"], found["problem"]) == ("drafter in MLX format", None)
    assert found["weights"]["bytes"] == size_of(tmp_path / "remote")


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        *(("norm.weight", entry) for entry in ("x", None, [], {}, {"shape": [2]})),
        *(("norm.weight", {"dtype": "F32", "shape": shape}) for shape in ODD_SHAPES),
        ("norm.weight", {"dtype": ["F32"], "shape": [2]}),
        ("\ud800", {"dtype": "F32", "shape": [2]}),
    ],
)
def test_hub_with_an_odd_header(tmp_path: Path, hub: HubServer, name: str, entry: Any) -> None:
    """Which nobody but us checks, as long as the file is not here."""
    remote = write_checkpoint(tmp_path / "remote")
    if isinstance(entry, dict):
        entry |= {"data_offsets": [0, 8]}
    text = json.dumps({name: entry}).encode()
    file = remote / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    hub.publish("z-lab/Tiny", remote)
    assert "eader of model.safetensors" in inspect("z-lab/Tiny")["problem"]


def test_hub_with_a_damaged_header(tmp_path: Path, hub: HubServer) -> None:
    remote = write_checkpoint(tmp_path / "remote")
    (remote / "model.safetensors").write_bytes(b"<!DOCTYPE html>" * 99)
    hub.publish("z-lab/Tiny", remote)
    assert "header of model.safetensors" in inspect("z-lab/Tiny")["problem"]
    with pytest.raises(UserError, match="z-lab/Other"):
        inspect("z-lab/Other")
