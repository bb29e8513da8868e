"""``dflash-mlx train``: a drafter for a target, from prompts or from nothing."""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from ..errors import UserError
from ..train.design import Shape
from ..train.options import Options
from ..train.run import train
from ..train.world import PeerStopped
from ..train.written import Writing
from .options import json_object

# Options of the command that are the training's own; the others are put together below.
_DIRECT = {field.name for field in fields(Options)} - {"writing", "shape", "template_options"}

_DESCRIPTION = """\
Train a DFlash drafter for a target. Prompts come from --data, or the target invents them
(--self-prompts); it writes the answers itself, unless the data have some. What is needed to resume
is kept in OUTPUT/training, which may be removed when training is over.
"""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register the ``train`` command."""
    parser = subparsers.add_parser("train", description=_DESCRIPTION)
    parser.set_defaults(run=run)
    parser.add_argument("--model", help="the target (default: the embedded SmolLM2-135M-Instruct)")
    parser.add_argument("--adapter-path", help="folder with LoRA adapters for the target")
    parser.add_argument("--revision", help="branch, tag or commit of the target")
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="allow the target and its tokenizer to bring their own code",
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for the drafter")
    parser.add_argument(
        "--dtype",
        metavar="{float16,bfloat16,float32}",
        help="dtype of the drafter's weights in OUTPUT (default: the target's)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with an interrupted training in OUTPUT"
    )
    _add_data_options(parser.add_argument_group("data"))
    _add_drafter_options(parser.add_argument_group("drafter"))
    _add_objective_options(parser.add_argument_group("objective"))
    _add_loop_options(parser.add_argument_group("training"))


def _add_data_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--data",
        type=Path,
        help="JSONL of mlx-lm's formats (messages; prompt and completion; prompt; text), or a "
        "folder with train.jsonl and perhaps valid.jsonl",
    )
    group.add_argument(
        "--self-prompts",
        type=int,
        default=0,
        metavar="N",
        help="have the target invent N prompts by continuing the user's turn of its template",
    )
    group.add_argument(
        "--regenerate",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="have the target answer every prompt anew, or none (default: those without an answer)",
    )
    group.add_argument(
        "--max-tokens", type=int, default=512, help="longest answer to write (default: 512)"
    )
    group.add_argument(
        "--temp", type=float, default=0.0, help="temperature of answers (default: 0, greedy)"
    )
    group.add_argument("--top-p", type=float, default=0.0, help="nucleus of answers (default: all)")
    group.add_argument(
        "--generation-batch",
        type=int,
        default=32,
        help="texts that the target writes at a time (default: 32)",
    )
    group.add_argument(
        "--chat-template-config",
        default="{}",
        help="JSON options for the chat template, the same as in use later, such as "
        "'{\"enable_thinking\": false}'",
    )
    group.add_argument(
        "--max-seq-length", type=int, default=2048, help="cut longer sequences (default: 2048)"
    )
    group.add_argument(
        "--held-out",
        type=int,
        metavar="N",
        help="sequences to evaluate on (default: a twentieth, at most 32, or the first 32 of "
        "valid.jsonl)",
    )


def _add_drafter_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--init-from", help="begin with this drafter, a folder or a Hub id")
    group.add_argument("--layers", type=int, help="layers (default: 5; fewer for a small target)")
    group.add_argument("--taps", help="target layers to read, 0-based, such as 1,9,17 (default: 5)")
    group.add_argument("--block-size", type=int, help="anchor included (default: 16)")
    group.add_argument("--intermediate-size", type=int, help="of the MLPs (default: the target's)")
    group.add_argument(
        "--window", type=int, metavar="W", help="context rows that a layer sees (default: all)"
    )
    group.add_argument(
        "--causal", action="store_true", help="a row of a block sees only those before it"
    )
    group.add_argument(
        "--dflash2", action="store_true", help="with DFlash 2's convolutions and selector"
    )
    group.add_argument(
        "--draft-passes",
        type=int,
        choices=(1, 2),
        help="2: a second pass sees the first's leading tokens (default: 1)",
    )
    group.add_argument(
        "--draft-prefix",
        type=int,
        help="rows given in a second pass, anchor included (default: a quarter of the block)",
    )
    group.add_argument("--mask-token", type=int, help="token id (default: one that no text holds)")


def _add_objective_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--loss",
        choices=("ce", "kl"),
        default="ce",
        help="cross entropy, or the divergence from the target's distribution (default: ce)",
    )
    group.add_argument(
        "--weighting",
        choices=("decay", "dpace", "uniform"),
        default="decay",
        help="of a block's rows (default: decay)",
    )
    group.add_argument(
        "--gamma", type=float, help="of the decay (default: 7, 5, 4 for blocks of 16, 10, 8)"
    )
    group.add_argument("--dpace-alpha", type=float, help="of dpace (default: 0.5)")
    group.add_argument("--kd-temperature", type=float, help="temperature of kl (default: 1)")
    group.add_argument(
        "--anchors", type=int, default=512, help="blocks a sequence and step (default: 512)"
    )


def _add_loop_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--epochs", type=float, help="(default: 6)")
    group.add_argument("--steps", type=int, help="updates, instead of epochs")
    group.add_argument(
        "--batch-size",
        type=int,
        default=8,
        help="sequences a step; one is in memory at a time (default: 8)",
    )
    group.add_argument("--learning-rate", type=float, default=6e-4, help="peak (default: 6e-4)")
    group.add_argument(
        "--warmup", type=float, default=0.04, help="fraction of the steps (default: 0.04)"
    )
    group.add_argument("--clip", type=float, default=1.0, help="gradient norm (default: 1)")
    group.add_argument("--weight-decay", type=float, default=0.0, help="(default: 0)")
    group.add_argument(
        "--chunk-blocks",
        type=int,
        default=64,
        help="blocks whose logits exist at a time; fewer need less memory (default: 64)",
    )
    twentieth = "steps (default: a twentieth of all, at least 10)"
    group.add_argument("--eval-every", type=int, help=twentieth)
    group.add_argument("--save-every", type=int, help=twentieth)
    group.add_argument(
        "--patience",
        type=int,
        default=0,
        help="evaluations without a better τ before training stops (default: never)",
    )
    group.add_argument(
        "--time-limit", type=float, metavar="MIN", help="minutes of training in this run"
    )
    group.add_argument(
        "--cache-features",
        type=float,
        default=0.0,
        metavar="GB",
        help="keep the target's features on disk, up to so many gigabytes; what is there stays, "
        "also if it is more (default: none)",
    )
    group.add_argument("--seed", type=int, default=0, help="(default: 0)")


def run(args: argparse.Namespace) -> int:
    """Train, printing what happens.

    Returns:
        0, 1 if another process of the training has stopped, or 130 after Ctrl-C.

    Raises:
        UserError: an option is wrong or does not fit the target or the data.
    """
    writing = Writing(args.max_tokens, args.temp, args.top_p, args.seed, args.generation_batch)
    shape = Shape(
        layers=args.layers,
        taps=_taps(args.taps),
        block_size=args.block_size,
        intermediate_size=args.intermediate_size,
        window=args.window,
        causal=args.causal,
        dflash2=args.dflash2,
        mask_token=args.mask_token,
    )
    options = Options(
        writing=writing,
        shape=shape,
        template_options=json_object("--chat-template-config", args.chat_template_config),
        **{name: value for name, value in vars(args).items() if name in _DIRECT},
    )
    try:
        train(options, lambda line: print(line, flush=True))
    except PeerStopped as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if not (args.output / "training").is_dir():
            raise
        print("interrupted; the same command with --resume goes on", file=sys.stderr)
        return 130
    return 0


def _taps(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"--taps must be layers with commas between, not {text!r}.") from error
