"""A report as one page of HTML that needs nothing from anywhere: no script, no font, no network."""

from collections.abc import Sequence
from html import escape
from typing import Any

from .arms import PLAIN
from .report import Report
from .run import grouped
from .summary import Spread, summarize
from .svg import Series, bar_chart, line_chart
from .tables import ARMS, RATIO, Table, careful, context_name, heading, tables

# The first is plain decoding's; the others follow in the order of arms or kinds, and then again.
_LIGHT = "8a8984 2a78d6 eb6834 1baf7a eda100 e87ba4 008300 4a3aa7 e34948"
_DARK = "8f8e88 3987e5 d95926 199e70 c98500 d55181 36a336 9085e9 e66767"

_STYLE = """
:root { color-scheme: light dark; --back: #fcfcfb; --ink: #1f1f1e; --soft: #6b6a66;
  --rule: #e3e2de; LIGHT }
@media (prefers-color-scheme: dark) {
  :root { --back: #1a1a19; --ink: #f0efec; --soft: #a3a29c; --rule: #353532; DARK } }
body { background: var(--back); color: var(--ink); margin: 2.5rem auto; max-width: 60rem;
  padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin-bottom: .5rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
p, li { color: var(--soft); } ul { padding-left: 1.1rem; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .87rem; }
th, td { text-align: right; padding: .3rem .7rem; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } th { color: var(--soft); }
figure { margin: 0; } svg { width: 100%; height: auto; font: 13px system-ui, sans-serif;
  /* On a telephone, plots scroll: letters keep their size. */ min-width: 42rem; }
.careful { border: 2px solid #c2571a; padding: .5rem .8rem; border-radius: 4px; color: var(--ink); }
code, pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .87rem; }
svg text { fill: var(--soft); } .grid { stroke: var(--rule); fill: none; }
.reference { stroke: var(--ink); stroke-dasharray: 5 4; fill: none; }
.whisker { stroke: var(--ink); opacity: .55; fill: none; } .line { fill: none; stroke-width: 2; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; list-style: none; padding: 0;
  margin: .2rem 0; font-size: .87rem; }
.legend span { display: inline-block; width: .75rem; height: .75rem; border-radius: 2px;
  margin-right: .4rem; vertical-align: -1px; }
"""


def page(report: Report) -> str:
    """The whole report as an HTML document."""
    warning = careful(report)
    lines = "".join(f"<li>{escape(line)}</li>" for line in heading(report) if line != warning)
    above = f'<p class="careful">{escape(warning)}</p>' if warning else ""
    figures = [draw(report) for draw in (_speedup, _speed_by_context, _acceptance, _rounds)]
    body = [*filter(None, figures), *map(_table, tables(report)), *_texts(report)]
    if not report.runs:
        body = ["<p>Nothing was measured.</p>"]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>dflash-mlx benchmark</title><style>{_style()}</style></head>\n"
        f"<body><h1>dflash-mlx benchmark</h1>{above}<ul>{lines}</ul>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _style() -> str:
    def colours(values: str) -> str:
        return " ".join(f"--c{i}: #{value};" for i, value in enumerate(values.split()))

    rules = [
        f".f{i} {{ fill: var(--c{i}); background: var(--c{i}); }} .s{i} {{ stroke: var(--c{i}); }}"
        for i in range(len(_LIGHT.split()))
    ]
    style = _STYLE.replace("LIGHT", colours(_LIGHT)).replace("DARK", colours(_DARK))
    return style + "\n".join(rules)


def _series(names: Sequence[str]) -> dict[str, Series]:
    """A colour for each of the names; the same one in every plot."""
    others = [name for name in names if name != PLAIN]
    cycle = len(_LIGHT.split()) - 1
    found = {name: Series(name, str(1 + i % cycle)) for i, name in enumerate(others)}
    return {**found, PLAIN: Series(PLAIN, "0")}


