"""``dflash-mlx evaluate``: τ of a pair by kind of prompt and by position, from real rounds."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict

from ..errors import UserError, at_least_one, counted
from ..generation.options import Options
from ..measure.arms import in_words, our_arms
from ..measure.run import Run, measure
from ..measure.score import Score, by_kind
from .arguments import (
    add_model_options,
    add_options,
    add_prompt_options,
    as_they_are,
    chosen_prompts,
    describe_pair,
    generation_options,
    load_pair,
)
from .json_output import print_json
from .progress import Progress


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register the ``evaluate`` command."""
    parser = subparsers.add_parser(
        "evaluate",
        description=(
            "Generate the answers to prompts and report τ, the tokens a round emits (bonus "
            "included), by kind of prompt and by position in the block. Without --model the "
            "embedded pair is used."
        ),
    )
    parser.set_defaults(run=run)
    add_model_options(parser)
    add_prompt_options(parser, limit=-1, max_tokens=256)
    group = parser.add_argument_group("rounds")
    group.add_argument(
        "--block-size",
        type=int,
        help="tokens that one pass of the target checks, the drafts and the token before them "
        "(default: the drafter's)",
    )
    add_options(group, Options, ("temp", "top_p", "seed"))
    group.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Generate and report.

    Returns:
        0, or 130 after Ctrl-C, when the scores so far are printed.

    Raises:
        UserError: an option is wrong, or the pair or the prompts cannot be read.
    """
    prompts = chosen_prompts(args)
    if args.block_size is not None:
        at_least_one("block_size", args.block_size)
    sampling = generation_options(args)
    if not args.temp and (args.top_p or args.seed is not None):
        name = "top_p" if args.top_p else "seed"
        raise UserError(f"`{name}` has no effect on greedy text; give `temp` as well.")
    runs: list[Run] = []
    interrupted = False
    try:
        pair, tokenizer = load_pair(args)
        if pair.drafter is None:
            raise UserError("There is no drafter to evaluate; give --draft-model.")
        largest = pair.drafter.block_size
        size = largest if args.block_size is None else args.block_size
        if not 1 <= size <= largest:
            raise UserError(
                f"`block_size` must be between 1 and {largest}, which this drafter was trained "
                f"for, not {size}."
            )
        with Progress("text") as progress:
            cases = as_they_are(args, tokenizer, prompts)
            _, arm = our_arms(pair, tokenizer, sampling, [size])
            progress.announce("generating")
            progress.expect(len(cases))
            for case in cases:
                runs.append(measure(arm, case, args.max_tokens, 0)[0])
                progress.advance()
    except KeyboardInterrupt:
        if not runs:
            raise
        interrupted = True
    kinds, total = by_kind(runs), Score.of(runs)
    if args.json:
        scores = {kind: asdict(score) for kind, score in kinds.items()}
        settings = {"block_size": size, "choice": in_words(sampling), "max_tokens": args.max_tokens}
        models = describe_pair(args, pair)
        print_json(models | settings | {"kinds": scores, "total": asdict(total)})
    else:
        print(_table([*kinds.items(), ("total", total)]))
    if interrupted:
        asked = counted(len(cases), "prompt")
        print(f"Interrupted: {len(runs)} of {asked} answered.", file=sys.stderr)
        return 130
    return 0


def _table(scores: Sequence[tuple[str, Score]]) -> str:
    lines = [f"{'kind':<12} {'prompts':>7} {'tokens':>7} {'τ':>6}  accepted by position"]
    for kind, score in scores:
        rates = " ".join(f"{rate:.2f}" for rate in score.acceptance)
        lines.append(f"{kind:<12} {score.prompts:>7} {score.tokens:>7} {score.tau:>6.3f}  {rates}")
    return "\n".join(lines)
