"""``dflash-mlx generate``: one prompt, streamed, with its statistics."""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from mlx_lm.generate import DEFAULT_QUANTIZED_KV_START
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tqdm import tqdm

from ..engine.penalties import Penalties
from ..engine.sampling import ACCEPTANCE, Sampling
from ..errors import UserError, at_least_one
from ..generation.auto_size import tune
from ..generation.chat import chat_tokens
from ..generation.kv import GROUP_SIZE
from ..generation.request import AUTO, check_max_tokens, stop_strings
from ..generation.response import GenerationResponse, report
from ..generation.stream import stream_generate
from .options import add_model_options, json_object, load_pair
from .tune import TuningProgress

_PENALTIES = ("repetition", "presence", "frequency")


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
    _add_cache_options(parser.add_argument_group("the target's cache"))
    _add_sampling_options(parser.add_argument_group("sampling"))

    rounds = parser.add_argument_group("speculation and output")
    rounds.add_argument(
        "--block-size",
        type=_block_size,
        default=AUTO,
        metavar="{auto,N}",
        help="rows a round verifies, anchor included; auto, the default, chooses for each round "
        "what is fastest for this text on this machine, plain decoding included (the first use of "
        "a pair measures that for some seconds)",
    )
    rounds.add_argument(
        "--no-draft", action="store_true", help="decode plainly, without loading a drafter"
    )
    rounds.add_argument(
        "-m",
        "--max-tokens",
        type=int,
        default=256,
        help="tokens to emit, -1 for no limit (default: 256)",
    )
    rounds.add_argument(
        "--stop", action="append", default=[], help="a string that ends the text; repeatable"
    )
    rounds.add_argument("--quiet", action="store_true", help="print the text alone")


def _add_prompt_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-p", "--prompt", required=True, help="the prompt; - reads it from standard input"
    )
    group.add_argument("--system-prompt", help="system message for the chat template")
    group.add_argument("--prefill-response", help="beginning of the answer, to be continued")
    group.add_argument(
        "--ignore-chat-template", action="store_true", help="use the prompt as it is"
    )
    group.add_argument(
        "--chat-template-config",
        default="{}",
        help="JSON options for the chat template, such as '{\"enable_thinking\": false}'",
    )
    group.add_argument(
        "--extra-eos-token",
        action="append",
        default=[],
        help="a further token, or its id, that ends the text; repeatable",
    )
    group.add_argument(
        "--prefill-step-size",
        type=int,
        default=2048,
        help="prompt tokens a pass (default: 2048)",
    )


def _add_cache_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-kv-size",
        type=int,
        help="rows that a layer of the target keeps at most: the first 4 and the last ones",
    )
    group.add_argument(
        "--kv-bits", type=int, help="quantize the target's keys and values (default: they are not)"
    )
    group.add_argument(
        "--kv-group-size",
        type=int,
        default=GROUP_SIZE,
        help=f"group size of that quantization (default: {GROUP_SIZE})",
    )
    group.add_argument(
        "--quantized-kv-start",
        type=int,
        default=DEFAULT_QUANTIZED_KV_START,
        help=f"rows from which on a cache is quantized (default: {DEFAULT_QUANTIZED_KV_START})",
    )


