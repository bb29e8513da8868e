"""What ``inspect`` finds: by headers alone, in folders and on the Hub, and for what is refused."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import LocalEntryNotFoundError
from published import NAMES, REFUSED, RUNS, completed, published
from quantized_checkpoint import ENCODINGS, make_tensors, write_quantized
from support.folders import save_drafter, save_target
from tiny_checkpoint import tiny_config, tiny_weights, write_checkpoint, write_torch_file

from dflash_mlx.convert import convert
from dflash_mlx.convert.inspection import inspect
from dflash_mlx.errors import UserError
from dflash_mlx.loading.hub import TRANSPORT_ERROR

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.mark.parametrize("shards", [1, 3])
def test_checkpoint(tmp_path: Path, shards: int) -> None:
    source = write_checkpoint(tmp_path / "Tiny", shards=shards)
    (source / "README.md").write_text("---\nlicense: mit\n---\n")
    found = inspect(str(source))
    assert (found["name"], found["kind"], found["format"]) == ("Tiny", "drafter", "z-lab")
    assert (found["problem"], found["license"], found["revision"]) == (None, "mit", None)
    assert found["weights"] == {
        "bytes": size_of(source),
        "files": shards,
        "tensors": len(tiny_weights(tiny_config())),
        "quantization": None,
    }
    drafter = found["drafter"]
    assert (drafter["layers"], drafter["block_size"], drafter["taps"]) == (2, 8, [1, 5, 9])
    assert drafter["own"] == []
    assert (found["fits"]["hidden_size"], found["fits"]["num_layers"]) == (64, 12)


def test_needs_are_those_of_the_converted_drafter(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    needs = inspect(str(source))["needs"]
    converted = sum(array.nbytes for array in tiny_weights(tiny_config()).values())
    assert needs["memory"] == converted
    assert needs["disk"] == size_of(source) + converted
    # Keys and values of two full layers with two heads of 32, two bytes each.
    assert needs["memory_per_1000_tokens"] == 1000 * 2 * 2 * 2 * 32 * 2


def test_windows_need_memory_once(tmp_path: Path) -> None:
    config = tiny_config(
        layer_types=["sliding_attention"] * 2, sliding_window=16, use_sliding_window=True
    )
    found = inspect(str(write_checkpoint(tmp_path / "source", config)))
    assert found["drafter"]["sliding_layers"] == found["drafter"]["causal_layers"] == 2
    assert found["needs"]["memory_per_1000_tokens"] == 0
    assert found["needs"]["memory"] > inspect(str(tmp_path / "source"))["weights"]["bytes"] * 0.9


def test_values_are_not_read(tmp_path: Path) -> None:
    """A header is enough; a conversion would find the NaN."""
    weights = tiny_weights(tiny_config())
    weights["norm.weight"] *= mx.nan
    source = write_checkpoint(tmp_path / "source", weights=weights)
    assert inspect(str(source))["problem"] is None
    with pytest.raises(UserError, match="NaN"):
        convert(source, tmp_path / "out")


def test_weights_that_do_not_belong_to_the_config(tmp_path: Path) -> None:
    weights = tiny_weights(tiny_config())
    weights["fc.weight"] = weights["fc.weight"][:, :-64]
    source = write_checkpoint(tmp_path / "source", weights=weights)
    found = inspect(str(source))
    assert "fc.weight has shape [64, 128]" in found["problem"]
    assert found["drafter"]["layers"] == 2


def test_no_weights(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    (source / "model.safetensors").unlink()
    assert "no .safetensors file" in inspect(str(source))["problem"]
    for name in ("a.safetensors", "b.safetensors"):
        (source / name).touch()
    assert "2 safetensors files but no index" in inspect(str(source))["problem"]


def test_mask_file(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    write_torch_file(source / "mask_embedding.pt", mx.ones(64))
    found = inspect(str(source))
    assert found["problem"] is None
    assert found["drafter"]["own"] == ["mask embedding"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_quantized(tmp_path: Path, encoding: str) -> None:
    tensors, _ = make_tensors(encoding, quantize_fc=True)
    source = write_quantized(tmp_path / "source", tensors, ENCODINGS[encoding][1])
    found = inspect(str(source))
    assert found["problem"] is None
    assert found["weights"]["quantization"] == encoding.split()[0].upper().rstrip(",")


def test_quantized_otherwise(tmp_path: Path) -> None:
    source = write_checkpoint(
        tmp_path / "source", tiny_config(quantization_config={"quant_method": "gptq"})
    )
    assert "'gptq'" in inspect(str(source))["problem"]


def test_mlx_drafter(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    folder = convert(source, tmp_path / "mlx", quantize=True, q_bits=4, q_group_size=32)
    found = inspect(str(folder))
    assert (found["kind"], found["problem"]) == ("drafter in MLX format", None)
    assert found["format"] == "MLX, from z-lab"
    assert found["weights"]["quantization"] == "affine, 4 bits in groups of 32"
    assert found["drafter"]["taps"] == [1, 5, 9]
    config = json.loads((folder / "config.json").read_text()) | {"block_size": 1}
    (folder / "config.json").write_text(json.dumps(config))
    assert "block_size" in inspect(str(folder))["problem"]


def test_target(tmp_path: Path) -> None:
    save_target(tmp_path / "target")
    found = inspect(str(tmp_path / "target"))
    assert (found["kind"], found["format"], found["problem"]) == ("target", "llama", None)
    assert found["target"]["num_hidden_layers"] == 3
    assert found["drafters"] == []


def write_config(folder: Path, **config: Any) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_targets_by_their_configs(tmp_path: Path) -> None:
    sizes = {"hidden_size": 4096, "num_hidden_layers": 36, "vocab_size": 151936}
    qwen = write_config(
        tmp_path / "a", architectures=["Qwen3ForCausalLM"], model_type="qwen3", **sizes
    )
    found = inspect(qwen)
    assert found["kind"] == "target"
    assert found["drafters"][0]["drafter"] == "z-lab/Qwen3-8B-DFlash-b16"
    gemma = write_config(
        tmp_path / "b",
        architectures=["Gemma4ForConditionalGeneration"],
        model_type="gemma4",
        text_config=sizes,
    )
    assert inspect(gemma)["kind"] == "target"
    assert inspect(gemma)["target"]["hidden_size"] == 4096
    # mlx-lm runs it as a gemma4.
    renamed = write_config(
        tmp_path / "e",
        architectures=["Gemma4UnifiedForConditionalGeneration"],
        model_type="gemma4_unified",
        text_config=sizes,
    )
    assert (inspect(renamed)["kind"], inspect(renamed)["problem"]) == ("target", None)
    other = write_config(tmp_path / "c", architectures=["NewForCausalLM"], model_type="new")
    assert "no model of the type 'new'" in inspect(other)["problem"]
    nothing = inspect(write_config(tmp_path / "d", hidden_size=3))
    assert nothing["kind"] == "unknown" and "not a DFlash drafter" in nothing["problem"]


@pytest.mark.parametrize("name", NAMES)
def test_published_configs(tmp_path: Path, name: str) -> None:
    """None of them is a target, and each has the expected format or reason, with no weights."""
    config = published(name) if name in REFUSED else completed(name)
    found = inspect(write_config(tmp_path / "source", **config))
    assert found["kind"] == "drafter"
    if name in RUNS:
        assert found["format"] == RUNS[name].format
        assert found["drafter"]["block_size"] == RUNS[name].block_size
    else:
        assert found["format"] == REFUSED[name][0]
        assert found["problem"]


ODD_VALUES = (None, True, -1, "", "x", [], [1], {}, {"a": None})


@pytest.mark.parametrize("value", ODD_VALUES, ids=repr)
def test_any_value_of_any_key(tmp_path: Path, value: Any) -> None:
    """Whatever is in a config of either kind, there is an answer and no traceback."""
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    mlx = convert(checkpoint, tmp_path / "mlx")
    save_target(tmp_path / "target")
    for folder in (checkpoint, mlx, tmp_path / "target"):
        file = folder / "config.json"
        config = json.loads(file.read_text())
        for key in (*config, "text_config", "quantization", "quantization_config"):
            file.write_text(json.dumps(config | {key: value}))
            found = inspect(str(folder))
            json.dumps(found)
            assert found["problem"] is None or len(found["problem"].splitlines()) == 1


class Hub:
    """One repository; what is downloaded is recorded."""

    def __init__(self, folder: Path, cache: Path):
        self.folder, self.cache = folder, cache
        self.downloaded: list[str] = []
        self.failure: Exception | None = None

    def snapshot_download(self, repo: str, *, allow_patterns: list[str], **_: Any) -> str:
        if repo != "z-lab/Tiny":
            raise LocalEntryNotFoundError("offline")
        self.cache.mkdir(parents=True, exist_ok=True)
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder)
            if path.is_file() and any(name.match(pattern) for pattern in allow_patterns):
                self.downloaded.append(str(name))
                (self.cache / name).parent.mkdir(exist_ok=True)
                shutil.copy(path, self.cache / name)
        return str(self.cache)

    def model_info(self, repo: str, *, revision: str, files_metadata: bool) -> SimpleNamespace:
        assert (repo, revision, files_metadata) == ("z-lab/Tiny", COMMIT, True)
        if self.failure is not None:
            raise self.failure
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return SimpleNamespace(
            siblings=[
                SimpleNamespace(
                    rfilename=path.relative_to(self.folder).as_posix(), size=path.stat().st_size
                )
                for path in files
            ]
        )

    def parse_safetensors_file_metadata(self, repo: str, name: str, *, revision: str) -> Any:
        assert revision == COMMIT
        raw = (self.folder / name).read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        header.pop("__metadata__", None)
        return SimpleNamespace(
            tensors={
                key: SimpleNamespace(dtype=value["dtype"], shape=value["shape"])
                for key, value in header.items()
            }
        )


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(tmp_path / "remote", tmp_path / "snapshots" / COMMIT)
    monkeypatch.setattr("dflash_mlx.loading.hub.snapshot_download", hub.snapshot_download)
    monkeypatch.setattr("dflash_mlx.loading.hub._reachable", lambda name, revision: True)
    for name in ("model_info", "parse_safetensors_file_metadata"):
        method = getattr(hub, name)
        monkeypatch.setattr(HfApi, name, lambda self, *a, _m=method, **k: _m(*a, **k))
    return hub


@pytest.mark.parametrize("shards", [1, 2])
def test_hub_without_its_weights(hub: Hub, shards: int) -> None:
    write_checkpoint(hub.folder, shards=shards)
    (hub.folder / "other.safetensors").write_bytes(b"of something else")
    found = inspect("z-lab/Tiny")
    assert (found["name"], found["revision"], found["problem"]) == ("z-lab/Tiny", COMMIT, None)
    assert found["weights"]["files"] == shards
    assert found["weights"]["bytes"] == size_of(hub.folder) - len(b"of something else")
    assert not any(name.endswith(".safetensors") for name in hub.downloaded)


def test_hub_subfolder(hub: Hub) -> None:
    hub.folder.mkdir()
    (hub.folder / "model.safetensors").write_bytes(b"the target")
    write_checkpoint(hub.folder / "dflash")
    found = inspect("z-lab/Tiny")
    assert found["problem"] is None
    assert found["weights"]["bytes"] == size_of(hub.folder / "dflash")


def test_hub_of_an_mlx_drafter(hub: Hub) -> None:
    save_drafter(hub.folder)
    found = inspect("z-lab/Tiny")
    assert (found["kind"], found["problem"]) == ("drafter in MLX format", None)
    assert found["weights"]["bytes"] == size_of(hub.folder)


def test_hub_that_cannot_be_reached(hub: Hub) -> None:
    write_checkpoint(hub.folder)
    hub.failure = TRANSPORT_ERROR("no route")
    with pytest.raises(UserError, match="cannot be reached"):
        inspect("z-lab/Tiny")
    with pytest.raises(UserError, match="z-lab/Other"):
        inspect("z-lab/Other")
