"""Options that several commands share."""

import argparse

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..loading import load
from ..pair import Pair


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add what :func:`load_pair` reads."""
    group = parser.add_argument_group("models")
    group.add_argument("--model", help="the target: a folder or a Hugging Face id")
    group.add_argument(
        "--draft-model",
        help="the drafter: a folder or a Hugging Face id, in MLX or PyTorch format",
    )
    group.add_argument("--revision", help="branch, tag or commit of the target")
    group.add_argument("--draft-revision", help="branch, tag or commit of the drafter")
    group.add_argument("--adapter-path", help="folder with LoRA adapters for the target")
    group.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="allow the target and its tokenizer to bring their own code",
    )


def load_pair(args: argparse.Namespace) -> tuple[Pair, TokenizerWrapper]:
    """Load what the model options name; the embedded pair if they name nothing.

    Raises:
        UserError: it cannot be loaded.
    """
    return load(
        args.model,
        args.draft_model,
        adapter_path=args.adapter_path,
        revision=args.revision,
        draft_revision=args.draft_revision,
        trust_remote_code=args.trust_remote_code,
        tokenizer_config={"trust_remote_code": True} if args.trust_remote_code else None,
    )
