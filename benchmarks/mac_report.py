"""The Markdown of a report that mac.py has made."""

from collections.abc import Callable
from typing import Any


def markdown(report: dict[str, Any]) -> str:
    """The report as a page. A part that was not measured has its reason, and no table."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    published = machine["published_gb_per_s"]
    chip = machine["chip"]
    if machine["gpu_cores"]:
        chip += f" with {machine['gpu_cores']} GPU cores"
    lines = [
        "# dflash-mlx on this machine",
        "",
        f"{report['date']}; {chip}; {machine['system']}; {machine['device']}; {versions}",
        "",
        f"Memory bandwidth that Apple publishes for it: "
        f"{f'{published:g} GB/s' if published else 'not in our table'}.",
    ]
    writers: dict[str, tuple[str, Callable[[Any, dict[str, Any]], list[str]]]] = {
        "tests": ("Kernel tests on the GPU", _tests),
        "bandwidth": ("Bandwidth of a plain copy", _bandwidth),
        "kernels": ("Kernels", _kernels),
        "round": ("A round", _round),
    }
    for name, (title, write) in writers.items():
        part = report["parts"][name]
        lines += ["", f"## {title}", ""]
        if part["result"] is None:
            lines.append(f"Not measured: {part['why_not']}.")
        else:
            lines += write(part["result"], report)
    return "\n".join(lines) + "\n"


def _tests(result: dict[str, Any], _: dict[str, Any]) -> list[str]:
    failed = result["failed"]
    lines = [f"{result['passed']} passed, {result['skipped']} skipped, {len(failed)} failed."]
    if failed:
        lines += ["", *(f"* {name}" for name in failed), "", "```", result["output"], "```"]
    return lines


def _bandwidth(result: dict[str, Any], _: dict[str, Any]) -> list[str]:
    return [f"{result['gb_per_s']:.0f} GB/s over {result['megabytes']} MB, read and written."]


def _kernels(result: list[dict[str, Any]], report: dict[str, Any]) -> list[str]:
    copy = report["parts"]["bandwidth"]["result"]
    ends = (copy["gb_per_s"] if copy else None, report["machine"]["published_gb_per_s"])
    lines = [
        "µs is one of many independent calls, which the GPU may overlap; alone is one call in an "
        "evaluation of its own. GB/s counts weights, inputs and results, each once.",
        "",
        "| kernel | dtype | bits | positions | µs | alone µs | GB/s | of a copy | of published |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in result:
        rate = entry["gb_per_s"]
        shares = [f"{rate / end:.0%}" if end else "not known" for end in ends]
        cells = [
            entry["kernel"],
            entry["dtype"],
            str(entry["bits"] or "dense"),
            str(entry["positions"]),
        ]
        cells += [f"{entry[k]:.1f}" for k in ("us", "us_alone", "gb_per_s")] + shares
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _round(result: dict[str, Any], _: dict[str, Any]) -> list[str]:
    stages = result["stage_seconds"]
    names = list(next(iter(stages.values())))
    lines = [
        f"{result['model']}, drafter {result['draft_model'] or 'embedded'}, block of "
        f"{result['block_size']}. Kernels: {result['kernels']}. "
        "Each stage was built, run and waited for alone.",
        "",
        f"| kernels | {' | '.join(f'{n} ms' for n in names)} |",
        "|---|" + "---|" * len(names),
    ]
    for way, times in stages.items():
        lines.append(f"| {way} | {' | '.join(f'{1e3 * times[n]:.2f}' for n in names)} |")
    lines += ["", "| prompt | way | tokens | τ | tokens/s |", "|---|---|---|---|---|"]
    for g in result["generations"]:
        cells = [g["prompt"], g["arm"], str(g["tokens"]), f"{g['tau']:.2f}"]
        lines.append(f"| {' | '.join(cells)} | {g['reported_decode_tps']:.1f} |")
    return lines
