"""``dflash-mlx verify``: prove on the user's own models that drafting does not change the text."""

import argparse

from ..errors import UserError
from ..generation.options import Options
from ..measure.arms import usable_block_sizes
from ..measure.lossless import Check, check_texts, lossless_report, number_of_checks
from .arguments import (
    add_model_options,
    add_options,
    add_prompt_options,
    as_they_are,
    block_sizes,
    chosen_prompts,
    generation_options,
    load_pair,
)
from .progress import Progress


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register the ``verify`` command."""
    parser = subparsers.add_parser(
        "verify",
        description=(
            "Generate with and without the drafter, greedily and by coupled sampling, and compare "
            "token by token; greedy text also with mlx-lm's. Says equal, or where the first "
            "difference is and how nearly the target could have chosen either token. Exit code 1 "
            "if rounding does not explain a difference."
        ),
    )
    parser.set_defaults(run=run)
    add_model_options(parser)
    add_prompt_options(parser, limit=1, max_tokens=64)
    group = parser.add_argument_group("what is verified")
    group.add_argument(
        "--block-sizes",
        type=block_sizes,
        metavar="N,…",
        help="as in 2,8,auto (default: the drafter's own, and auto)",
    )
    add_options(group, Options, ("temp", "seed"), temp=0.8, seed=1)
    group.add_argument("--strict", action="store_true", help="exit with 1 at a near-tie as well")


def run(args: argparse.Namespace) -> int:
    """Verify, and say what came out.

    Returns:
        0 when every difference is explained by rounding, 1 when one is not (with ``--strict``:
        when there is one), 130 after Ctrl-C, when the verdicts so far are printed.

    Raises:
        UserError: an option is wrong, or a model cannot be loaded.
    """
    prompts = chosen_prompts(args)
    sampling = generation_options(args)
    if not args.temp:
        raise UserError("--temp is that of the sampling; greedy text is verified in any case.")
    checks: list[Check] = []
    interrupted = False
    try:
        pair, tokenizer = load_pair(args)
        if pair.drafter is None:
            raise UserError(
                "There is nothing to verify without a drafter; name one: --draft-model."
            )
        largest = pair.drafter.block_size
        sizes, notes = usable_block_sizes(args.block_sizes or [largest, "auto"], largest)
        cases = as_they_are(args, tokenizer, prompts)
        with Progress("text") as progress:
            progress.expect(number_of_checks(len(cases), sizes))
            for check in check_texts(
                pair, tokenizer, cases, sizes, sampling, args.max_tokens, progress.announce
            ):
                checks.append(check)
                progress.advance()
    except KeyboardInterrupt:
        if not checks:
            raise
        interrupted = True
    print("\n".join([*notes, lossless_report(checks, tokenizer.decode)]))
    if interrupted:
        print("Interrupted: the rest was not verified.")
        return 130
    bad = {"different", "near-tie"} if args.strict else {"different"}
    return int(any(check.outcome in bad for check in checks))
