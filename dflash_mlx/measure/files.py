"""The three files of a report: JSON for programs, Markdown for texts, a page for people."""

import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from .page import page
from .report import Report
from .tables import markdown_report

_SUFFIXES = (".json", ".md", ".html")


def report_files(output: str) -> list[Path]:
    """Where a report will go; found out before minutes of measuring.

    Args:
        output: a folder, which exists or ends in a slash, or the files' common beginning; one of
            the files' names stands for all three.

    Raises:
        UserError: nothing can be written there.
    """
    prefix = Path(output).expanduser()
    if prefix.is_dir() or output.endswith("/"):
        prefix = prefix / "benchmark"
    elif prefix.suffix in _SUFFIXES:
        prefix = prefix.with_suffix("")
    files = [prefix.with_name(prefix.name + suffix) for suffix in _SUFFIXES]
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{prefix.parent} cannot be made ({error.strerror}).") from error
    for path in (prefix.parent, *(file for file in files if file.exists())):
        if not os.access(path, os.W_OK) or (path in files and not path.is_file()):
            raise UserError(f"{path} cannot be written; choose another --output.")
    return files


def write_report(report: Report, files: Sequence[Path]) -> None:
    """Write the report to the files that :func:`report_files` has named."""
    contents = (report.to_json(), markdown_report(report), page(report))
    for file, content in zip(files, contents, strict=True):
        file.write_text(content, encoding="utf-8")
