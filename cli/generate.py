"""``dflash-mlx generate``: one prompt, streamed, with its statistics."""

import argparse
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..engine.request import AUTO
from ..errors import UserError
from ..generation.auto_size import tune
from ..generation.chat import chat_tokens
from ..generation.options import Options
from ..generation.response import GenerationResponse, report
from ..generation.stream import stream_generate
from .arguments import (
    add_model_options,
    add_options,
    add_template_option,
    generation_options,
    load_pair,
)
from .progress import Steps
from .tune import tuning_progress

# What mlx-lm's command has and this one has not.
_MLX_LM_FLAGS = {
    "--num-draft-tokens": "is --block-size here, which counts the last token of the text as well: "
    "--num-draft-tokens 3 is --block-size 4.",
    "--use-default-chat-template": "does nothing in mlx-lm either: the tokenizer's own chat "
    "template is used. Leave it out.",
    "--prompt-cache-file": "is not read by this command; in Python, load_prompt_cache of "
    "mlx_lm.models.cache reads such a file for the prompt_cache of stream_generate.",
    "--quantize-activations": "is not supported: only weights and the cache may be quantized.",
    "-qa": "is not supported: only weights and the cache may be quantized.",
    "--image": "is not supported: prompts are text.",
}


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register the ``generate`` command."""
    parser = subparsers.add_parser(
        "generate",
        description=(
            "Generate text with a target and its drafter. Without --model the embedded default "
            "pair is used (SmolLM2-135M-Instruct, fetched once, 93 MB)."
        ),
    )
    parser.set_defaults(run=run)
    add_model_options(parser)
    _add_prompt_options(parser.add_argument_group("prompt"))
    add_options(parser, Options)
    parser.add_argument("--quiet", action="store_true", help="print the text alone")
    parser.add_argument(
        "--verbose",
        type=_yes_or_no,
        nargs="?",
        const=True,
        help="say also which way the drafter's kernels run; False is --quiet, as in mlx-lm",
    )
    parser.not_ours = _MLX_LM_FLAGS


def _yes_or_no(text: str) -> bool:
    return text.lower() not in ("false", "f")


def _add_prompt_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-p", "--prompt", required=True, help="the prompt; - reads it from standard input"
    )
    group.add_argument("--system-prompt", help="system message for the chat template")
    group.add_argument("--prefill-response", help="beginning of the answer, to be continued")
    group.add_argument(
        "--ignore-chat-template", action="store_true", help="use the prompt as it is"
    )
    add_template_option(group)
    group.add_argument(
        "--extra-eos-token",
        action="extend",
        nargs="+",
        default=[],
        metavar="TOKEN",
        help="further tokens, or their ids, that end the text",
    )


def run(args: argparse.Namespace) -> int:
    """Generate, and print the text and its statistics.

    Returns:
        0, or 130 after Ctrl-C, when the statistics so far are printed.

    Raises:
        UserError: an option is wrong, or a model cannot be loaded.
    """
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    if any(0xD800 <= ord(character) < 0xE000 for character in prompt):
        raise UserError("The prompt is not valid UTF-8 text.")
    if not prompt.strip():
        raise UserError("The prompt is empty; give some text.")
    if not args.draft and (args.draft_model or args.draft_revision):
        raise UserError(
            "--no-draft decodes plainly, without --draft-model and --draft-revision; leave out "
            "the one or the others."
        )
    args.quiet = args.quiet or args.verbose is False
    options = generation_options(args)
    model, tokenizer = load_pair(args, draft=args.draft, quiet=args.quiet)
    for token in args.extra_eos_token:
        known = token.isdecimal() or token in tokenizer.get_vocab()
        if not known:
            raise UserError(f"--extra-eos-token: the target has no token {token!r}.")
        tokenizer.add_eos_token(token)
    tokens = _prompt_tokens(tokenizer, prompt, args)
    progress = Steps("Prompt", "tok", more_than=args.prefill_step_size)
    more = {"prompt_progress_callback": progress}
    if options.excludes:
        spared = [*tokenizer.encode("\n", add_special_tokens=False), *tokenizer.eos_token_ids]
        more["xtc_special_tokens"] = spared
    # What is wrong with the prompt is found here, before anything is measured for it.
    responses = stream_generate(model, tokenizer, tokens, **vars(options) | more)
    drafts = args.draft and model.drafter is not None and args.max_tokens not in (0, 1)
    if args.block_size == AUTO and drafts:
        tune(model, tuning_progress(shown=not args.quiet))
    return _print(responses, args.quiet, bool(args.verbose))


def _print(responses: Iterator[GenerationResponse], quiet: bool, verbose: bool) -> int:
    code, last = 0, None
    with _warnings_afterwards():
        try:
            if not quiet:
                print("=" * 10)
            for last in responses:
                print(last.text, end="", flush=True)
        except KeyboardInterrupt:
            code = 130
        print(flush=True)
    if not quiet:
        print("=" * 10)
        print(report(last, verbose) if last else "Interrupted before the first token.")
    return code


@contextmanager
def _warnings_afterwards() -> Iterator[None]:
    """Show warnings below the text, not in it."""
    warned: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as warned:
            yield
    finally:
        for w in warned:
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)


def _prompt_tokens(tokenizer: TokenizerWrapper, prompt: str, args: argparse.Namespace) -> list[int]:
    if args.ignore_chat_template or not tokenizer.has_chat_template:
        if args.system_prompt or args.prefill_response or args.chat_template_config:
            raise UserError(
                "--system-prompt, --prefill-response and --chat-template-config need a chat "
                "template, and none is used here."
            )
        return tokenizer.encode(prompt)
    messages = [{"role": "user", "content": prompt}]
    if args.system_prompt:
        messages.insert(0, {"role": "system", "content": args.system_prompt})
    if args.prefill_response:
        messages.append({"role": "assistant", "content": args.prefill_response})
    return chat_tokens(
        tokenizer,
        messages,
        args.chat_template_config,
        continue_final_message=bool(args.prefill_response),
    )