def _speedup(report: Report) -> str:
    arms, groups = [arm for arm in report.arms if arm != PLAIN], grouped(report.runs, "kind")
    if len(groups) > 1:
        groups = groups | {"all": report.runs}
    found = [{s.arm: s.ratio for s in summarize(runs, arms)} for runs in groups.values()]
    if not any(ratio for column in found for ratio in column.values()):
        return ""
    values = [[column.get(arm) for arm in arms] for column in found]
    series = [_series(report.arms)[arm] for arm in arms]
    chart = bar_chart(list(groups), series, values, "÷ plain", reference=1.0)
    caption = (
        "Bars are medians over prompts, whiskers reach from the least to the greatest. "
        f"{RATIO} The dashed line is plain decoding. {ARMS}"
    )
    return _figure("Decoding speed against plain, by kind of text", series, chart, caption)


def _speed_by_context(report: Report) -> str:
    contexts = grouped(report.runs, "context")
    if len(contexts) < 2:
        return ""
    points: dict[str, list[tuple[int, float]]] = {arm: [] for arm in report.arms}
    for runs in contexts.values():
        length = round(Spread.of(run.prompt_tokens for run in runs).median)
        for summary in summarize(runs, report.arms):
            if (speed := summary.spread("decode_tps")) is not None:
                points[summary.arm].append((length, speed.median))
    series = _series(report.arms)
    lines = [(series[arm], sorted(found)) for arm, found in points.items()]
    lengths = ", ".join(map(context_name, contexts))
    return _line_figure(
        "Decoding speed by length of the prompt",
        f"Medians over prompts; prompts were taken {lengths}.",
        lines,
        ("prompt tokens", "decode tok/s"),
        log_x=True,
        at_points=True,
    )


def _acceptance(report: Report) -> str:
    series, found = _series(report.arms), summarize(report.runs, report.arms)
    return _line_figure(
        "Acceptance by position",
        "How often the target agreed with the draft at a position of the block, if it was reached; "
        "mean over all generations.",
        [(series[s.arm], list(enumerate(s.acceptance, 1))) for s in found],
        ("position", "accepted"),
        at_points=True,
    )


def _rounds(report: Report) -> str:
    """Tokens a round of one arm, a line a kind: of the arm that was fastest."""
    found = [s for s in summarize(report.runs, report.arms) if s.arm != PLAIN]
    drafting = {s.arm: s.ratio.median for s in found if s.ratio and s.acceptance}
    if not drafting:
        return ""
    best, kinds = max(drafting, key=drafting.__getitem__), grouped(report.runs, "kind")
    series = _series(list(kinds))
    return _line_figure(
        "Tokens per round over time",
        f"{best}, the fastest drafting arm here; means over the prompts of a kind. A round is one "
        "pass of the target.",
        [
            (series[kind], summary.tokens_per_round())
            for kind, runs in kinds.items()
            for summary in summarize(runs, [best])
        ],
        ("emitted tokens", "tokens a round"),
    )


def _line_figure(
    title: str,
    caption: str,
    lines: Sequence[tuple[Series, Sequence[tuple[float, float]]]],
    labels: tuple[str, str],
    **axes: Any,
) -> str:
    """Those of the lines that have points, or nothing if none has."""
    lines = [(series, points) for series, points in lines if points]
    if not lines:
        return ""
    return _figure(title, [s for s, _ in lines], line_chart(lines, *labels, **axes), caption)


def _figure(title: str, series: Sequence[Series], chart: str, caption: str) -> str:
    legend = "".join(f'<li><span class="f{s.colour}"></span>{escape(s.name)}</li>' for s in series)
    return (
        f'<h2>{escape(title)}</h2><figure><ul class="legend">{legend}</ul>'
        f'<div class="wide">{chart}</div>'
        f"<figcaption><p>{escape(caption)}</p></figcaption></figure>"
    )


def _table(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    return (
        f'<h2>{escape(table.title)}</h2><div class="wide"><table>{row(table.headers, "th")}'
        f"{''.join(row(cells, 'td') for cells in table.rows)}</table></div>{note}"
    )


def _texts(report: Report) -> list[str]:
    """Prompts and answers, folded in."""
    if not report.texts:
        return []
    folded = [
        f"<details><summary>{escape(text['prompt'])}</summary><h3>Prompt</h3>"
        f"<pre>{escape(text['question'])}</pre><h3>Answer</h3><pre>{escape(text['answer'])}</pre>"
        "</details>"
        for text in report.texts
    ]
    return ["<h2>Prompts, and the answers of plain decoding</h2>", *folded]
