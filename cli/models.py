"""``dflash-mlx models``: the known pairs of targets and drafters."""

import argparse
from dataclasses import asdict

from ..errors import UserError
from ..loading.known_pairs import KnownPair, base_name, known_pairs
from .json_output import print_json


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register the ``models`` command."""
    parser = subparsers.add_parser(
        "models",
        description=(
            "List the targets for which drafters are known, without using the network. A target "
            "may be quantized or a copy: generate picks its drafter by its name."
        ),
    )
    parser.add_argument(
        "filter",
        nargs="?",
        help="only pairs whose target or drafter contains this; or a target's whole id",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the pairs.

    Raises:
        UserError: No pair fits the filter.
    """
    pairs = [pair for pair in known_pairs() if args.filter is None or _fits(pair, args.filter)]
    if not pairs:
        raise UserError(
            f"No known pair has {args.filter!r} in it; `dflash-mlx models` lists all, and "
            "`dflash-mlx inspect` says for which target a drafter was made."
        )
    if args.json:
        print_json({"pairs": [asdict(pair) for pair in pairs]})
    else:
        print("\n".join(_listing(pairs)))
    return 0


def _fits(pair: KnownPair, text: str) -> bool:
    if base_name(text) in {base_name(target) for target in pair.targets}:
        return True
    return any(text.lower() in name.lower() for name in (*pair.targets, pair.drafter))


def _listing(pairs: list[KnownPair]) -> list[str]:
    """Each target once, with its drafters below it; the first that runs is the one picked."""
    lines: list[str] = []
    target = None
    for pair in sorted(pairs, key=lambda pair: pair.targets[0].lower()):
        if pair.targets[0] != target:
            target, picked = pair.targets[0], False
            lines.append(target)
        mark = " "
        if pair.unsupported is None and not picked:
            mark, picked = "*", True
        revision = f" at {pair.revision}" if pair.revision else ""
        lines += [f"  {mark} {pair.drafter}{revision}", f"      {_details(pair)}"]
    return [*lines, "", "* is what load and generate take for the target if no drafter is named."]


def _details(pair: KnownPair) -> str:
    parts = [pair.kind]
    if pair.block_size is not None:
        parts.append(f"block {pair.block_size}")
    parts.append(pair.license or "licence not known")
    if pair.gated:
        parts.append("gated")
    if pair.note:
        parts.append(pair.note)
    parts.append(f"does not run: {pair.unsupported}" if pair.unsupported else "runs")
    return "; ".join(parts)
