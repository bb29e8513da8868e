"""The ``dflash-mlx`` command: parse, run, and turn a user's mistake into one sentence."""

import argparse
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version

from ..errors import UserError
from . import convert, generate, tune


def build_parser() -> argparse.ArgumentParser:
    """The parser with all commands."""
    parser = argparse.ArgumentParser(
        prog="dflash-mlx",
        description="DFlash speculative decoding on MLX: the target's own text, in fewer passes.",
    )
    parser.add_argument("--version", action="version", version=version("dflash-mlx"))
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (generate, convert, tune):
        module.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit code: 0, 2 for a mistake of the user's, 130 after Ctrl-C.
    """
    # transformers warns on import that it found no PyTorch; none is needed.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    args = build_parser().parse_args(argv)
    try:
        return args.run(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
