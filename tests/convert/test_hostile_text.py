"""Text of a checkpoint that no file can hold, or that would drive a terminal: never passed on."""

import json
import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from formats import speculators_config, write_format
from tiny_checkpoint import recorded, tiny_config, tiny_weights, write_checkpoint

from dflash_mlx.cli.main import main
from dflash_mlx.convert import convert
from dflash_mlx.convert.inspection import inspect
from dflash_mlx.errors import UserError

# Clears the screen, a line of one's own, a bell, C1's CSI, an override of the direction.
CONTROLS = "\x1b[2J\nRUNS yes\r\a\x7f\x9b2J\u202e"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """The exit code, and what came out but for the ends of lines that the command writes."""
    code = main(list(argv))
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    text = captured.out + captured.err
    assert all(char.isprintable() for char in text.replace("\n", "")), text
    return code, text


def inspecting(source: Path) -> list[str]:
    return ["inspect", str(source)]


def converting(source: Path, out: Path) -> list[str]:
    return ["convert", "--hf-path", str(source), "--mlx-path", str(out)]


@pytest.mark.parametrize("digits", [101, 400, 4400])
@pytest.mark.parametrize("sign", ["", "-"])
def test_an_integer_of_many_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], digits: int, sign: str
) -> None:
    source = write_checkpoint(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    for key in ("block_size", "rms_norm_eps", "transformers_version"):
        text = json.dumps(config | {key: "HERE"}).replace('"HERE"', sign + "9" * digits)
        (source / "config.json").write_text(text)
        for argv in (inspecting(source), converting(source, tmp_path / "out")):
            code, said = run(capsys, *argv)
            assert code == 2 and f"{digits + len(sign)} digits" in said


@pytest.mark.parametrize("name", [7, ["Qwen/Qwen3-8B"], {"a": 1}, "\ud800", True])
def test_the_name_of_a_verifier(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: Any
) -> None:
    write_format(tmp_path / "source", "speculators")
    config = speculators_config()
    config["speculators_config"]["verifier"]["name_or_path"] = name
    (tmp_path / "source" / "config.json").write_text(json.dumps(config))
    assert run(capsys, *converting(tmp_path / "source", tmp_path / "out"))[0] == 2
    # A config that is no text at all cannot be described.
    code, said = run(capsys, *inspecting(tmp_path / "source"))
    assert code == (2 if name == "\ud800" else 1)
    assert ("which is no text" if name == "\ud800" else "the verifier's name_or_path is") in said


def test_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_format(tmp_path / f"source{CONTROLS}", "speculators")
    folder = tmp_path / f"source{CONTROLS}"
    assert source.config.has_lm_head
    config = speculators_config()
    config["speculators_config"]["verifier"]["name_or_path"] = CONTROLS
    (folder / "config.json").write_text(json.dumps(config))
    out = tmp_path / "out"
    assert run(capsys, *converting(folder, out))[0] == 0
    card = (out / "README.md").read_text()
    assert all(char.isprintable() for char in card.replace("\n", ""))
    assert "\nRUNS" not in card and r"\x1b[2J\nRUNS yes" in card
    assert recorded(out)["verifier"]["name_or_path"] == CONTROLS
    for checkpoint in (folder, out):
        for options in ([], ["--json"]):
            code, said = run(capsys, "inspect", str(checkpoint), *options)
            assert code == 0 and "2J" in said


def test_control_characters_in_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tiny_weights() | {f"extra{CONTROLS}": mx.ones((2,))}
    config = tiny_config() | {f"key{CONTROLS}": 1}
    for number, (raw, tensors) in enumerate([(config, tiny_weights()), (tiny_config(), weights)]):
        source = write_checkpoint(tmp_path / str(number), raw, tensors)
        for expected, argv in (
            (1, inspecting(source)),
            (2, converting(source, tmp_path / "out")),
        ):
            code, said = run(capsys, *argv)
            assert code == expected and r"\x1b[2J\nRUNS yes" in said


@pytest.mark.parametrize("name", [b"caf\xe9", b"\xff"])
def test_a_folder_whose_name_is_not_utf8(tmp_path: Path, name: bytes) -> None:
    source = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    write_checkpoint(tmp_path / "plain").rename(source)
    for call in (
        lambda: inspect(str(source)),
        lambda: convert(source, tmp_path / "out"),
        lambda: convert(tmp_path, source / "out"),
    ):
        with pytest.raises(UserError, match=r"rename the folder\.$") as error:
            call()
        str(error.value).encode()


@pytest.mark.parametrize("path", ["a\0b", "/a\0b", "\0"])
def test_a_zero_byte(tmp_path: Path, path: str) -> None:
    for call in (
        lambda: inspect(path),
        lambda: convert(path, tmp_path / "out"),
        lambda: convert(tmp_path, path),
    ):
        with pytest.raises(UserError, match=r"rename the folder|no folder"):
            call()