def _add_sampling_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--temp", type=float, default=0.0, help="temperature (default: 0, greedy)")
    group.add_argument("--top-p", type=float, default=0.0, help="nucleus mass (default: all)")
    group.add_argument("--top-k", type=int, default=0, help="tokens to keep (default: all)")
    group.add_argument(
        "--min-p",
        type=float,
        default=0.0,
        help="least probability relative to the best token (default: 0)",
    )
    group.add_argument("--seed", type=int, help="seed of the sampling (default: a random one)")
    group.add_argument(
        "--acceptance",
        choices=ACCEPTANCE,
        default="coupled",
        help="coupled (the default): the text equals plain sampling with the same seed; "
        "rejection: accepts more, equal in distribution",
    )
    group.add_argument(
        "--logit-bias", default="{}", help="JSON object from token id to a number to add"
    )
    for name in _PENALTIES:
        group.add_argument(f"--{name}-penalty", type=float, help=f"{name} penalty (default: none)")
        group.add_argument(
            f"--{name}-context-size",
            type=int,
            default=20,
            help="tokens to look back (default: 20)",
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
    template_options = json_object("--chat-template-config", args.chat_template_config)
    options = _generation_options(args)
    _check_before_loading(args)
    model, tokenizer = load_pair(args, draft=not args.no_draft, quiet=args.quiet)
    for token in args.extra_eos_token:
        known = token.isdecimal() or token in tokenizer.get_vocab()
        if not known:
            raise UserError(f"--extra-eos-token: the target has no token {token!r}.")
        tokenizer.add_eos_token(token)
    tokens = _prompt_tokens(tokenizer, prompt, args, template_options)
    if args.block_size == AUTO and not args.no_draft and model.drafter is not None:
        tune(model, TuningProgress(shown=not args.quiet))
    responses = stream_generate(model, tokenizer, tokens, args.max_tokens, **options)
    return _print(responses, args.quiet)


def _check_before_loading(args: argparse.Namespace) -> None:
    """A wrong value should not wait for a model to load."""
    Sampling(args.temp, args.top_p, args.top_k, args.min_p, args.seed or 0)
    names = [f"{kind}_{part}" for kind in _PENALTIES for part in ("penalty", "context_size")]
    Penalties(**{name: getattr(args, name) for name in names})
    check_max_tokens(args.max_tokens)
    at_least_one("prefill_step_size", args.prefill_step_size)
    if args.max_kv_size is not None:
        at_least_one("max_kv_size", args.max_kv_size)
    if args.kv_bits is not None:
        at_least_one("kv_bits", args.kv_bits)
    stop_strings(args.stop)


def _print(responses: Iterator[GenerationResponse], quiet: bool) -> int:
    code, last = 0, None
    try:
        if not quiet:
            print("=" * 10)
        for last in responses:
            print(last.text, end="", flush=True)
    except KeyboardInterrupt:
        code = 130
    print()
    if not quiet:
        print("=" * 10)
        print(report(last) if last else "Interrupted before the first token.")
    return code


def _generation_options(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of ``stream_generate``."""
    names = (
        "temp top_p top_k min_p seed acceptance repetition_penalty repetition_context_size "
        "presence_penalty presence_context_size frequency_penalty frequency_context_size stop "
        "block_size max_kv_size kv_bits kv_group_size quantized_kv_start prefill_step_size"
    )
    options = {name: getattr(args, name) for name in names.split()}
    bias = json_object("--logit-bias", args.logit_bias)
    try:
        options["logit_bias"] = {int(token): float(value) for token, value in bias.items()}
    except (TypeError, ValueError) as error:
        raise UserError(
            f"--logit-bias must map token ids to numbers, not {args.logit_bias}."
        ) from error
    options["draft"] = not args.no_draft
    options["prompt_progress_callback"] = _Progress(args.prefill_step_size)
    return options


def _block_size(text: str) -> int | str:
    if text == AUTO:
        return text
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"must be auto or a whole number from 1 up, not {text!r}")
    return int(text)


def _prompt_tokens(
    tokenizer: TokenizerWrapper,
    prompt: str,
    args: argparse.Namespace,
    template_options: dict[str, Any],
) -> list[int]:
    if args.ignore_chat_template or not tokenizer.has_chat_template:
        if args.system_prompt or args.prefill_response or template_options:
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
        continue_final_message=bool(args.prefill_response),
        **template_options,
    )


class _Progress:
    """A bar for prompts of more than one prefill step."""

    def __init__(self, step_size: int):
        self._step_size = step_size
        self._bar: tqdm | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None and total > self._step_size:
            self._bar = tqdm(total=total, unit="tok", desc="Prompt", leave=False)
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
            if done == total:
                self._bar.close()
