"""The ``convert`` command's options."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from support.folders import save_drafter

from dflash_mlx.cli.convert import add_parser
from dflash_mlx.errors import UserError


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["convert", *arguments])
    return args.run(args)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the command passes to ``convert``."""
    recorded: list[tuple[Any, ...]] = []

    def convert(hf_path: str, mlx_path: str, **options: Any) -> Path:
        recorded.append((hf_path, mlx_path, options))
        return Path(mlx_path)

    monkeypatch.setattr("dflash_mlx.convert.convert", convert)
    return recorded


def test_defaults(calls: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--hf-path", "a/b", "--mlx-path", "out") == 0
    options = {
        "quantize": False,
        "q_bits": 4,
        "q_group_size": 64,
        "dtype": None,
        "revision": None,
        "block_size": None,
        "mask_token_id": None,
        "attention_factor": None,
        "allow_final_tap": False,
    }
    assert calls == [("a/b", "out", options)]
    assert capsys.readouterr().out == "Wrote out\n"


def test_every_option_arrives(calls: list[tuple[Any, ...]]) -> None:
    run(
        *("--hf-path", "a/b", "--mlx-path", "out", "-q", "--q-bits", "8"),
        *("--q-group-size", "32", "--dtype", "float16", "--revision", "v1"),
        *("--block-size", "8", "--mask-token-id", "5", "--attention-factor", "1.4"),
        "--allow-final-tap",
    )
    assert calls[0][2] == {
        "quantize": True,
        "q_bits": 8,
        "q_group_size": 32,
        "dtype": "float16",
        "revision": "v1",
        "block_size": 8,
        "mask_token_id": 5,
        "attention_factor": 1.4,
        "allow_final_tap": True,
    }


@pytest.mark.parametrize("option", [("--q-bits", "8"), ("--q-group-size", "32"), ("--q-bits", "0")])
def test_quantization_options_need_q(calls: list[tuple[Any, ...]], option: tuple[str, str]) -> None:
    with pytest.raises(UserError, match="need -q"):
        run("--hf-path", "a/b", "--mlx-path", "out", *option)
    assert not calls


@pytest.mark.parametrize(
    "options",
    [
        ("-q", "--q-bits", "7"),
        ("-q", "--q-bits", "0"),
        ("-q", "--q-group-size", "-1"),
        ("--dtype", "int8"),
    ],
)
def test_absurd_values(tmp_path: Path, options: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="must be one of"):
        run("--hf-path", str(tmp_path), "--mlx-path", str(tmp_path / "out"), *options)


@pytest.mark.parametrize("missing", ["--hf-path", "--mlx-path"])
def test_required(missing: str) -> None:
    given = [o for o in ("--hf-path", "--mlx-path") if o != missing]
    with pytest.raises(SystemExit) as stop:
        run(given[0], "x")
    assert stop.value.code == 2


def test_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_drafter(tmp_path / "mlx")
    out = tmp_path / "out"
    options = ("--export", "z-lab", "--mlx-path", str(tmp_path / "mlx"), "--hf-path", str(out))
    assert run(*options, "--dtype", "bfloat16") == 0
    assert capsys.readouterr().out == f"Wrote {out}\n"
    config = json.loads((out / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["DFlashDraftModel"], "bfloat16")


def test_export_of_what_is_not_an_mlx_drafter(tmp_path: Path) -> None:
    save_drafter(tmp_path / "mlx")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    for mlx, hf in (("out", "mlx"), ("other", "out")):
        with pytest.raises(UserError, match="--mlx-path is the MLX drafter to read"):
            run(
                *("--export", "z-lab", "--mlx-path", str(tmp_path / mlx)),
                *("--hf-path", str(tmp_path / hf)),
            )


@pytest.mark.parametrize(
    "option",
    [
        ("-q",),
        ("--block-size", "8"),
        ("--mask-token-id", "5"),
        ("--attention-factor", "1.4"),
        ("--allow-final-tap",),
    ],
)
def test_options_that_export_has_not(tmp_path: Path, option: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=f"{option[0]} cannot be used with --export"):
        run("--export", "z-lab", "--mlx-path", "a", "--hf-path", "b", *option)


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is checked and uploaded, in order."""
    recorded: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "dflash_mlx.convert.upload.check_upload", lambda repo: recorded.append(("check", repo))
    )

    def upload(folder: Path, repo: str) -> str:
        recorded.append((str(folder), repo))
        return f"https://huggingface.co/{repo}"

    monkeypatch.setattr("dflash_mlx.convert.upload.upload", upload)
    return recorded


def test_upload_after_the_conversion(
    calls: list[tuple[Any, ...]],
    uploads: list[tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("--hf-path", "a/b", "--mlx-path", "out", "--upload-repo", "me/out")
    assert uploads == [("check", "me/out"), ("out", "me/out")]
    assert "Wrote out\nUploaded to https://huggingface.co/me/out" in capsys.readouterr().out


def test_no_upload_of_a_conversion_that_failed(
    tmp_path: Path, uploads: list[tuple[str, str]]
) -> None:
    with pytest.raises(UserError):
        run("--hf-path", str(tmp_path), "--mlx-path", str(tmp_path / "o"), "--upload-repo", "me/o")
    assert uploads == [("check", "me/o")]
