"""Two reports side by side."""

from collections.abc import Iterable

from .report import Report
from .run import grouped
from .summary import Spread, Summary, repeat_spread, summarize
from .tables import RATIO, TAU, UNSTEADY, Table, as_text, context_name, wrapped

ALL = "all kinds"


def compare(first: Report, second: Report, *names: str) -> str:
    """What differs between two benchmarks, as text: which they are, warnings, then a table.

    Args:
        first: one of them.
        second: the other.
        names: what the two are called, such as their files.
    """
    sides = zip(("First", "Second"), names, (first, second), strict=True)
    lines = [
        f"{side}: {name}, {report.models['target']['name']}, {report.date}"
        for side, name, report in sides
    ]
    for report, side in ((first, "first"), (second, "second")):
        if (share := repeat_spread(report.runs)) is not None and share > UNSTEADY:
            lines.append(f"Careful: repetitions of a prompt lie {share:.1%} apart in the {side}.")
    lines += [f"Careful: {line}" for line in differences(first, second)]
    heading = "\n".join(line for text in lines for line in wrapped(text))
    table = comparison(first, second)
    if not table.rows:
        return f"{heading}\n\nThe two reports have no arm, kind and length in common."
    return f"{heading}\n\n{as_text(table)}"


def differences(first: Report, second: Report) -> list[str]:
    """A sentence on everything but the speed that is not the same in both."""
    found = []
    for name in ("chip", "memory_gb", "system", "device", "python", "versions"):
        found += _difference(name, first.machine.get(name), second.machine.get(name))
    for name in first.models:
        found += _difference(name, first.models[name], second.models.get(name))
    # How it was asked for may differ where what was asked for does not.
    for name in (first.settings | second.settings).keys() - {"command"}:
        found += _difference(name, first.settings.get(name), second.settings.get(name))
    for name, report in (("first", first), ("second", second)):
        if report.interrupted:
            found.append(
                f"the {name} benchmark was interrupted after {len(report.runs)} of "
                f"{report.planned} runs."
            )
    return found


def _difference(name: str, first: object, second: object) -> list[str]:
    if first == second:
        return []
    if isinstance(first, dict) and isinstance(second, dict):
        pairs = [(f"{name} {k}", first.get(k), second.get(k)) for k in first | second]
        return [line for pair in pairs for line in _difference(*pair)]
    title = name.replace("_", " ")
    return [f"{title} is {_said(first)} in the first and {_said(second)} in the second."]


def _said(value: object) -> str:
    return "none" if value is None else str(value)


def comparison(first: Report, second: Report) -> Table:
    """Speed, ratio and τ of every arm, kind and length that both reports have."""
    headers = (
        "arm, kind, prompt",
        "tok/s first",
        "second",
        "second ÷ first",
        "÷ plain first",
        "second",
        "τ first",
        "second",
    )
    groups = [grouped(report.runs, "context", "kind") for report in (first, second)]
    kinds = [key for key in groups[0] if key in groups[1]]
    for context in {context: None for context, _ in kinds}:
        # Of the kinds that both have.
        both = [kind for length, kind in kinds if length == context]
        if len(both) > 1:
            for found in groups:
                runs = [run for kind in both for run in found[context, kind]]
                found[context, ALL] = runs
    rows = []
    for (context, kind), runs in groups[0].items():
        others = summarize(groups[1].get((context, kind), []), second.arms)
        by_arm = {summary.arm: summary for summary in others}
        for summary in summarize(runs, first.arms):
            if summary.arm in by_arm:
                name = f"{summary.arm}, {kind}, {context_name(context)}"
                rows.append([name, *_cells(summary, by_arm[summary.arm])])
    return Table("Decoding, first and second report", headers, rows, f"{RATIO} {TAU}")


def _cells(*sides: Summary) -> list[str]:
    def medians(values: Iterable[Spread | None], form: str) -> list[str]:
        return ["-" if value is None else format(value.median, form) for value in values]

    speeds, taus = ([side.spread(name) for side in sides] for name in ("decode_tps", "tau"))
    ratio = f"{speeds[1].median / speeds[0].median:.2f}" if all(speeds) else "-"
    ratios = medians((side.ratio for side in sides), ".2f")
    return [*medians(speeds, ".1f"), ratio, *ratios, *medians(taus, ".2f")]
