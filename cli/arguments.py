"""Arguments that several commands share, and the flags of the table of generation options."""

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..engine.option import OptionTable
from ..errors import at_least_one
from ..generation.options import Options
from ..loading.embedded import DRAFTER_NAME
from ..loading.known_drafter import choose_drafter
from ..loading.loader import load
from ..loading.pair import Pair
from ..measure.arms import BlockSize
from ..measure.machine import describe_model
from ..measure.prompts import Prompt, prompt_tokens, read_prompts, select
from ..measure.run import Case
from .progress import Progress


def add_options(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    table: type[OptionTable],
    names: Collection[str] = (),
    **defaults: object,
) -> None:
    """Add the flags of a table of options.

    Args:
        parser: gets them, in the table's groups unless ``names`` are given.
        table: such as :class:`Options`.
        names: of its fields; all of them if there are none.
        defaults: where they are not the table's.
    """
    groups, hints = {None: parser}, get_type_hints(table)
    for option in fields(table):
        if "help" not in option.metadata or (names and option.name not in names):
            continue
        title = None if names else option.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        flags = option.metadata.get("flags", (f"--{option.name.replace('_', '-')}",))
        default = defaults.get(option.name, option.default)
        groups[title].add_argument(
            *flags, dest=option.name, **_flag(option, hints[option.name], default)
        )


def _flag(option: Field, hint: object, default: object) -> dict[str, Any]:
    """The arguments of ``add_argument`` for an option of type ``hint``."""
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    more = {k: v for k, v in option.metadata.items() if k in ("help", "metavar", "choices")}
    if hint is bool:
        return more | {"action": "store_false" if default else "store_true"}
    if default == ():
        return more | {"action": "append", "default": []}
    shown = option.metadata.get("unset") if default in (None, MISSING) else default
    if shown is not None:
        more["help"] += f" (default: {f'{shown:g}' if isinstance(shown, float) else shown})"
    if kinds == [bool]:
        return more | {"action": argparse.BooleanOptionalAction}
    if default is MISSING:
        return more | {"type": _reader(kinds), "required": True}
    return more | {"type": _reader(kinds), "default": default}


def _reader(kinds: list[Any]) -> Callable[[str], object]:
    """What makes a value of one of some types of a flag's text."""
    origin = get_origin(kinds[0])
    if origin is tuple:
        return _whole_numbers
    if origin is not None:
        return json_object
    return _number_or_word if kinds == [int, str] else kinds[0]


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        wanted = f"must be whole numbers with commas between, not {text!r}"
        raise argparse.ArgumentTypeError(wanted) from None


