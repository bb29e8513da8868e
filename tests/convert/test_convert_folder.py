"""Where a conversion reads and writes: what it records, what it fetches, and what it leaves."""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.nn as nn
import pytest
from support.hub_server import MAIN, HubServer
from tiny_checkpoint import (
    arrays,
    assert_same,
    recorded,
    snapshot,
    tiny_config,
    tiny_weights,
    write_checkpoint,
)

import dflash_mlx.convert.writer as writer
from dflash_mlx.convert import convert, convert_cached
from dflash_mlx.errors import UserError

QUANTIZED = {"quantize": True, "q_bits": 4, "q_group_size": 32}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"quantize": True}, r"down_proj.weight has 96 inputs.*groups of 64"),
        ({"quantize": True, "q_bits": 7}, "7 bits"),
        ({"quantize": True, "q_group_size": 16}, "groups of 16"),
        ({"dtype": "float8"}, "float8"),
    ],
)
def test_options(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    source = write_checkpoint(tmp_path / "source")
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=problem):
        convert(source, tmp_path / "out", **options)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "already in MLX format"),
        (QUANTIZED | {"block_size": 4}, "block_size"),
        (QUANTIZED | {"q_group_size": 128}, "do not divide into groups"),
    ],
)
def test_options_for_a_drafter_in_mlx_format(
    tmp_path: Path, options: dict[str, Any], problem: str
) -> None:
    mlx = convert(write_checkpoint(tmp_path / "source"), tmp_path / "mlx")
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=problem):
        convert(mlx, tmp_path / "out", **options)
    assert snapshot(tmp_path) == before


def test_quantized_ones_are_not_quantized_again(tmp_path: Path) -> None:
    mlx = convert(write_checkpoint(tmp_path / "source"), tmp_path / "mlx", **QUANTIZED)
    with pytest.raises(UserError, match="quantized already"):
        convert(mlx, tmp_path / "out", **QUANTIZED)


@pytest.mark.parametrize("card", ["# A drafter of mine, ä\n", None])
def test_card_of_others_stays(tmp_path: Path, card: str | None) -> None:
    mlx = convert(write_checkpoint(tmp_path / "source"), tmp_path / "mlx")
    (mlx / "README.md").unlink() if card is None else (mlx / "README.md").write_text(card)
    again = convert(mlx, tmp_path / "again", **QUANTIZED)
    assert (again / "README.md").read_text() == (card or "")


def test_provenance_of_a_local_folder(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "My-Drafter", shards=2)
    (source / "README.md").write_text("---\ntags: [x]\nlicense: mit\n---\n# A drafter\n")
    folder = convert(source, tmp_path / "out")
    assert str(tmp_path) not in (folder / "config.json").read_text()
    origin = recorded(folder)
    assert (origin["path"], origin["revision"], origin["license"]) == ("My-Drafter", None, "mit")
    assert (origin["format"], origin["tap_base"]) == ("z-lab", 0)
    assert origin["sha256"] == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in source.glob("*.safetensors")
    }
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: mlx\n")
    assert "\nlicense: mit\n" in card
    assert "1, 5, 9 of 12" in card


def test_hub_repository(tmp_path: Path, hub: HubServer) -> None:
    remote = write_checkpoint(tmp_path / "remote", shards=2)
    (remote / "dflash.py").write_text("raise SystemExit")
    (remote / "pytorch_model.bin").write_text("code")
    hub.publish("z-lab/Tiny", remote)
    folder = convert("z-lab/Tiny", tmp_path / "out", revision="main")
    origin = recorded(folder)
    assert (origin["repo"], origin["revision"]) == ("z-lab/Tiny", MAIN)
    assert "\nbase_model: z-lab/Tiny\n" in (folder / "README.md").read_text()
    assert hub.sent("dflash.py") == hub.sent(".bin") == 0 < hub.sent("of-00002.safetensors")
    with pytest.raises(UserError, match="z-lab/Other"):
        convert("z-lab/Other", tmp_path / "other")


