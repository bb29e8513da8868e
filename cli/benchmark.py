"""``dflash-mlx benchmark``: plain decoding, DFlash and mlx-lm side by side, in one process."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UserError, at_least_one, counted
from ..files import replacing
from ..generation.options import Options
from ..loading.loader import load
from ..loading.pair import Pair
from ..measure.alternation import Plan, measure_all, warm_up
from ..measure.arms import Arm, in_words, mlx_lm_arms, our_arms, usable_block_sizes
from ..measure.compare import compare
from ..measure.machine import describe_machine, describe_model
from ..measure.page import page
from ..measure.prompts import Prompt, pad, prompt_tokens
from ..measure.report import Report, report_files
from ..measure.run import Case
from ..measure.tables import markdown_report, text_report
from .arguments import (
    add_model_options,
    add_options,
    add_prompt_options,
    block_sizes,
    chosen_prompts,
    describe_pair,
    generation_options,
    load_pair,
    number_list,
)
from .progress import Progress

# Characters of a prompt or an answer in a report: the end of a prompt that was filled up.
MOST_SHOWN = 4000


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register the ``benchmark`` command."""
    parser = subparsers.add_parser(
        "benchmark",
        description=(
            "Measure plain decoding, DFlash at several block sizes and mlx-lm on the same prompts, "
            "in alternating order. Without --model the embedded default pair is measured."
        ),
    )
    parser.set_defaults(run=partial(run, parser))
    add_model_options(parser)
    _add_arm_options(parser.add_argument_group("what is compared"))
    add_prompt_options(parser, limit=2, max_tokens=128)
    amount = parser.add_argument_group("amount and output")
    amount.add_argument(
        "--context",
        metavar="N,…",
        type=number_list,
        default=[0],
        help="lengths of the prompts in tokens, to which other text before them fills them up; 0 "
        "takes them as they are, as in 0,4096,16384 (default: 0)",
    )
    amount.add_argument(
        "--repeats", type=int, default=3, help="runs of each arm on each prompt (default: 3)"
    )
    amount.add_argument(
        "--output",
        metavar="PATH",
        help="write JSON, Markdown and a page with plots: into this folder if it exists or ends "
        "in /, else to PATH.json, PATH.md and PATH.html",
    )
    amount.add_argument(
        "--compare",
        type=Path,
        nargs=2,
        metavar=("A.json", "B.json"),
        help="measure nothing; put two written reports side by side, and write that to the file "
        "--output, if it is given",
    )


def _add_arm_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--block-sizes",
        type=block_sizes,
        metavar="N,…",
        help="as in 1,2,4,8,16,auto (default: 4, 8, 16 and the drafter's, up to that, and auto)",
    )
    group.add_argument(
        "--no-mlx-lm", action="store_true", help="leave out mlx-lm's own plain decoding"
    )
    group.add_argument(
        "--mlx-draft-model",
        help="a small model, a folder or a Hugging Face id, for mlx-lm's classic speculation",
    )
    group.add_argument(
        "--num-draft-tokens", type=int, default=2, help="tokens it drafts (default: 2)"
    )
    add_options(group, Options, ("temp", "seed", "acceptance"), seed=0)


