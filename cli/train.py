"""``dflash-mlx train``: a drafter for a target, from prompts or from nothing."""

import argparse
import sys
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from ..errors import UserError
from ..train.recipe import Recipe
from ..train.training import train
from ..train.world import PeerStopped
from .arguments import json_object

_DESCRIPTION = """\
Train a DFlash drafter for a target. Prompts come from --data, or the target invents them
(--self-prompts); it writes the answers itself, unless the data have some. What is needed to resume
is kept in OUTPUT/training, which may be removed when training is over.
"""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register the ``train`` command, whose flags are the fields of :class:`Recipe`."""
    parser = subparsers.add_parser("train", description=_DESCRIPTION)
    parser.set_defaults(run=run)
    groups = {None: parser}
    hints = get_type_hints(Recipe)
    for option in fields(Recipe):
        title = option.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        flags = option.metadata.get("flags", (f"--{option.name.replace('_', '-')}",))
        groups[title].add_argument(*flags, dest=option.name, **_flag(option, hints[option.name]))


def _flag(option: Field, hint: object) -> dict[str, Any]:
    """The arguments of ``add_argument`` for an option of type ``hint``."""
    more = {k: v for k, v in option.metadata.items() if k in ("help", "metavar", "choices")}
    if hint is bool:
        return more | {"action": "store_true"}
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    more["default"] = None if option.default is MISSING else option.default
    if kinds == [bool]:
        return more | {"action": argparse.BooleanOptionalAction}
    # What is none of these is read when all is there.
    kind = kinds[0] if kinds[0] in (int, float, Path) else str
    if get_origin(kinds[0]) is dict:
        kind = json_object
    return more | {"type": kind, "required": option.default is MISSING}


def run(args: argparse.Namespace) -> int:
    """Train, printing what happens.

    Returns:
        0, 1 if another process of the training has stopped, or 130 after Ctrl-C.

    Raises:
        UserError: an option is wrong or does not fit the target or the data.
    """
    given = {option.name: getattr(args, option.name) for option in fields(Recipe)}
    given["taps"] = _taps(args.taps)
    given["template_options"] = args.template_options or {}
    try:
        train(Recipe(**given), lambda line: print(line, flush=True))
    except PeerStopped as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if not (args.output / "training").is_dir():
            raise
        print("interrupted; the same command with --resume goes on", file=sys.stderr)
        return 130
    return 0


def _taps(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"--taps must be layers with commas between, not {text!r}.") from error
