"""The line that says what is going on."""

import io

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


def test_file_sees_nothing(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)
    with Progress("run") as progress:
        progress.expect(3)
        progress.announce("block 8, code-1")
        progress.advance()
    assert file.getvalue() == ""
