"""Two reports side by side."""

from collections.abc import Sequence

from .report import Report, unique
from .summary import Spread, summarize
from .tables import Table, as_text, context_name


def compare(first: Report, second: Report) -> str:
    """What differs between two benchmarks, as text: warnings, then a table."""
    warnings = [f"Careful: {line}" for line in differences(first, second)]
    table = comparison(first, second)
    if not table.rows:
        return "\n".join([*warnings, "The two reports have no arm, kind and length in common."])
    return "\n\n".join(["\n".join(warnings), as_text(table)] if warnings else [as_text(table)])


def differences(first: Report, second: Report) -> list[str]:
    """A sentence on everything but the speed that is not the same in both."""
    found = []
    for name in ("chip", "memory_gb", "system", "device", "python", "versions"):
        found += _difference(name, first.machine.get(name), second.machine.get(name))
    for name in first.models:
        found += _difference(name, first.models[name], second.models.get(name))
    for name in unique([*first.settings, *second.settings]):
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
        keys = unique([*first, *second])
        pairs = [(f"{name} {k}", first.get(k), second.get(k)) for k in keys]
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
    rows = []
    for context in first.contexts:
        for kind in first.kinds:
            rows += _rows(first, second, kind, context)
    return Table("Decoding, first and second report", headers, rows)


def _rows(first: Report, second: Report, kind: str, context: int) -> list[Sequence[str]]:
    sides = []
    for report in (first, second):
        runs = [r for r in report.runs if (r.kind, r.context) == (kind, context)]
        sides.append({s.arm: s for s in summarize(runs, report.arms)})
    rows = []
    for arm in (arm for arm in sides[0] if arm in sides[1]):
        found = [side[arm] for side in sides]
        speeds, taus = ([s.spread(name) for s in found] for name in ("decode_tps", "tau"))
        quotient = f"{speeds[1].median / speeds[0].median:.2f}" if all(speeds) else "-"
        cells = [_median(s, ".1f") for s in speeds] + [quotient]
        cells += [_median(value, ".2f") for value in (*(s.ratio for s in found), *taus)]
        rows.append([f"{arm}, {kind}, {context_name(context)}", *cells])
    return rows


def _median(value: Spread | None, form: str) -> str:
    return "-" if value is None else format(value.median, form)
