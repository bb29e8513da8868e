"""A report as tables: the same ones in the terminal, in Markdown and on the page."""

import shutil
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import counted
from .arms import PLAIN
from .report import Report
from .run import Run, grouped
from .summary import Spread, Summary, repeat_spread, summarize

# Repetitions that lie farther apart than this share are warned of.
UNSTEADY = 0.1


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        title: above it.
        headers: one a column.
        rows: as many cells as there are headers; the first one names the row.
        note: a sentence below it, or empty.
    """

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def tables(report: Report) -> list[Table]:
    """All tables of a report; none if nothing was measured."""
    if not report.runs:
        return []
    found, arms, ratio = [_overall(report)], report.arms, _OVERALL["÷ plain"]
    kinds, contexts = (grouped(report.runs, name) for name in ("kind", "context"))
    if len(kinds) > 1:
        drafting = [s.arm for s in summarize(report.runs, arms) if s.acceptance]
        found.append(_by_column("÷ plain, by kind of text", arms, kinds, ratio, RATIO))
        found.append(_by_column("τ, by kind of text", drafting, kinds, _tau, TAU))
    if len(contexts) > 1:
        columns = {context_name(context): runs for context, runs in contexts.items()}
        speed, by_length = _OVERALL["decode tok/s"], "by length of the prompt"
        found.append(_by_column(f"÷ plain, {by_length}", arms, columns, ratio, RATIO))
        note = "Tokens a second after the first round."
        found.append(_by_column(f"Decode tok/s, {by_length}", arms, columns, speed, note))
    found += [_acceptance(report), _block_sizes(report)]
    return [table for table in found if table.rows]


Cell = Callable[[Summary], str]
Columns = Mapping[str, Sequence[Run]]


def _tau(summary: Summary) -> str:
    return spread(summary.spread("tau"), ".2f")


def _same(summary: Summary) -> str:
    if summary.different is None:
        return "-"
    if summary.different:
        return f"no, {summary.different} of {summary.prompts} differ"
    return "yes"


_OVERALL: dict[str, Cell] = {
    "÷ plain": lambda s: spread(s.ratio, ".2f"),
    "decode tok/s": lambda s: spread(s.spread("decode_tps"), ".1f"),
    "prompt tok/s": lambda s: spread(s.spread("prompt_tps"), ".0f"),
    "first token ms": lambda s: spread(s.spread("first_token_seconds"), ".0f", 1e3),
    "τ": lambda s: f"{s.spread('tau').median:.2f}",
    "peak GB": lambda s: f"{max(run.peak_gb for run in s.runs):.2f}",
    "on top GB": lambda s: f"{max(run.working_gb for run in s.runs):.2f}",
    "plain's text": _same,
}


ARMS = (
    "An arm is a way of generating: plain is without a drafter, block N drafts in blocks of N "
    "tokens, block auto chooses for each round, mlx-lm is that library itself."
)
RATIO = "÷ plain is the speed of decoding divided by plain's on the same prompt."
TAU = "τ is the mean number of tokens that one pass of the target emits."


def _overall(report: Report) -> Table:
    summaries = summarize(report.runs, report.arms)
    rows = [[s.arm, *(cell(s) for cell in _OVERALL.values())] for s in summaries]
    note = (
        f"{ARMS} Numbers are medians over prompts [least, greatest]; each prompt is the median of "
        f"its repetitions. {RATIO} {TAU} Peak GB counts everything loaded here, on top GB "
        "only what generating adds to it. Plain's text says whether an arm wrote what plain "
        "wrote; - where it need not."
    )
    if (share := repeat_spread(report.runs)) is not None:
        note += f" Repetitions of a prompt lie {share:.1%} apart (median)."
    return Table("All prompts", ["arm", *_OVERALL], rows, note)


def careful(report: Report) -> str:
    """A sentence where repetitions disagree so much that the numbers mean little, or nothing."""
    share = repeat_spread(report.runs)
    if share is None or share <= UNSTEADY:
        return ""
    return (
        f"Careful: repetitions of one prompt lie {share:.1%} apart (median), so smaller "
        "differences mean nothing here. The machine was probably busy; measure again when idle."
    )


def _by_column(title: str, arms: Sequence[str], columns: Columns, cell: Cell, note: str) -> Table:
    found = [{s.arm: cell(s) for s in summarize(runs, arms)} for runs in columns.values()]
    arms = [arm for arm in arms if any(arm in column for column in found)]
    rows = [[arm, *(column.get(arm, "-") for column in found)] for arm in arms]
    return Table(title, ["arm", *columns], rows, note)


def _acceptance(report: Report) -> Table:
    found = [s for s in summarize(report.runs, report.arms) if s.arm != PLAIN and s.acceptance]
    longest = max((len(s.acceptance) for s in found), default=0)
    rows = [[s.arm, *(f"{rate:.2f}" for rate in s.acceptance)] for s in found]
    rows = [row + ["-"] * (1 + longest - len(row)) for row in rows]
    headers = ["arm", *map(str, range(1, longest + 1))]
    note = (
        "How often the target agreed with the draft at a position, of the rounds that reached it."
    )
    return Table("Accepted drafts, by position in the block", headers, rows, note)


def _block_sizes(report: Report) -> Table:
    """How often each size ran, of the arms that chose their size themselves."""
    counts: dict[str, Counter[str]] = {}
    for summary in summarize(report.runs, report.arms):
        found = sum((Counter(run.block_rounds) for run in summary.runs), Counter())
        if len(found) > 1:
            counts[summary.arm] = found
    sizes = sorted({size for found in counts.values() for size in found}, key=int)
    rows = [
        [arm, *(f"{found[size] / found.total():.0%}" for size in sizes)]
        for arm, found in counts.items()
    ]
    note = "A block is what one pass of the target checks: a token and its drafts; 1 is plain."
    return Table("Share of rounds, by block size", ["arm", *sizes], rows, note)


def context_name(context: int) -> str:
    """How a prompt's length is called."""
    return counted(context, "token") if context else "as it is"


