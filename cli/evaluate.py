"""``dflash-mlx evaluate``: τ of a pair by kind of prompt and by position, from real rounds."""

import argparse
import json
import sys

from ..engine.sampling import Sampling
from ..errors import UserError, counted
from ..measure.prompts import prompt_tokens
from ..train.rounds import Question, Score, play, total
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
    Sampling(args.temp, args.top_p, seed=args.seed or 0)
    if not args.temp and (args.top_p or args.seed is not None):
        name = "top_p" if args.top_p else "seed"
        raise UserError(f"{name} has no effect on greedy text; give --temp as well.")
    scores: dict[str, Score] = {}
    interrupted = False
    try:
        pair, tokenizer = load_pair(args)
        if pair.drafter is None:
            raise UserError("There is no drafter to evaluate; give --draft-model.")
        with Progress("text") as progress:
            questions = [Question(prompt_tokens(tokenizer, p, template), p.kind) for p in prompts]
            options = {
                name: getattr(args, name) for name in ("max_tokens", "temp", "top_p", "seed")
            }
            progress.announce("generating")
            progress.expect(len(questions))
            for so_far in play(pair, tokenizer, questions, args.block_size, **options):
                scores = so_far
                progress.advance()
    except KeyboardInterrupt:
        if not scores:
            raise
        interrupted = True
    scores = scores | {"total": total(scores)}
    if args.json:
        print(json.dumps({kind: _numbers(score) for kind, score in scores.items()}, indent=4))
    else:
        print(_table(scores))
    if interrupted:
        done = scores["total"].prompts
        asked = counted(len(questions), "prompt")
        print(f"Interrupted: {done} of {asked} answered.", file=sys.stderr)
        return 130
    return 0


def _numbers(score: Score) -> dict[str, float | int | list[float]]:
    return {
        "prompts": score.prompts,
        "tokens": score.tokens,
        "rounds": score.rounds.total,
        "tau": score.tau,
        "acceptance": score.rounds.acceptance(),
        "tokens_per_second": score.tokens / max(score.seconds, 1e-9),
    }


def _table(scores: dict[str, Score]) -> str:
    lines = [f"{'kind':<12} {'prompts':>7} {'tokens':>7} {'τ':>6}  accepted by position"]
    for kind, score in scores.items():
        rates = " ".join(f"{rate:.2f}" for rate in score.rounds.acceptance())
        lines.append(f"{kind:<12} {score.prompts:>7} {score.tokens:>7} {score.tau:>6.3f}  {rates}")
    return "\n".join(lines)
