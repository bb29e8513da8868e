"""``dflash-mlx train``: a drafter for a target, from prompts or from nothing."""

import argparse
import sys
from dataclasses import fields

from ..train.recipe import Recipe
from ..train.training import train
from ..train.world import PeerStopped
from .arguments import add_options

_USAGE = """dflash-mlx train --model MODEL --output OUTPUT
                        (--data DATA | --self-prompts N) [options]"""
_DESCRIPTION = """\
Train a DFlash drafter for a target. Prompts come from --data, or the target invents them
(--self-prompts); it writes the answers itself, unless the data have some. What is needed to resume
is kept in OUTPUT/training, which may be removed when training is over.

Most trainings need --model, --output, --data or --self-prompts, and --max-tokens; then --layers,
--taps and --block-size shape the drafter, and --epochs or --time-limit end it. The rest is for
experiments.
"""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register the ``train`` command, whose flags are the fields of :class:`Recipe`."""
    parser = subparsers.add_parser("train", description=_DESCRIPTION, usage=_USAGE)
    parser.set_defaults(run=run)
    add_options(parser, Recipe)


def run(args: argparse.Namespace) -> int:
    """Train, printing what happens.

    Returns:
        0, 1 if another process of the training has stopped, or 130 after Ctrl-C.

    Raises:
        UserError: an option is wrong or does not fit the target or the data.
    """
    given = {option.name: getattr(args, option.name) for option in fields(Recipe)}
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
