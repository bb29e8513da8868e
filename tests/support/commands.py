"""The command line as a user runs it, and files to give it."""

import json
from pathlib import Path

import pytest

from dflash_mlx.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``dflash-mlx``."""
    try:
        code = main([str(a) for a in arguments])
    except SystemExit as exit_:
        code = exit_.code
    out, err = capsys.readouterr()
    return code, out, err


def write_rows(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