def test_hub_repository_of_the_target(tmp_path: Path, hub: HubServer) -> None:
    """Its drafter is in ``dflash/``, and none of the target's weights are fetched."""
    remote = tmp_path / "remote"
    write_checkpoint(remote / "dflash", shards=2)
    (remote / "config.json").write_text('{"model_type": "mimo"}')
    (remote / "model.safetensors").write_text("the target")
    hub.publish("z-lab/Tiny", remote)
    folder = convert("z-lab/Tiny", tmp_path / "out")
    assert_same(arrays(folder), tiny_weights())
    assert hub.sent(f"{MAIN}/model.safetensors") == 0
    assert (recorded(folder)["repo"], recorded(folder)["revision"]) == ("z-lab/Tiny", MAIN)


@pytest.mark.parametrize(
    ("shards", "config", "extra", "problem"),
    [
        (1, {"gating": "per-head"}, (), "gated"),
        # The index names the tensors before any of them is fetched.
        (2, {}, ("markov_w1.weight",), "DSpark's heads"),
    ],
)
def test_refused_before_weights_are_fetched(
    tmp_path: Path, hub: HubServer, shards: int, config: Any, extra: Any, problem: str
) -> None:
    weights = tiny_weights() | {name: tiny_weights()["norm.weight"] for name in extra}
    hub.publish(
        "z-lab/Tiny", write_checkpoint(tmp_path / "remote", tiny_config(**config), weights, shards)
    )
    with pytest.raises(UserError, match=rf"^z-lab/Tiny: .*{problem}"):
        convert("z-lab/Tiny", tmp_path / "out")
    assert hub.sent(".safetensors") == 0


def test_converted_hub_repository_is_used_as_it_is(tmp_path: Path, hub: HubServer) -> None:
    hub.publish("me/Tiny", convert(write_checkpoint(tmp_path / "source"), tmp_path / "remote"))
    folder = convert_cached("me/Tiny")
    assert folder.name == MAIN
    assert_same(arrays(folder), tiny_weights())


def test_code_of_the_checkpoint_never_runs(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    trap = f"import pathlib\npathlib.Path({str(tmp_path / 'sprung')!r}).touch()\n"
    for name in ("dflash.py", "modeling_dflash.py", "__init__.py"):
        (source / name).write_text(trap)
    folder = convert(source, tmp_path / "out")
    assert not (tmp_path / "sprung").exists()
    assert "dflash" not in sys.modules
    assert not list(folder.glob("*.py"))


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError("disk"), OSError(28, "")])
def test_interrupted_conversion_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
) -> None:
    source = write_checkpoint(tmp_path / "source")
    save: Callable[..., None] = writer.save_model

    def save_and_fail(folder: Path, model: nn.Module, **options: Any) -> None:
        save(folder, model, **options)
        assert (folder / "model.safetensors").exists()
        raise interruption

    monkeypatch.setattr(writer, "save_model", save_and_fail)
    before = snapshot(tmp_path)
    expected = KeyboardInterrupt if interruption is KeyboardInterrupt else UserError
    with pytest.raises(expected):
        convert(source, tmp_path / "new" / "parents" / "out")
    assert snapshot(tmp_path) == before


def test_destination(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    (tmp_path / "file").write_text("precious")
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.mkdir()
    empty.mkdir()
    (full / "config.json").write_text("precious")
    before = snapshot(tmp_path)
    for taken in (full, tmp_path / "file"):
        with pytest.raises(UserError, match="already exists"):
            convert(source, taken)
    with pytest.raises(UserError, match="cannot be written"):
        convert(source, tmp_path / "file" / "below")
    assert snapshot(tmp_path) == before
    assert (convert(source, empty) / "config.json").is_file()


@pytest.mark.parametrize(
    ("path", "options", "problem"),
    [
        ("nowhere", {}, "no folder"),
        ("source/config.json", {}, "is a file"),
        ("source", {"revision": "main"}, "revision"),
        ("empty", {}, r"no config.json.*GGUF"),
        ("dflash-q8.gguf", {}, "is a GGUF file"),
    ],
)
def test_source_mistakes(tmp_path: Path, path: str, options: dict[str, Any], problem: str) -> None:
    write_checkpoint(tmp_path / "source")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "dflash.gguf").write_text("")
    with pytest.raises(UserError, match=problem):
        convert(tmp_path / path, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
