"""What a training shows of its progress: a bar on a terminal, lines elsewhere."""

import io
import sys

import pytest

from dflash_mlx.train import world
from dflash_mlx.train.world import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "silence", "shown", "lines", "returns"),
    [
        (io.StringIO, 0.0, True, 3, False),
        (io.StringIO, 1e6, True, 0, False),
        (io.StringIO, 0.0, False, 0, False),
        (Terminal, 1e6, True, 0, True),
    ],
    ids=["a file", "soon over", "another process", "a terminal"],
)
def test_progress(stream, silence, shown, lines, returns, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream())
    monkeypatch.setattr(world, "SILENCE", silence)
    assert list(ProgressBar(range(3), "Answering", unit="answer", shown=shown, miniters=1)) == [
        0,
        1,
        2,
    ]
    text = sys.stderr.getvalue()
    said = [line for line in text.split("\n") if line.strip()] if not returns else []
    assert len(said) >= lines and (lines > 0 or not said) and ("\r" in text.rstrip("\r")) == returns
    assert all("Answering" in line and "/3" in line for line in said)
