"""One generation's options, checked before anything runs."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

import mlx.core as mx
from mlx_lm.generate import DEFAULT_QUANTIZED_KV_START
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..cache.adopt import StockCache
from ..cache.quantized import KVQuantization
from ..engine.choose import LogitsProcessor
from ..engine.penalties import Penalties
from ..engine.sampling import Sampling
from ..errors import UserError, at_least_one, counted
from ..loading.pair import Pair
from .kv import GROUP_SIZE, cached_tokens, kv_quantization, largest_block, rotating_size

AUTO = "auto"


@dataclass(frozen=True)
class Request:
    """What :func:`dflash_mlx.stream_generate` was asked for, resolved.

    Attributes:
        prompt: token ids, at least one.
        cache: the prompt cache to continue and to leave behind, or None for a fresh one.
        cached_tokens: how many tokens it holds.
        max_kv_size: of the rotating caches to make, or None for the target's own.
        quantization: of the target's caches, or None.
        max_tokens: how many tokens to emit at most.
        block_size: rows a round verifies; 1 decodes plainly, ``"auto"`` chooses for each round.
        largest_block: the most rows a round may have.
        draft: whether features are projected for a drafter.
        sampling, penalties, processors: how tokens are chosen.
        stop: strings that end the text.
        logprobs: whether responses carry log-probabilities.
        prefill_step_size: prompt rows a chunk.
        progress: called with prompt tokens done and in all.
    """

    prompt: list[int]
    cache: list[StockCache] | None
    cached_tokens: int
    max_kv_size: int | None
    quantization: KVQuantization | None
    max_tokens: int
    block_size: int | str
    largest_block: int
    draft: bool
    sampling: Sampling
    penalties: Penalties
    processors: Sequence[LogitsProcessor]
    stop: Sequence[str]
    logprobs: bool
    prefill_step_size: int
    progress: Callable[[int, int], None]


def make_request(
    model: Pair,
    tokenizer: TokenizerWrapper,
    prompt: str | Sequence[int] | mx.array,
    *,
    max_tokens: int = 256,
    draft: bool = True,
    block_size: int | str | None = None,
    temp: float = 0.0,
    top_p: float = 0.0,
    top_k: int = 0,
    min_p: float = 0.0,
    seed: int | None = None,
    acceptance: str = "coupled",
    sampler: Callable[[mx.array], mx.array] | None = None,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    logit_bias: Mapping[int, float] | None = None,
    repetition_penalty: float | None = None,
    repetition_context_size: int = 20,
    presence_penalty: float | None = None,
    presence_context_size: int = 20,
    frequency_penalty: float | None = None,
    frequency_context_size: int = 20,
    stop: str | Sequence[str] = (),
    logprobs: bool = False,
    prompt_cache: list[StockCache] | None = None,
    max_kv_size: int | None = None,
    kv_bits: int | None = None,
    kv_group_size: int = GROUP_SIZE,
    quantized_kv_start: int = DEFAULT_QUANTIZED_KV_START,
    prefill_step_size: int = 2048,
    prompt_progress_callback: Callable[[int, int], None] | None = None,
    **unsupported: object,
) -> Request:
    """Check the options of :func:`dflash_mlx.stream_generate`; see there for what they mean.

    Raises:
        UserError: an option is unknown, out of range, or cannot be honoured.
    """
    if unsupported:
        raise UserError(
            f"Unsupported option(s): {', '.join(sorted(unsupported))}. A drafter is given to "
            "load(), not here."
        )
    _check_numbers(
        temp=temp,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty or 0,
        presence_penalty=presence_penalty or 0,
        frequency_penalty=frequency_penalty or 0,
    )
    processors = logits_processors or ()
    _check_callables("sampler", (sampler,) if sampler else ())
    _check_callables("logits_processors", processors)
    progress = prompt_progress_callback or (lambda done, total: None)
    _check_callables("prompt_progress_callback", (progress,))
    tokens = _token_ids(model, tokenizer, prompt)
    cached = cached_tokens(model.target, prompt_cache)
    room = _room(model, cached + len(tokens), max_tokens)
    size = rotating_size(model.target, prompt_cache, cached + len(tokens) + room, max_kv_size)
    caches = model.target.make_cache(size) if prompt_cache is None else prompt_cache
    largest = most_rows(model, caches)
    quantization = kv_quantization(model.target, caches, kv_bits, kv_group_size, quantized_kv_start)
    if sampler is not None and seed is not None:
        raise UserError("A sampler draws from mx.random; seed that with mx.random.seed instead.")
    if seed is None:
        # Follows mx.random.seed, as mlx-lm's sampling does.
        seed = int(mx.random.randint(0, 2**31 - 1).item()) if temp else 0
    biased = _logit_bias(logit_bias or {}, model.target.vocab_size)
    return Request(
        prompt=tokens,
        cache=prompt_cache,
        cached_tokens=cached,
        max_kv_size=size,
        quantization=quantization,
        max_tokens=room,
        block_size=_block_size(model, draft, block_size, largest),
        largest_block=largest,
        draft=draft and model.drafter is not None,
        sampling=Sampling(temp, top_p, top_k, min_p, seed, acceptance, sampler),
        penalties=Penalties(
            biased,
            repetition_penalty,
            repetition_context_size,
            presence_penalty,
            presence_context_size,
            frequency_penalty,
            frequency_context_size,
        ),
        processors=tuple(processors),
        stop=stop_strings(stop),
        logprobs=logprobs,
        prefill_step_size=at_least_one("prefill_step_size", prefill_step_size),
        progress=progress,
    )


def _check_numbers(**values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, Real):
            raise UserError(f"{name} must be a number, not {value!r}.")


def _check_callables(name: str, values: object) -> None:
    if not isinstance(values, Sequence) or not all(map(callable, values)):
        raise UserError(f"{name} cannot be called: {values!r}.")


def _logit_bias(bias: Mapping[int, float], vocab: int) -> dict[int, float]:
    try:
        bias = {operator.index(token): float(value) for token, value in bias.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"logit_bias must map token ids to numbers, not {bias!r}.") from error
    if beyond := [token for token in bias if not 0 <= token < vocab]:
        raise UserError(f"logit_bias names token ids {beyond} that the target does not have.")
    return bias


def _token_ids(
    model: Pair, tokenizer: TokenizerWrapper, prompt: str | Sequence[int] | mx.array
) -> list[int]:
    if isinstance(prompt, str):
        bos = tokenizer.bos_token
        special = bos is None or not prompt.startswith(bos)
        prompt = tokenizer.encode(prompt, add_special_tokens=special)
    elif isinstance(prompt, mx.array):
        if prompt.ndim != 1:
            raise UserError(f"A prompt array must have one dimension, not shape {prompt.shape}.")
        prompt = prompt.tolist()
    try:
        tokens = [operator.index(token) for token in prompt]
    except TypeError as error:
        raise UserError(
            "The prompt must be text, a list of token ids, or a one-dimensional array of them."
        ) from error
    if not tokens:
        raise UserError("The prompt is empty; give at least one token.")
    vocab = model.target.vocab_size
    if beyond := [token for token in tokens if not 0 <= token < vocab]:
        raise UserError(
            f"The prompt has token ids {beyond[:5]}, but the target's embedding table has "
            f"{counted(vocab, 'row')}; was it tokenized for another model?"
        )
    return tokens


def check_max_tokens(max_tokens: int) -> None:
    """Check that ``max_tokens`` is -1, for no limit, or not negative."""
    if not isinstance(max_tokens, int) or max_tokens < -1:
        raise UserError(f"max_tokens must be -1 (no limit) or from 0 up, not {max_tokens}.")


def _room(model: Pair, prompt_end: int, max_tokens: int) -> float:
    """How many tokens may be emitted, after ``prompt_end`` tokens of prompt and prompt cache."""
    check_max_tokens(max_tokens)
    room = float("inf") if max_tokens < 0 else max_tokens
    if model.context_length is not None:
        if prompt_end >= model.context_length:
            raise UserError(
                f"The prompt has {counted(prompt_end, 'token')} (prompt cache included), but the "
                f"target's context is {model.context_length}; shorten it."
            )
        room = min(room, model.context_length - prompt_end)
    return room


def most_rows(model: Pair, caches: Sequence[StockCache]) -> int:
    """The most rows that a round of the pair may have on such caches."""
    if model.drafter is None:
        return 1
    most = largest_block(caches)
    trained = model.drafter.block_size
    return trained if most is None else min(trained, most)


def _block_size(model: Pair, draft: bool, block_size: int | str | None, largest: int) -> int | str:
    """Rows a round, at most ``largest``."""
    if not draft or model.drafter is None:
        if block_size not in (None, AUTO):
            why = "no drafter is loaded" if draft else "drafting is switched off"
            raise UserError(f"A block size was given, but {why}.")
        return 1
    if block_size in (None, AUTO):
        return AUTO
    if not isinstance(block_size, int) or not 1 <= block_size <= largest:
        reason = "the size this drafter was trained for"
        if largest < (trained := model.drafter.block_size):
            reason = f"the most that a rotating cache takes (the drafter was trained for {trained})"
        raise UserError(
            f"block_size must be {AUTO!r} or between 1 and {largest}, {reason}; not {block_size!r}."
        )
    return block_size


def stop_strings(stop: str | Sequence[str]) -> tuple[str, ...]:
    """The strings that end a text, checked."""
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, Sequence) or not all(isinstance(s, str) for s in stops):
        raise UserError(f"stop must be a string or a list of strings, not {stop!r}.")
    if not all(stops):
        raise UserError("A stop string is empty.")
    return tuple(stops)
