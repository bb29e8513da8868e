"""The ``dflash-mlx`` command: parse, run, and turn a user's mistake into one sentence."""

import argparse
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import takewhile
from typing import NoReturn

from .. import __version__
from ..errors import UserError, brief, did_you_mean, printable

COMMANDS = {
    "generate": "generate text from a prompt",
    "convert": "convert a DFlash drafter to MLX format, or back",
    "train": "train a drafter for a target",
    "evaluate": "measure how many tokens a round emits, by kind of prompt",
    "inspect": "say what a checkpoint is, before its weights are downloaded",
    "models": "list the known pairs of targets and drafters",
    "tune": "measure what rounds cost on this machine",
    "benchmark": "measure DFlash, plain decoding and mlx-lm side by side",
    "verify": "prove that drafting does not change the text",
    "doctor": "look at machine, software, caches and memory",
}
"""The modules of this package that are commands. One is imported when it is chosen."""


class _Parser(argparse.ArgumentParser):
    """Shows a mistake in a line, below a line of usage."""

    arguments = "COMMAND [options]"

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"usage: {self.prog} {self.arguments}\nerror: {message}\n")


class _CommandParser(_Parser):
    """Of one command; what it does not know is its own mistake, and is told before all others."""

    arguments = "[options]"
    # Flags of mlx-lm's command of that name, with what to know of each.
    not_ours: Mapping[str, str] = {}

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        flags = [flag for action in self._actions for flag in action.option_strings]
        # argparse takes a word with a space in it for a value, and none behind -- for a flag.
        for word in takewhile(lambda word: word != "--", args or ()):
            name = word.partition("=")[0]
            if name in self.not_ours:
                self.error(f"mlx-lm's {name} {self.not_ours[name]}")
            flag = word.partition("=")[0] if word.startswith("--") and " " not in word else ""
            if not any(known.startswith(flag) for known in flags):
                self.error(f"{self.prog} has no option {flag}{did_you_mean(flag, flags)}")
        namespace, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"{self.prog} does not know what to do with {' '.join(rest)}.")
        return namespace, rest


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser with all commands, of which only the chosen one has its options."""
    parser = _Parser(
        prog="dflash-mlx",
        description="DFlash speculative decoding on MLX: the target's own text, in fewer passes.",
    )
    parser.add_argument(
        "--version", action="version", version=__version__, help="print the version and exit"
    )
    debug = {"action": "store_true", "help": "on an error, print where it came from as well"}
    parser.add_argument("--debug", **debug)
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_CommandParser
    )
    for name, summary in COMMANDS.items():
        if name == chosen:
            with _quitting_on_interrupt():
                module = import_module(f".{name}", __package__)
            module.add_parser(commands)
            # After the command as well; its default must not overwrite what came before it.
            commands.choices[name].add_argument("--debug", default=argparse.SUPPRESS, **debug)
        else:
            commands.add_parser(name, help=summary)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit code: 0, 1 where a command found a fault, 2 for a mistake of the user's, 70 for
        one of this program's, 130 after Ctrl-C, 141 when the output's reader has gone.
    """
    argv = sys.argv[1:] if argv is None else argv
    main_thread = threading.current_thread() is threading.main_thread()
    if main_thread and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Inherited from a script that has started this in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # transformers warns that it found no PyTorch, and of long prompts; the Hub's library reports
    # each of its retries. What comes of it is said once, by us. Both set their loggers up when they
    # are imported, from these variables.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    debug = "--debug" in argv
    try:
        chosen = next((word for word in argv if not word.startswith("-")), None)
        parser = build_parser(chosen)
        if chosen is not None and chosen not in COMMANDS:
            parser.error(f"there is no command {chosen}{did_you_mean(chosen, COMMANDS)}")
        args = parser.parse_args(argv)
        args.words = argv
        with _warnings_on_a_line():
            code = args.run(args)
        sys.stdout.flush()
        return code
    except UserError as error:
        return _failed(_with_flags(str(error)), 2, debug)
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing may be left to write to them at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        return _failed(str(error), 2, debug)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        seen = "" if debug else "; --debug shows where it happened"
        return _failed(
            f"this is a fault of dflash-mlx, not of what you asked for: {brief(error)}{seen}. "
            "Please report it.",
            os.EX_SOFTWARE,
            debug,
        )


def _failed(sentence: str, code: int, debug: bool) -> int:
    """Say what went wrong, with the traceback before it if that was asked for; the exit code."""
    if debug:
        traceback.print_exc()
    print(f"error: {printable(sentence)}", file=sys.stderr)
    return code


@contextmanager
def _warnings_on_a_line() -> Iterator[None]:
    """Warn in a sentence, without the place in the code; of the same thing once."""
    said = set()

    def show(message: Warning | str, *_: object) -> None:
        sentence = _with_flags(" ".join(str(message).split()))
        if sentence not in said:
            said.add(sentence)
            print(f"warning: {sentence}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _with_flags(message: str) -> str:
    """The message with flags where it has Python's keywords in backquotes."""
    return re.sub(r"`(\w+)`", lambda found: f"--{found[1].replace('_', '-')}", message)


@contextmanager
def _quitting_on_interrupt() -> Iterator[None]:
    """Leave at once on Ctrl-C: raised in the midst of an import, it may be lost or be disguised."""

    def leave(*_: object) -> None:
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(130)

    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