def spread(value: Spread | None, form: str, scale: float = 1.0) -> str:
    """A median with its spread, or a dash."""
    if value is None:
        return "-"
    middle, low, high = (format(x * scale, form) for x in (value.median, value.low, value.high))
    return middle if low == high else f"{middle} [{low}, {high}]"


def heading(report: Report) -> list[str]:
    """What was measured, on what, and what was left out: a line each."""
    machine, settings = report.machine, report.settings
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    names = {
        "Target": report.models["target"],
        "Drafter": report.models["drafter"],
        "Draft model for mlx-lm": report.models["mlx_lm_draft_model"],
    }
    lines = [line] if (line := careful(report)) else []
    lines += [f"{title}: {_model(model)}" for title, model in names.items() if model]
    if command := settings.get("command"):
        lines.append(f"Command: {command}")
    lines += [
        f"{settings['choice']}; prompts: {settings['prompts']}, repetitions: "
        f"{settings['repeats']}, tokens at most: {settings['max_tokens']}; {report.date}",
        f"{machine['chip']}, {machine['memory_gb']:g} GB, {machine['system']}, "
        f"{machine['device']}, Python {machine['python']}, {versions}",
    ]
    if report.interrupted:
        lines.append(f"Interrupted: {len(report.runs)} of {report.planned} runs were measured.")
    kernels = next((run.kernels for run in report.runs if run.kernels), "")
    return [*lines, *([f"Drafter kernels: {kernels}"] if kernels else []), *report.notes]


def _model(model: dict[str, Any]) -> str:
    details = [model["revision"], model["commit"] and f"commit {model['commit'][:12]}"]
    known = ", ".join(filter(None, details))
    return f"{model['name']} ({known})" if known else model["name"]


def as_text(table: Table) -> str:
    """The table for a terminal, in columns, and its note as wide as the terminal."""
    grid = [list(table.headers), *map(list, table.rows)]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in grid
    ]
    return "\n".join([table.title, *lines, *wrapped(table.note)])


def wrapped(text: str) -> list[str]:
    """The text in lines as wide as the terminal, broken between words."""
    width = shutil.get_terminal_size().columns
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def as_markdown(table: Table) -> str:
    """The table in Markdown."""
    rows = [table.headers, ["---"] * len(table.headers), *table.rows]
    lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join([f"## {table.title}", "", *lines, *(["", table.note] if table.note else [])])


def text_report(report: Report) -> str:
    """The whole report for a terminal."""
    lines = [line for text in heading(report) for line in wrapped(text)]
    return "\n\n".join(["\n".join(lines), *map(as_text, tables(report))])


def markdown_report(report: Report) -> str:
    """The whole report in Markdown."""
    lines = "\n".join(f"* {line}" for line in heading(report))
    parts = ["# dflash-mlx benchmark", lines, *map(as_markdown, tables(report))]
    return "\n\n".join(parts) + "\n"
