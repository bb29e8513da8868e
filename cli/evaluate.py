"""``dflash-mlx evaluate``: τ of a pair by kind of prompt and by position, from real rounds."""

import argparse
import dataclasses
import json
import sys

import mlx.core as mx

from ..engine.sampling import Sampling
from ..errors import UserError, counted
from ..measure.arms import our_arms
from ..measure.prompts import prompt_tokens
from ..measure.run import Case, Run, measure
from ..measure.score import Score, by_kind
from .options import add_model_options, add_prompt_options, chosen_prompts, json_object, load_pair
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
    group.add_argument("--block-size", type=int, help="rows a round (default: the drafter's)")
    group.add_argument("--temp", type=float, default=0.0, help="(default: 0, greedy)")
    group.add_argument("--top-p", type=float, default=0.0, help="nucleus mass (default: all)")
    group.add_argument("--seed", type=int, help="of the sampling (default: a random one)")
    group.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Generate and report.

    Returns:
        0, or 130 after Ctrl-C, when the scores so far are printed.

    Raises:
        UserError: an option is wrong, or the pair or the prompts cannot be read.
    """
    prompts = chosen_prompts(args)
    template = json_object("--chat-template-config", args.chat_template_config)
    seed = int(mx.random.randint(0, 2**31 - 1).item()) if args.seed is None else args.seed
    sampling = Sampling(args.temp, args.top_p, seed=seed)
    if not args.temp and (args.top_p or args.seed is not None):
        name = "top_p" if args.top_p else "seed"
        raise UserError(f"{name} has no effect on greedy text; give --temp as well.")
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
                f"block_size must be between 1 and {largest}, which this drafter was trained for, "
                f"not {size}."
            )
        with Progress("text") as progress:
            cases = [Case(p.id, p.kind, 0, prompt_tokens(tokenizer, p, template)) for p in prompts]
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
    scores = by_kind(runs)
    if args.json:
        print(json.dumps({k: dataclasses.asdict(score) for k, score in scores.items()}, indent=4))
    else:
        print(_table(scores))
    if interrupted:
        asked = counted(len(cases), "prompt")
        print(f"Interrupted: {len(runs)} of {asked} answered.", file=sys.stderr)
        return 130
    return 0


def _table(scores: dict[str, Score]) -> str:
    lines = [f"{'kind':<12} {'prompts':>7} {'tokens':>7} {'τ':>6}  accepted by position"]
    for kind, score in scores.items():
        rates = " ".join(f"{rate:.2f}" for rate in score.acceptance)
        lines.append(f"{kind:<12} {score.prompts:>7} {score.tokens:>7} {score.tau:>6.3f}  {rates}")
    return "\n".join(lines)
