"""The ``models`` command: a listing for people and one for programs, without the network."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

import dflash_mlx
from dflash_mlx.cli.main import main
from dflash_mlx.loading.known_pairs import known_pairs


def test_all_pairs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    for pair in known_pairs():
        assert pair.drafter in out and pair.targets[0] in out
        assert pair.unsupported is None or f"does not run: {pair.unsupported}" in out


def test_one_drafter_is_marked_for_each_target(capsys: pytest.CaptureFixture[str]) -> None:
    main(["models", "Qwen/Qwen3-8B"])
    *lines, _, legend = capsys.readouterr().out.splitlines()
    assert lines[0] == "Qwen/Qwen3-8B"
    marked = [line for line in lines if line.startswith("  * ")]
    assert len(marked) == 1 and marked[0].startswith("  * z-lab/Qwen3-8B-DFlash-b16 at ")
    assert legend.startswith("* ")


def test_json_has_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    main(["models", "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert listed["format_version"] == 1 and listed["dflash_mlx"] == dflash_mlx.__version__
    assert listed["pairs"] == json.loads(json.dumps([asdict(pair) for pair in known_pairs()]))


@pytest.mark.parametrize("text", ["mlx-community/Qwen3.5-4B-4bit", "qwen3.5-4b", "Qwen3.5-4B-DFl"])
def test_filter(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["models", text, "--json"])
    assert {pair["drafter"] for pair in json.loads(capsys.readouterr().out)["pairs"]} == {
        "z-lab/Qwen3.5-4B-DFlash"
    }


def test_filter_that_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "nonesuch"]) == 2
    assert "'nonesuch'" in capsys.readouterr().err


def test_import_needs_no_network() -> None:
    """In a process of its own, where a connection is an error."""
    code = (
        "import socket\n"
        "def refuse(*_): raise SystemExit('the network was used')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "import dflash_mlx\n"
        "from dflash_mlx.cli.main import main\n"
        "main(['models', 'qwen3-8b'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "z-lab/Qwen3-8B-DFlash-b16" in done.stdout
