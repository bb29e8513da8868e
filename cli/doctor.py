"""``dflash-mlx doctor``: what is here, whether it works, and what would make it faster."""

import argparse
import dataclasses
import re
import shutil
import textwrap
from pathlib import Path

from ..errors import UserError, at_least_one, counted
from ..loading.hub import is_path
from .json_output import print_json

_CONTEXT = 8192
_MARKS = {"ok": "ok", "advice": "advice", "fault": "FAULT"}
_HARD_SPACE = "\N{NO-BREAK SPACE}"


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register the ``doctor`` command."""
    parser = subparsers.add_parser(
        "doctor",
        description=(
            "Say in plain sentences what machine and software this is, whether they work together, "
            "where models are kept, and whether a pair fits in memory. Downloads nothing. Exit "
            "code 1 if there is a fault."
        ),
    )
    parser.set_defaults(run=run)
    parser.add_argument("--model", help="a target, of which to say whether it fits in memory")
    parser.add_argument("--draft-model", help="its drafter")
    parser.add_argument("--revision", help="branch, tag or commit of the target")
    parser.add_argument("--draft-revision", help="branch, tag or commit of the drafter")
    parser.add_argument(
        "--context",
        type=int,
        help="tokens of prompt and answer that the pair should have room for (default: "
        f"{_CONTEXT})",
    )
    parser.add_argument(
        "--clean",
        action="store_true",
        help="remove what interrupted conversions left in the cache more than a day ago",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Examine, and print what is found as it is found.

    Returns:
        0, or 1 if there is a fault.

    Raises:
        UserError: an option is wrong.
    """
    given = {
        "target": (args.model, args.revision),
        "drafter": (args.draft_model, args.draft_revision),
    }
    for what, (name, revision) in given.items():
        if revision is not None and name is None:
            raise UserError(f"A revision of the {what} was given, but not the {what}.")
        if name is not None and is_path(name) and not Path(name).expanduser().is_dir():
            raise UserError(f"There is no folder {name}.")
    models = {what: model for what, model in given.items() if model[0] is not None}
    context = _CONTEXT if args.context is None else at_least_one("context", args.context)
    if args.context is not None and not models:
        raise UserError("--context is what models should have room for; name them with --model.")
    try:
        # Imported here, because that it cannot be imported is what the doctor may have to say.
        from ..measure.examination import examine
    except ImportError as error:
        print(f"FAULT   MLX or mlx-lm cannot be imported: {error}. Install dflash-mlx again.")
        return 1
    findings = []
    for finding in examine(models, context, args.clean):
        findings.append(finding)
        if not args.json:
            _print(_MARKS[finding.status], finding.text)
    faults = sum(finding.status == "fault" for finding in findings)
    if args.json:
        found = [dataclasses.asdict(finding) for finding in findings]
        names = {what: given[what][0] for what in given}
        print_json(names | {"ok": not faults, "findings": found})
    else:
        print(f"\n{counted(faults or 'No', 'fault')} found.")
    return 1 if faults else 0


def _print(mark: str, text: str) -> None:
    width = min(shutil.get_terminal_size().columns, 100)
    # A quoted path stays on its line.
    whole = re.sub(r"(?<!\w)'[^']*'", lambda quoted: quoted[0].replace(" ", _HARD_SPACE), text)
    lines = textwrap.wrap(
        whole,
        width,
        initial_indent=f"{mark:8}",
        subsequent_indent=" " * 8,
        # A path or a command is to be copied.
        break_long_words=False,
        break_on_hyphens=False,
    )
    print("\n".join(lines).replace(_HARD_SPACE, " "), flush=True)
