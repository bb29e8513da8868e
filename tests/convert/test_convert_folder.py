"""Conversion of whole checkpoints: what is written, what it records, and that nothing is left."""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model
from tiny_checkpoint import parsed_config, snapshot, tiny_config, tiny_weights, write_checkpoint

import dflash_mlx.convert.writer as writer
from dflash_mlx.convert import convert, convert_cached
from dflash_mlx.drafter.config import DrafterConfig
from dflash_mlx.drafter.model import Drafter
from dflash_mlx.errors import UserError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def load(folder: Path) -> tuple[Drafter, dict[str, Any]]:
    return load_model(folder, get_model_classes=lambda config: (Drafter, DrafterConfig))


def parameters(model: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def assert_same(found: dict[str, mx.array], expected: dict[str, mx.array]) -> None:
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert mx.array_equal(found[name], array), name


@pytest.mark.parametrize("shards", [1, 3])
def test_weights_and_config_survive(tmp_path: Path, shards: int) -> None:
    source = write_checkpoint(tmp_path / "source", shards=shards)
    folder = convert(source, tmp_path / "deep" / "out")
    drafter, config = load(folder)
    assert_same(parameters(drafter), tiny_weights(tiny_config()))
    assert DrafterConfig.from_dict(config) == parsed_config(tiny_config())
    assert {path.name for path in folder.iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
    }


def test_variants_of_the_layout(tmp_path: Path) -> None:
    """A bias, taps wider than the drafter, a prefix on every name, an odd file name."""
    config = tiny_config(attention_bias=True, target_hidden_size=80, head_dim=16)
    weights = tiny_weights(config)
    # A bias that was never trained is zero, which is no damage.
    weights["layers.0.self_attn.o_proj.bias"] *= 0
    prefixed = {f"model.{name}": array for name, array in weights.items()}
    source = write_checkpoint(tmp_path / "source", config, prefixed)
    (source / "model.safetensors").rename(source / "dflash_draft_model.safetensors")
    drafter, _ = load(convert(source, tmp_path / "out"))
    assert_same(parameters(drafter), weights)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtype(tmp_path: Path, dtype: str) -> None:
    source = write_checkpoint(tmp_path / "source")
    drafter, _ = load(convert(source, tmp_path / "out", dtype=dtype))
    wanted = getattr(mx, dtype)
    expected = {k: v.astype(wanted) for k, v in tiny_weights(tiny_config()).items()}
    assert_same(parameters(drafter), expected)


def test_one_dtype_for_a_mixed_checkpoint(tmp_path: Path) -> None:
    weights = tiny_weights(tiny_config())
    weights["norm.weight"] = weights["norm.weight"].astype(mx.float32)
    source = write_checkpoint(tmp_path / "source", weights=weights)
    drafter, _ = load(convert(source, tmp_path / "out"))
    assert {array.dtype for array in parameters(drafter).values()} == {mx.bfloat16}


@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (8, 32), (3, 32), (8, 64)])
def test_quantized_loads_through_mlx_lm(tmp_path: Path, bits: int, group_size: int) -> None:
    raw_config = tiny_config(intermediate_size=128)
    source = write_checkpoint(tmp_path / "source", raw_config)
    out = tmp_path / "out"
    convert(source, out, quantize=True, q_bits=bits, q_group_size=group_size)
    drafter, config = load(out)
    assert config["quantization"]["bits"] == bits
    original = tiny_weights(raw_config)
    for name, module in drafter.named_modules():
        if isinstance(module, nn.RMSNorm):
            assert mx.array_equal(module.weight, original[f"{name}.weight"])
        assert not isinstance(module, nn.Linear) or isinstance(module, nn.QuantizedLinear), name
    assert isinstance(drafter.fc, nn.QuantizedLinear)
    assert (drafter.fc.bits, drafter.fc.group_size) == (bits, group_size)
    packed, scales, _ = mx.quantize(original["fc.weight"], group_size, bits)
    assert mx.array_equal(drafter.fc.weight, packed)
    assert mx.array_equal(drafter.fc.scales, scales)


def test_group_size_must_divide_every_layer(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=r"down_proj.weight has 96 inputs.*groups of 64"):
        convert(source, tmp_path / "out", quantize=True)
    for wrong in ({"q_bits": 7}, {"q_group_size": 16}):
        with pytest.raises(UserError, match="not possible"):
            convert(source, tmp_path / "out", quantize=True, **wrong)
    with pytest.raises(UserError, match="float8"):
        convert(source, tmp_path / "out", dtype="float8")
    assert snapshot(tmp_path) == before


