"""A benchmark's report: what was measured, on what, and the files that it is kept in."""

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ..errors import UserError, os_reason
from .run import Run

FORMAT = "dflash-mlx benchmark"
# Reports of version 1 have no texts.
VERSION = 2
_SUFFIXES = (".json", ".md", ".html")


@dataclass
class Report:
    """All that a benchmark knows. Every table and plot is made from this.

    Attributes:
        date: when it began, ISO 8601 in UTC.
        machine: from :func:`dflash_mlx.measure.machine.describe_machine`.
        models: ``target``, ``drafter`` and ``mlx_lm_draft_model``, each as named and resolved, or
            None.
        settings: how tokens were chosen, and how much was asked for.
        arms: names, plain decoding first.
        planned: how many runs were planned.
        notes: sentences on what was left out, and why.
        runs: what was measured, in order.
        texts: prompts and plain's answers to them: ``prompt`` (its id), ``question``, ``answer``.
        format: marks the file as one of ours.
        version: of the format.
    """

    date: str
    machine: dict[str, Any]
    models: dict[str, dict[str, Any] | None]
    settings: dict[str, Any]
    arms: list[str]
    planned: int
    notes: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    texts: list[dict[str, str]] = field(default_factory=list)
    format: str = FORMAT
    version: int = VERSION

    @property
    def interrupted(self) -> bool:
        """Whether fewer runs were measured than were planned."""
        return len(self.runs) < self.planned

    def to_json(self) -> str:
        """The report's file; :meth:`from_json` reads it back."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, path: Path) -> Self:
        """Read a report's file.

        Raises:
            UserError: it cannot be read, or is not a report that this version knows.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{path} cannot be read ({os_reason(error)}).") from error
        except ValueError as error:
            raise UserError(f"{path} is not a JSON file of `dflash-mlx benchmark`.") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise UserError(f"{path} is not a report of `dflash-mlx benchmark`.")
        if content.get("version") not in (1, VERSION):
            raise UserError(
                f"{path} has version {content.get('version')} of the report's format; this "
                f"dflash-mlx reads versions 1 and {VERSION}."
            )
        try:
            runs = [Run(**run) for run in content.pop("runs")]
            return cls(**content, runs=runs)
        except (KeyError, TypeError) as error:
            raise UserError(f"{path} is a damaged report: {error}.") from error


def report_files(output: str) -> list[Path]:
    """Where a report's JSON, Markdown and page will go; found out before minutes of measuring.

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
        raise UserError(f"{prefix.parent} cannot be made ({os_reason(error)}).") from error
    for path in (prefix.parent, *(file for file in files if file.exists())):
        if not os.access(path, os.W_OK) or (path in files and not path.is_file()):
            raise UserError(f"{path} cannot be written; choose another --output.")
    return files
