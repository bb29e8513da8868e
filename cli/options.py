"""Options that several commands share."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Literal

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UserError
from ..generation.request import at_least_one
from ..loading.known_drafter import choose_drafter
from ..loading.loader import load
from ..loading.pair import Pair
from ..measure.arms import BlockSize
from ..measure.prompts import Prompt, read_prompts, select
from .progress import Progress


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


def json_object(option: str, text: str) -> dict[str, Any]:
    """The JSON object that an option was given.

    Raises:
        UserError: it is not one.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{option} is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise UserError(f"{option} must be a JSON object, not {text}.")
    return value


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
    group.add_argument("--kinds", help="kinds to take, such as code,prose (default: all)")
    group.add_argument(
        "--limit",
        type=int,
        default=limit,
        help=f"prompts to take of each kind, -1 for all (default: {limit})",
    )
    group.add_argument(
        "--chat-template-config",
        default="{}",
        help="JSON options for the chat template, such as '{\"enable_thinking\": false}'",
    )
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
    kinds = [] if args.kinds is None else comma_list("--kinds", args.kinds)
    return select(read_prompts(args.prompts), kinds, None if args.limit == -1 else args.limit)


def comma_list(option: str, text: str) -> list[str]:
    """The different parts of a comma-separated list.

    Raises:
        UserError: a part is empty or repeated.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts) or len(set(parts)) < len(parts):
        raise UserError(f"{option} must be a list such as a,b without repetitions, not {text!r}.")
    return parts


def block_sizes(text: str) -> list[BlockSize]:
    """Block sizes from a list such as ``1,4,auto``.

    Raises:
        UserError: it is not such a list.
    """
    parts = comma_list("--block-sizes", text)
    wrong = [p for p in parts if p != "auto" and not (p.isascii() and p.isdigit() and int(p))]
    if wrong:
        raise UserError(
            f"--block-sizes takes whole numbers from 1 up and auto, such as 4,8,auto; not "
            f"{wrong[0]!r}."
        )
    return [part if part == "auto" else int(part) for part in parts]
