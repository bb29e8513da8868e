"""``dflash-mlx evaluate``: τ of a pair by kind of prompt and by position, from real rounds."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:
    from ..train.rounds import Score


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register the ``evaluate`` command."""
    parser = subparsers.add_parser(
        "evaluate",
        help="measure how many tokens a round emits, by kind of prompt",
        description=(
            "Generate the answers to a file of prompts and report τ, the tokens a round emits "
            "(bonus included), by kind of prompt and by position in the block. Without --model "
            "the embedded pair is used."
        ),
    )
    parser.set_defaults(run=run)
    parser.add_argument("--model", help="the target: a folder or a Hugging Face id")
    parser.add_argument("--draft-model", help="the drafter: a folder or a Hugging Face id")
    parser.add_argument(
        "--prompts",
        type=Path,
        required=True,
        help="JSONL of prompts or messages; a row's kind, if it has one, groups the report",
    )
    parser.add_argument("-m", "--max-tokens", type=int, default=256, help="(default: 256)")
    parser.add_argument("--block-size", type=int, help="rows a round (default: the drafter's)")
    parser.add_argument("--temp", type=float, default=0.0, help="(default: 0, greedy)")
    parser.add_argument("--top-p", type=float, default=0.0, help="(default: all)")
    parser.add_argument("--seed", type=int, help="of the sampling (default: a random one)")
    parser.add_argument(
        "--chat-template-config", default="{}", help="JSON options for the chat template"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N prompts")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Generate and report.

    Raises:
        UserError: an option is wrong, or the pair or the prompts cannot be read.
    """
    if args.model is not None and args.draft_model is None:
        raise UserError("There is no drafter to evaluate; give --draft-model.")
    if args.max_tokens < 1 or (args.limit is not None and args.limit < 1):
        raise UserError("--max-tokens and --limit must be 1 or more.")
    # Imported here because they load mlx-lm, which `--help` should not wait for.
    from ..loading import load
    from ..train.answers import Question
    from ..train.encode import Encoder
    from ..train.rounds import play, total
    from ..train.rows import read_rows
    from .train import json_object

    rows = read_rows(args.prompts)[: args.limit]
    template_options = json_object(args.chat_template_config)
    pair, tokenizer = load(args.model, args.draft_model)
    encoder = Encoder(tokenizer, template_options)
    questions = [Question(encoder.question(row), row.kind) for row in rows]
    scores = play(
        pair,
        tokenizer,
        questions,
        max_tokens=args.max_tokens,
        block_size=args.block_size,
        temp=args.temp,
        top_p=args.top_p,
        seed=args.seed,
    )
    scores |= {"total": total(scores)}
    if args.json:
        print(json.dumps({kind: _numbers(score) for kind, score in scores.items()}, indent=4))
    else:
        print(_table(scores))
    return 0


def _numbers(score: "Score") -> dict[str, float | int | list[float]]:
    return {
        "prompts": score.prompts,
        "tokens": score.tokens,
        "rounds": score.rounds.total,
        "tau": score.tau,
        "acceptance": score.rounds.acceptance(),
        "tokens_per_second": score.tokens / max(score.seconds, 1e-9),
    }


def _table(scores: "dict[str, Score]") -> str:
    lines = [f"{'kind':<12} {'prompts':>7} {'tokens':>7} {'τ':>6}  accepted by position"]
    for kind, score in scores.items():
        rates = " ".join(f"{rate:.2f}" for rate in score.rounds.acceptance())
        lines.append(f"{kind:<12} {score.prompts:>7} {score.tokens:>7} {score.tau:>6.3f}  {rates}")
    return "\n".join(lines)