def run(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """Measure, print the tables, and write the files that were asked for.

    Returns:
        0, 1 if a run failed, or 130 after Ctrl-C; what was measured till then is printed and
        written.

    Raises:
        UserError: an option is wrong, or a model cannot be loaded.
    """
    if args.compare is not None:
        _refuse_others(parser, args)
        compared = compare(*map(Report.from_json, args.compare), *map(str, args.compare))
        print(compared)
        if args.output is not None:
            with replacing(Path(args.output).expanduser()) as partial:
                partial.write_text(compared + "\n", encoding="utf-8")
        return 0
    prompts = chosen_prompts(args)
    options = _checked(args)
    files = [] if args.output is None else report_files(args.output)
    report, failure = None, None
    try:
        pair, tokenizer = load_pair(args)
        with Progress("run") as progress:
            cases, notes = _cases(args, pair, tokenizer, prompts, progress)
            arms, more = _arms(args, options, pair, tokenizer)
            usable, refused = warm_up(arms, cases, progress.announce)
            plan = Plan(usable, cases, args.repeats, args.max_tokens)
            report = _report(args, options, pair, plan, [*notes, *more, *refused])
            progress.expect(plan.runs)
            answers: dict[str, list[int]] = {}
            told = progress.announce, progress.advance
            try:
                failure = measure_all(plan, report.runs, answers, *told)
            finally:
                report.texts = _texts(cases, answers, tokenizer)
            report.notes += [failure] if failure else []
    except KeyboardInterrupt:
        if report is None:
            raise
    _write(report, files)
    return 1 if failure else 130 if report.interrupted else 0


def _refuse_others(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    defaults = vars(parser.parse_args([]))
    others = defaults.keys() - {"compare", "output"}
    given = [name for name in defaults if name in others and getattr(args, name) != defaults[name]]
    if given:
        raise UserError(
            f"--compare measures nothing, so --{given[0].replace('_', '-')} has no effect; "
            "leave it out."
        )


def _checked(args: argparse.Namespace) -> Options:
    """The generation options. A wrong value of any option should not wait for a model to load."""
    at_least_one("repeats", args.repeats)
    at_least_one("num_draft_tokens", args.num_draft_tokens)
    if args.num_draft_tokens != 2 and args.mlx_draft_model is None:
        raise UserError("--num-draft-tokens is for --mlx-draft-model, which was not given.")
    for name, usual in (("seed", 0), ("acceptance", "coupled")):
        if (value := getattr(args, name)) != usual and not args.temp:
            raise UserError(f"--{name} {value} is for sampling; give a --temp above 0.")
    return generation_options(args)


def _cases(
    args: argparse.Namespace,
    pair: Pair,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[Prompt],
    progress: Progress,
) -> tuple[list[Case], list[str]]:
    """Every prompt at every length, and a sentence on those that are too long for one."""
    progress.announce("preparing prompts")
    tokenize = partial(prompt_tokens, tokenizer, options=args.chat_template_config)
    longest, cases, notes = pair.context_length, [], []
    for context in args.context:
        for prompt in prompts:
            tokens = pad(prompt, context, tokenize) if context else tokenize(prompt)
            if tokens is None:
                notes.append(
                    f"Left out prompt {prompt.id} at {counted(context, 'token')}: it is longer by "
                    "itself."
                )
                continue
            if longest is not None and len(tokens) + args.max_tokens > longest:
                raise UserError(
                    f"Prompt {prompt.id} with {counted(len(tokens), 'token')} and --max-tokens "
                    f"{args.max_tokens} does not fit in the target's context of {longest}."
                )
            cases.append(Case(prompt.id, prompt.kind, context, tokens))
    if not cases:
        raise UserError(f"No prompt is as short as --context {','.join(map(str, args.context))}.")
    return cases, notes


def _arms(
    args: argparse.Namespace, options: Options, pair: Pair, tokenizer: TokenizerWrapper
) -> tuple[list[Arm], list[str]]:
    if pair.drafter is None:
        if args.block_sizes is not None:
            raise UserError("--block-sizes needs a drafter; name one with --draft-model.")
        sizes, notes = [], ["No drafter was given, so no block size was measured."]
    else:
        largest = pair.drafter.block_size
        usual = [*(size for size in (4, 8, 16) if size < largest), largest, "auto"]
        sizes, notes = usable_block_sizes(args.block_sizes or usual, largest)
    arms = our_arms(pair, tokenizer, options, sizes)
    draft_model = None
    if args.mlx_draft_model is not None:
        draft_model = _load_draft_model(args.mlx_draft_model, tokenizer)
    theirs = mlx_lm_arms(pair.model, tokenizer, options, draft_model, args.num_draft_tokens)
    return [*arms, *theirs[args.no_mlx_lm :]], notes


def _load_draft_model(name: str, tokenizer: TokenizerWrapper) -> nn.Module:
    try:
        pair, own_tokenizer = load(name, draft_model=False)
    except UserError as error:
        raise UserError(f"--mlx-draft-model: {error}") from error
    if own_tokenizer.vocab_size != tokenizer.vocab_size:
        raise UserError(
            f"{name} has another tokenizer than the target ({own_tokenizer.vocab_size} tokens, not "
            f"{tokenizer.vocab_size})."
        )
    return pair.model


def _report(
    args: argparse.Namespace, options: Options, pair: Pair, plan: Plan, notes: list[str]
) -> Report:
    draft = args.mlx_draft_model
    mlx_lm_draft_model = {"mlx_lm_draft_model": None if draft is None else describe_model(draft)}
    models = describe_pair(args, pair) | mlx_lm_draft_model
    settings = {
        "choice": in_words(options),
        "max_tokens": args.max_tokens,
        "repeats": args.repeats,
        "prompts": len({case.prompt for case in plan.cases}),
        "prompt_file": "bundled" if args.prompts is None else args.prompts.name,
        "contexts": args.context,
        "adapter_path": args.adapter_path,
        "command": shlex.join(["dflash-mlx", *args.words]),
    }
    date, arms = datetime.now(UTC).isoformat(timespec="seconds"), [arm.name for arm in plan.arms]
    return Report(date, describe_machine(), models, settings, arms, plan.runs, notes)


def _texts(
    cases: Sequence[Case], answers: Mapping[str, list[int]], tokenizer: TokenizerWrapper
) -> list[dict[str, str]]:
    """Each prompt, as the target got it at the first length, and the answer to it."""
    first = {case.prompt: case.tokens for case in reversed(cases)}

    def text(tokens: list[int]) -> str:
        whole = tokenizer.decode(tokens)
        return whole if len(whole) <= MOST_SHOWN else f"… {whole[-MOST_SHOWN:]}"

    return [
        {"prompt": prompt, "question": text(first[prompt]), "answer": text(tokens)}
        for prompt, tokens in answers.items()
    ]


def _write(report: Report, files: Sequence[Path]) -> None:
    print(text_report(report))
    if any(run.same_text is False for run in report.runs):
        print("\nSome texts are not plain's; `dflash-mlx verify` says where and why.")
    if files:
        contents = (report.to_json(), markdown_report(report), page(report))
        for file, content in zip(files, contents, strict=True):
            with replacing(file) as partial:
                partial.write_text(content, encoding="utf-8")
        print(f"Wrote {', '.join(map(str, files))}", file=sys.stderr)