def _number_or_word(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def generation_options(args: argparse.Namespace) -> Options:
    """The generation options among the arguments.

    Raises:
        UserError: a value is out of its range.
    """
    names = {f.name for f in fields(Options)}
    return Options(**{name: value for name, value in vars(args).items() if name in names})


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add what :func:`load_pair` reads."""
    group = parser.add_argument_group("models")
    group.add_argument("--model", help="the target: a folder or a Hugging Face id")
    group.add_argument(
        "--draft-model",
        help="the drafter: a folder or a Hugging Face id, in MLX or PyTorch format (default: the "
        "one known for the target, see `dflash-mlx models`)",
    )
    group.add_argument("--revision", help="branch, tag or commit of the target")
    group.add_argument("--draft-revision", help="branch, tag or commit of the drafter")
    group.add_argument("--adapter-path", help="folder with LoRA adapters for the target")
    group.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="allow the target and its tokenizer to bring their own code",
    )


def load_pair(
    args: argparse.Namespace, *, draft: bool = True, quiet: bool = False
) -> tuple[Pair, TokenizerWrapper]:
    """Load what the model options name; the embedded pair if they name nothing.

    That it goes on is shown on a terminal. A drafter that is chosen because none is named is
    announced on stderr and put into the options.

    Args:
        args: with the options of :func:`add_model_options`.
        draft: whether to load a drafter at all.
        quiet: whether to show and announce nothing.

    Raises:
        UserError: it cannot be loaded.
    """
    drafter: str | Path | Literal[False] | None = args.draft_model if draft else False
    revision = args.draft_revision if draft else None
    choice = None
    with Progress("model", shown=not quiet) as progress:
        progress.announce("loading")
        if drafter is None and revision is None and args.model is not None:
            choice = choose_drafter(args.model)
            drafter = choice.folder or False
            args.draft_model, args.draft_revision = choice.drafter, choice.revision
        pair = load(
            args.model,
            drafter,
            adapter_path=args.adapter_path,
            revision=args.revision,
            draft_revision=revision,
            trust_remote_code=args.trust_remote_code,
            tokenizer_config={"trust_remote_code": True} if args.trust_remote_code else None,
        )
    # Only now is the target known to be one.
    if choice and not quiet:
        print(choice.message, file=sys.stderr)
    return pair


def describe_pair(args: argparse.Namespace, pair: Pair) -> dict[str, object]:
    """What reports say of the pair that :func:`load_pair` has loaded: both names and revisions."""
    drafter = None
    if pair.drafter is not None:
        # A drafter that neither the user nor the known pairs name is the default pair's.
        drafter = describe_model(args.draft_model, args.draft_revision, DRAFTER_NAME)
    return {"target": describe_model(args.model, args.revision), "drafter": drafter}


def json_object(text: str) -> dict[str, Any]:
    """The JSON object that an argument is; for argparse's ``type``."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, not {text}")
    return value


def add_template_option(group: argparse._ArgumentGroup) -> None:
    """Add what the chat template is told."""
    group.add_argument(
        "--chat-template-config",
        type=json_object,
        default={},
        help="JSON options for the chat template, such as '{\"enable_thinking\": false}'",
    )


def add_prompt_options(parser: argparse.ArgumentParser, limit: int, max_tokens: int) -> None:
    """Add what :func:`chosen_prompts` reads, and the length of the texts.

    Args:
        parser: of a command.
        limit: how many prompts of each kind are taken by default.
        max_tokens: how many tokens are emitted by default.
    """
    group = parser.add_argument_group("prompts")
    group.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help='JSON Lines: {"kind": …, "prompt": …} or {"kind": …, "messages": […]} '
        "(default: 20 bundled prompts: code, math, structured, chat, prose)",
    )
    group.add_argument(
        "--kinds",
        type=comma_list,
        default=[],
        help="kinds to take, such as code,prose (default: all)",
    )
    group.add_argument(
        "--limit",
        type=int,
        default=limit,
        help=f"prompts to take of each kind, -1 for all (default: {limit})",
    )
    add_template_option(group)
    group.add_argument(
        "-m",
        "--max-tokens",
        type=int,
        default=max_tokens,
        help=f"tokens to emit at most (default: {max_tokens})",
    )


def chosen_prompts(args: argparse.Namespace) -> list[Prompt]:
    """The prompts that the options choose.

    Raises:
        UserError: an option is wrong, or the file is.
    """
    at_least_one("max_tokens", args.max_tokens)
    if args.limit != -1:
        at_least_one("limit", args.limit)
    return select(read_prompts(args.prompts), args.kinds, None if args.limit == -1 else args.limit)


def as_they_are(
    args: argparse.Namespace, tokenizer: TokenizerWrapper, prompts: Iterable[Prompt]
) -> list[Case]:
    """The prompts as the target receives them, neither filled up nor cut."""
    template = args.chat_template_config
    return [Case(p.id, p.kind, 0, prompt_tokens(tokenizer, p, template)) for p in prompts]


def comma_list(text: str) -> list[str]:
    """The different parts of a comma-separated list; for argparse's ``type``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts) or len(set(parts)) < len(parts):
        raise argparse.ArgumentTypeError(f"must be a list without repetitions, not {text!r}")
    return parts


def number_list(text: str) -> list[int]:
    """Whole numbers from a list such as ``0,4096``; for argparse's ``type``."""
    parts = comma_list(text)
    if wrong := [part for part in parts if not (part.isascii() and part.isdigit())]:
        raise argparse.ArgumentTypeError(f"takes whole numbers, not {wrong[0]!r}")
    return [int(part) for part in parts]


def block_sizes(text: str) -> list[BlockSize]:
    """Block sizes from a list such as ``1,4,auto``; for argparse's ``type``."""
    parts = comma_list(text)
    wrong = [p for p in parts if p != "auto" and not (p.isascii() and p.isdigit() and int(p))]
    if wrong:
        raise argparse.ArgumentTypeError(
            f"takes whole numbers from 1 up and auto, such as 4,8,auto; not {wrong[0]!r}"
        )
    return [part if part == "auto" else int(part) for part in parts]
