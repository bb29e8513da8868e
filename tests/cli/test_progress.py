"""The line that says what is going on."""

import argparse
import io

import pytest
from support.folders import save_target

from dflash_mlx.cli.arguments import add_model_options, load_pair
from dflash_mlx.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_sees_what_is_going_on(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress("run") as progress:
        progress.announce("loading")
        progress.expect(3)
        progress.announce("block 8, code-1")
        progress.advance()
    shown = terminal.getvalue()
    assert "loading" in shown and "block 8, code-1" in shown and "/3" in shown
    assert "\n" not in shown


@pytest.mark.parametrize("quiet", [False, True])
def test_loading_is_shown_unless_all_is_to_be_quiet(quiet, tmp_path, monkeypatch):
    save_target(tmp_path)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    load_pair(parser.parse_args(["--model", str(tmp_path)]), draft=False, quiet=quiet)
    assert ("loading" in terminal.getvalue()) is not quiet


def test_file_sees_nothing(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)
    with Progress("run") as progress:
        progress.expect(3)
        progress.announce("block 8, code-1")
        progress.advance()
    assert file.getvalue() == ""
