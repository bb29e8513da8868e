"""What ``inspect`` finds: by headers alone, and for what is refused."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from formats import write_format
from published import NAMES, REFUSED, RUNS, completed, published
from quantized_checkpoint import ENCODINGS, make_tensors, write_quantized
from support.folders import save_target
from test_any_value import VALUES
from tiny_checkpoint import tiny_config, tiny_weights, write_checkpoint, write_torch_file

from dflash_mlx.convert import convert
from dflash_mlx.convert.inspection import inspect
from dflash_mlx.errors import UserError
from dflash_mlx.loading.embedded.default_pair import TARGET_FOLDER
from dflash_mlx.loading.known_drafter import choose_drafter


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
        "tensors": len(tiny_weights()),
        "quantization": None,
    }
    drafter = found["drafter"]
    assert (drafter["layers"], drafter["block_size"], drafter["taps"]) == (2, 8, [1, 5, 9])
    assert drafter["own"] == []
    assert (found["fits"]["hidden_size"], found["fits"]["num_layers"]) == (64, 12)
    # What the converted drafter takes.
    converted = sum(array.nbytes for array in tiny_weights().values())
    assert found["needs"] == {
        "memory": converted,
        "disk": size_of(source) + converted,
        # Keys and values of two full layers with two heads of 32, two bytes each.
        "memory_per_1000_tokens": 1000 * 2 * 2 * 2 * 32 * 2,
    }


def test_windows_need_memory_once(tmp_path: Path) -> None:
    config = tiny_config(layer_types=["sliding_attention"] * 2, sliding_window=16)
    found = inspect(str(write_checkpoint(tmp_path / "source", config)))
    assert found["drafter"]["sliding_layers"] == found["drafter"]["causal_layers"] == 2
    assert found["needs"]["memory_per_1000_tokens"] == 0
    assert found["needs"]["memory"] > found["weights"]["bytes"] * 0.9


def test_values_are_not_read(tmp_path: Path) -> None:
    """A header is enough; a conversion would find the NaN."""
    weights = tiny_weights()
    weights["norm.weight"] *= mx.nan
    source = write_checkpoint(tmp_path / "source", weights=weights)
    assert inspect(str(source))["problem"] is None
    with pytest.raises(UserError, match="NaN"):
        convert(source, tmp_path / "out")


def without_index(source: Path) -> None:
    (source / "model.safetensors").rename(source / "a.safetensors")
    (source / "b.safetensors").touch()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda source: (source / "model.safetensors").unlink(), "no .safetensors file"),
        (without_index, "2 safetensors files but no index"),
        (lambda source: (source / "model.safetensors").write_bytes(b"short"), "corrupt"),
        (lambda source: (source / "model.safetensors.index.json").write_text("{"), "not valid"),
        (
            lambda source: mx.save_safetensors(
                str(source / "model.safetensors"),
                tiny_weights() | {"fc.weight": mx.ones((64, 128))},
            ),
            "fc.weight has shape [64, 128]",
        ),
    ],
)
def test_the_problem_is_the_one_that_conversion_has(
    tmp_path: Path, damage: Any, problem: str
) -> None:
    source = write_checkpoint(tmp_path / "source")
    damage(source)
    found = inspect(str(source))
    assert problem in found["problem"] and found["drafter"]["layers"] == 2
    with pytest.raises(UserError) as error:
        convert(source, tmp_path / "out")
    assert str(error.value) == f"source: {found['problem']}"


def rename_in_index(folder: Path, **weight_map: Any) -> None:
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"] |= weight_map
    file.write_text(json.dumps(index))


def change_tensor(folder: Path, name: str, change: Any) -> None:
    """One tensor of a folder with a single file; None removes it."""
    file = folder / "model.safetensors"
    tensors = mx.load(str(file))
    tensors |= {name: change(tensors[name])}
    kept = {key: array for key, array in tensors.items() if array is not None}
    mx.eval(kept)
    mx.save_safetensors(str(file), kept)


def swap_files(folder: Path) -> None:
    first, second, *_ = sorted(folder.glob("*.safetensors"))
    first.rename(folder / "third")
    second.rename(first)
    (folder / "third").rename(second)


INDEX_DAMAGES = {
    "a number": (lambda f: rename_in_index(f, **{"fc.weight": 7}), "names 7"),
    "an object": (lambda f: rename_in_index(f, **{"fc.weight": {}}), "names {}"),
    "outside": (lambda f: rename_in_index(f, **{"fc.weight": "../a.safetensors"}), "'../a.saf"),
    "absent": (lambda f: rename_in_index(f, more="more.safetensors"), "lacks the shard more"),
}
SHARD_DAMAGES = {"swapped": (swap_files, "The index says that")}
MLX_DAMAGES = {
    "no such tensor": (lambda f: rename_in_index(f, more="model.safetensors"), "says that more is"),
    "lacking": (lambda f: change_tensor(f, "norm.weight", lambda x: None), "says that norm.weight"),
    "of another shape": (lambda f: change_tensor(f, "norm.weight", lambda x: x[1:]), "shape [63]"),
    "of int8": (
        lambda f: change_tensor(f, "norm.weight", lambda x: x.astype(mx.int8)),
        "has dtype I8",
    ),
}
MARK_DAMAGES = {
    "t2d of U8": (lambda f: change_tensor(f, "t2d", lambda x: x.astype(mx.uint8)), "t2d is U8"),
    "t2d cut": (lambda f: change_tensor(f, "t2d", lambda x: x[1:]), "t2d is BOOL of shape [63]"),
}
DAMAGED = [
    *(("checkpoint", *case) for case in (INDEX_DAMAGES | SHARD_DAMAGES).values()),
    *(("mlx", *case) for case in (INDEX_DAMAGES | MLX_DAMAGES).values()),
    *(("speculators", *case) for case in MARK_DAMAGES.values()),
]


@pytest.mark.parametrize(("kind", "damage", "problem"), DAMAGED)
def test_what_headers_and_index_tell(tmp_path: Path, kind: str, damage: Any, problem: str) -> None:
    """Both find the same, in drafters in MLX format too."""
    folder = tmp_path / kind
    if kind == "speculators":
        write_format(folder, "speculators")
    else:
        write_checkpoint(tmp_path / "checkpoint", shards=3)
    if kind == "mlx":
        convert(tmp_path / "checkpoint", folder)
    assert inspect(str(folder))["problem"] is None
    damage(folder)
    found = inspect(str(folder))["problem"]
    assert problem in found
    with pytest.raises(UserError) as error:
        convert(folder, tmp_path / "out", dtype="float32")
    assert str(error.value) == f"{kind}: {found}"


def test_mask_file(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    write_torch_file(source / "mask_embedding.pt", mx.ones(64))
    found = inspect(str(source))
    assert (found["problem"], found["drafter"]["own"]) == (None, ["mask embedding"])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_quantized(tmp_path: Path, encoding: str) -> None:
    tensors, _ = make_tensors(encoding, quantize_fc=True)
    found = inspect(str(write_quantized(tmp_path / "source", tensors, ENCODINGS[encoding][1])))
    assert found["problem"] is None
    assert found["weights"]["quantization"] == encoding.split()[0].upper().rstrip(",")


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


def write_config(folder: Path, **config: Any) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


SIZES = {"hidden_size": 4096, "num_hidden_layers": 36, "vocab_size": 151936}


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"} | SIZES, None),
        ({"model_type": "qwen3"} | SIZES, None),
        (
            {
                "architectures": ["Gemma4ForConditionalGeneration"],
                "model_type": "gemma4",
                "text_config": SIZES,
            },
            None,
        ),
        # mlx-lm runs it as a gemma4.
        (
            {
                "architectures": ["Gemma4UnifiedForConditionalGeneration"],
                "model_type": "gemma4_unified",
                "text_config": SIZES,
            },
            None,
        ),
        ({"architectures": ["NewForCausalLM"], "model_type": "new"} | SIZES, "the type 'new'"),
    ],
)
def test_targets(tmp_path: Path, config: dict[str, Any], problem: str | None) -> None:
    found = inspect(write_config(tmp_path / "a", **config))
    assert (found["kind"], found["format"]) == ("target", config["model_type"])
    assert found["target"]["hidden_size"] == 4096
    assert found["problem"] is problem is None or problem in found["problem"]
    if config["model_type"] == "qwen3":
        assert found["drafters"][0]["drafter"] == "z-lab/Qwen3-8B-DFlash-b16"


def test_the_default_target_where_it_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its drafter is the one that loading takes for it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "dflash-mlx" / TARGET_FOLDER
    save_target(folder)
    (tmp_path / "link").symlink_to(folder)
    for path in (folder, tmp_path / "link"):
        [drafter] = inspect(str(path))["drafters"]
        assert (Path(drafter["drafter"]), drafter["problem"]) == (choose_drafter(path).folder, None)
    save_target(tmp_path / "other")
    assert inspect(str(tmp_path / "other"))["drafters"] == []


@pytest.mark.parametrize("config", [{"architectures": ["Gemma4AssistantForCausalLM"]}, {}])
def test_the_assistant_of_gemma_4(tmp_path: Path, config: dict[str, Any]) -> None:
    """No DeepSpec drafter: it drafts one token after another."""
    found = inspect(write_config(tmp_path / "a", model_type="gemma4_assistant", **config, **SIZES))
    assert (found["kind"], found["format"]) == ("drafter", "Gemma 4 MTP assistant")
    assert "one token after another" in found["problem"]


def test_nothing_known(tmp_path: Path) -> None:
    found = inspect(write_config(tmp_path / "a", hidden_size=3))
    assert found["kind"] == "unknown" and "not a DFlash drafter" in found["problem"]


@pytest.mark.parametrize("name", NAMES)
def test_published_configs(tmp_path: Path, name: str) -> None:
    """None of them is a target, and each has the expected format or reason, with no weights."""
    config = published(name) if name in REFUSED else completed(name)
    found = inspect(write_config(tmp_path / "source", **config))
    assert found["kind"] == "drafter" and found["problem"]
    assert found["format"] == (RUNS[name].format if name in RUNS else REFUSED[name][0])


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_any_value_of_any_key(tmp_path: Path, value: Any) -> None:
    """Whatever is in a config of any kind, there is an answer and no traceback."""
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