def test_provenance_of_a_local_folder(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "My-Drafter", shards=2)
    (source / "README.md").write_text("---\ntags: [x]\nlicense: mit\n---\n# A drafter\n")
    folder = convert(source, tmp_path / "out")
    recorded = json.loads((folder / "config.json").read_text())["source"]
    assert recorded["path"] == "My-Drafter"
    assert str(tmp_path) not in (folder / "config.json").read_text()
    assert (recorded["revision"], recorded["license"]) == (None, "mit")
    assert (recorded["format"], recorded["tap_base"]) == ("z-lab", 0)
    assert recorded["sha256"] == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in source.glob("*.safetensors")
    }
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: mlx\n")
    assert "\nlicense: mit\n" in card
    assert "1, 5, 9 of 12" in card


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """A Hub of one repository: its files, and the names of the files that were fetched."""
    remote, cache = tmp_path / "remote", tmp_path / "hub" / "snapshots" / COMMIT
    fetched: list[str] = []

    def snapshot_download(
        repo: str, *, revision: str | None, allow_patterns: Iterable[str], local_files_only: bool
    ) -> str:
        if repo != "z-lab/Tiny" or revision not in (None, "main", COMMIT):
            raise LocalEntryNotFoundError("offline")
        cache.mkdir(parents=True, exist_ok=True)
        for path in (path for path in remote.rglob("*") if path.is_file()):
            name = str(path.relative_to(remote))
            # As in huggingface_hub, a star matches slashes too.
            if any(fnmatch(name, pattern) for pattern in allow_patterns):
                fetched.append(name)
                (cache / name).parent.mkdir(exist_ok=True)
                shutil.copy(path, cache / name)
        return str(cache)

    monkeypatch.setattr("dflash_mlx.loading.hub.snapshot_download", snapshot_download)
    monkeypatch.setattr("dflash_mlx.loading.hub._reachable", lambda name, revision: True)
    return remote, fetched


def test_hub_repository(tmp_path: Path, hub: tuple[Path, list[str]]) -> None:
    remote, fetched = hub
    write_checkpoint(remote, shards=2)
    (remote / "dflash.py").write_text("raise SystemExit")
    (remote / "pytorch_model.bin").write_text("")
    folder = convert("z-lab/Tiny", tmp_path / "out", revision="main")
    recorded = json.loads((folder / "config.json").read_text())["source"]
    assert (recorded["repo"], recorded["revision"]) == ("z-lab/Tiny", COMMIT)
    assert "\nbase_model: z-lab/Tiny\n" in (folder / "README.md").read_text()
    assert not {"dflash.py", "pytorch_model.bin"} & set(fetched)
    with pytest.raises(UserError, match="z-lab/Other"):
        convert("z-lab/Other", tmp_path / "other")


def test_a_config_is_refused_before_its_weights_are_fetched(
    tmp_path: Path, hub: tuple[Path, list[str]]
) -> None:
    remote, fetched = hub
    write_checkpoint(remote)
    (remote / "config.json").write_text(json.dumps(tiny_config(gating="per-head")))
    with pytest.raises(UserError, match=r"^z-lab/Tiny: .*gated"):
        convert("z-lab/Tiny", tmp_path / "out")
    assert "model.safetensors" not in fetched


def test_converted_hub_repository_is_used_as_it_is(
    tmp_path: Path, hub: tuple[Path, list[str]]
) -> None:
    remote, _ = hub
    convert(write_checkpoint(tmp_path / "source"), remote)
    folder = convert_cached("z-lab/Tiny")
    assert folder.name == COMMIT
    assert_same(parameters(load(folder)[0]), tiny_weights(tiny_config()))


def test_code_of_the_checkpoint_never_runs(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    trap = f"import pathlib\npathlib.Path({str(tmp_path / 'sprung')!r}).touch()\n"
    for name in ("dflash.py", "modeling_dflash.py", "__init__.py"):
        (source / name).write_text(trap)
    folder = convert(source, tmp_path / "out")
    load(folder)
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


def test_source_folder_mistakes(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    with pytest.raises(UserError, match="no folder"):
        convert(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(UserError, match="is a file"):
        convert(source / "config.json", tmp_path / "out")
    with pytest.raises(UserError, match="revision"):
        convert(source, tmp_path / "out", revision="main")
    with pytest.raises(UserError, match="already in MLX format"):
        convert(convert(source, tmp_path / "mlx"), tmp_path / "out")
    (source / "config.json").unlink()
    with pytest.raises(UserError, match=r"has no config.json"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_hub_repository_of_the_target(tmp_path: Path, hub: tuple[Path, list[str]]) -> None:
    """Its drafter is in ``dflash/``, and none of the target's weights are fetched."""
    remote, fetched = hub
    write_checkpoint(remote / "dflash", shards=2)
    (remote / "config.json").write_text('{"model_type": "mimo"}')
    (remote / "model.safetensors").write_text("the target")
    folder = convert("z-lab/Tiny", tmp_path / "out")
    assert_same(parameters(load(folder)[0]), tiny_weights(tiny_config()))
    assert "model.safetensors" not in fetched
    recorded = json.loads((folder / "config.json").read_text())["source"]
    assert (recorded["repo"], recorded["revision"]) == ("z-lab/Tiny", COMMIT)


def test_shards_that_are_refused_by_their_index(
    tmp_path: Path, hub: tuple[Path, list[str]]
) -> None:
    """The index names the tensors before any of them is fetched."""
    remote, fetched = hub
    weights = tiny_weights(tiny_config())
    weights["markov_w1.weight"] = weights["norm.weight"]
    write_checkpoint(remote, weights=weights, shards=2)
    with pytest.raises(UserError, match=r"^z-lab/Tiny: .*DSpark's heads"):
        convert("z-lab/Tiny", tmp_path / "out")
    assert not any(name.endswith(".safetensors") for name in fetched)


def test_gguf(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a GGUF file"):
        convert(tmp_path / "dflash-q8.gguf", tmp_path / "out")
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "dflash.gguf").write_text("")
    with pytest.raises(UserError, match=r"no config.json.*GGUF"):
        convert(tmp_path / "only", tmp_path / "out")
