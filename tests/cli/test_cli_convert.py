"""The ``convert`` command's options."""

import argparse
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from support.folders import save_drafter

from dflash_mlx.cli.convert import add_parser
from dflash_mlx.convert import export_drafter
from dflash_mlx.errors import UserError
from dflash_mlx.loading.loader import load_drafter


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["convert", *arguments])
    return args.run(args)


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


@pytest.fixture
def paths(tmp_path: Path) -> tuple[str, ...]:
    """The options that name a checkpoint, which lacks what can be added, and a folder for it."""
    save_drafter(tmp_path / "mlx", target_layer_ids=(0, 2), intermediate_size=64)
    source = export_drafter(load_drafter(tmp_path / "mlx"), tmp_path / "source")
    config = config_of(source)
    del config["block_size"], config["dflash_config"]["block_size"]
    config["rope_parameters"] |= {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    (source / "config.json").write_text(json.dumps(config))
    return ("--hf-path", str(source), "--mlx-path", str(tmp_path / "out"))


ADDED = ("--block-size", "5", "--mask-token-id", "259", "--allow-final-tap")


def test_defaults(paths: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*paths, *ADDED) == 0
    out = Path(paths[-1])
    assert capsys.readouterr().out == f"Wrote {out}\n"
    assert "quantization" not in config_of(out)
    assert mx.load(str(out / "model.safetensors"))["fc.weight"].dtype == mx.float32
    with pytest.raises(UserError, match="already exists"):
        run(*paths, *ADDED)


def test_every_option_arrives(paths: tuple[str, ...]) -> None:
    quantized = ("-q", "--q-bits", "8", "--q-group-size", "32", "--dtype", "float16")
    assert run(*paths, *ADDED, *quantized, "--attention-factor", "1.4") == 0
    config = config_of(Path(paths[-1]))
    assert config["quantization"] == {"bits": 8, "group_size": 32, "mode": "affine"}
    assert config["source"]["added"] == {
        "block_size": 5,
        "mask_token_id": 259,
        "attention_factor": 1.4,
        "allow_final_tap": True,
    }
    norm = mx.load(f"{paths[-1]}/model.safetensors")["norm.weight"]
    assert norm.dtype == mx.float16


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--revision", "v1"), "revision"),
        (("--q-bits", "8"), "need -q"),
        (("--q-group-size", "32"), "need -q"),
        (("--q-bits", "0"), "need -q"),
        (("-q", "--q-bits", "7"), "must be one of"),
        (("-q", "--q-bits", "0"), "must be one of"),
        (("-q", "--q-group-size", "-1"), "must be one of"),
        (("--dtype", "int8"), "must be one of"),
        (("--export", "z-lab", "-q"), "-q cannot be used with --export"),
        (("--export", "z-lab", "--block-size", "8"), "--block-size cannot"),
        (("--export", "z-lab", "--mask-token-id", "5"), "--mask-token-id cannot"),
        (("--export", "z-lab", "--attention-factor", "1.4"), "--attention-factor cannot"),
        (("--export", "z-lab", "--allow-final-tap"), "--allow-final-tap cannot"),
    ],
)
def test_mistakes(tmp_path: Path, options: tuple[str, ...], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        run("--hf-path", str(tmp_path), "--mlx-path", str(tmp_path / "out"), *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("given", ["--hf-path", "--mlx-path"])
def test_required(given: str) -> None:
    with pytest.raises(SystemExit) as stop:
        run(given, "x")
    assert stop.value.code == 2


def test_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_drafter(tmp_path / "mlx")
    out = tmp_path / "out"
    options = ("--export", "z-lab", "--mlx-path", str(tmp_path / "mlx"), "--hf-path", str(out))
    assert run(*options, "--dtype", "bfloat16") == 0
    assert capsys.readouterr().out == f"Wrote {out}\n"
    config = config_of(out)
    assert (config["architectures"], config["dtype"]) == (["DFlashDraftModel"], "bfloat16")


@pytest.mark.parametrize(("mlx", "hf"), [("out", "mlx"), ("other", "out")])
def test_export_of_what_is_not_an_mlx_drafter(tmp_path: Path, mlx: str, hf: str) -> None:
    save_drafter(tmp_path / "mlx")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    places = ("--mlx-path", str(tmp_path / mlx), "--hf-path", str(tmp_path / hf))
    with pytest.raises(UserError, match="--mlx-path is the MLX drafter to read"):
        run("--export", "z-lab", *places)


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is checked and uploaded, in order."""
    recorded: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "dflash_mlx.convert.upload.check_upload", lambda repo: recorded.append(("check", repo))
    )
    monkeypatch.setattr(
        "dflash_mlx.convert.upload.upload",
        lambda folder, repo: recorded.append((str(folder), repo)) or f"hf.co/{repo}",
    )
    return recorded


def test_upload_after_the_conversion(
    paths: tuple[str, ...], uploads: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    run(*paths, *ADDED, "--upload-repo", "me/out")
    assert uploads == [("check", "me/out"), (paths[-1], "me/out")]
    assert f"Wrote {paths[-1]}\nUploaded to hf.co/me/out" in capsys.readouterr().out


def test_no_upload_of_a_conversion_that_failed(
    paths: tuple[str, ...], uploads: list[tuple[str, str]]
) -> None:
    with pytest.raises(UserError, match="no block_size"):
        run(*paths, "--upload-repo", "me/o")
    assert uploads == [("check", "me/o")]
