"""Options and a prompt, resolved against the pair that is to generate."""

import operator
import warnings
from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..engine.cache_options import cached_tokens, largest_block
from ..engine.request import AUTO, Request
from ..errors import UserError, counted
from ..loading.pair import Pair
from .options import Options


def resolve(
    model: Pair,
    tokenizer: TokenizerWrapper,
    prompt: str | Sequence[int] | mx.array,
    options: Options,
) -> Request:
    """What ``options`` come to for this pair and prompt.

    Raises:
        UserError: the pair cannot honour one, or the prompt is none.
    """
    tokens, target = _token_ids(model, tokenizer, prompt), model.target
    if beyond := [token for token in options.logit_bias if not 0 <= token < target.vocab_size]:
        raise UserError(f"`logit_bias` names token ids {beyond} that the target does not have.")
    cached = cached_tokens(target, options.prompt_cache)
    room = _room(model, cached + len(tokens), options.max_tokens)
    size = options.rotating_size(target, cached + len(tokens) + room)
    caches = options.prompt_cache
    if caches is None:
        caches = target.make_cache(size)
    largest = largest_block(model, caches)
    seed = options.seed
    if seed is None and options.temp:
        # Follows mx.random.seed, as mlx-lm's sampling does.
        seed = int(mx.random.randint(0, 2**31 - 1).item())
    return Request(
        options=replace(
            options,
            seed=seed,
            draft=options.draft and model.drafter is not None,
            block_size=_block_size(model, options, largest),
            prompt_progress_callback=options.prompt_progress_callback or (lambda done, total: None),
        ),
        prompt=tokens,
        room=room,
        cached_tokens=cached,
        rotating_size=size,
        quantization=options.quantization(target, caches),
        largest_block=largest,
    )


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


def _room(model: Pair, prompt_end: int, max_tokens: int) -> float:
    """How many tokens may be emitted, after ``prompt_end`` tokens of prompt and prompt cache."""
    room = float("inf") if max_tokens < 0 else max_tokens
    if model.context_length is None:
        return room
    if prompt_end >= model.context_length:
        found = (
            f"The prompt has {counted(prompt_end, 'token')} (prompt cache included), but the "
            f"target's context is {model.context_length}"
        )
        if model.context_ends:
            raise UserError(f"{found}; shorten it.")
        warnings.warn(f"{found} before its scaling; its text may make no sense.", stacklevel=5)
        return room
    return min(room, model.context_length - prompt_end)


def _block_size(model: Pair, options: Options, largest: int) -> int | str:
    size = options.block_size
    if not options.draft or model.drafter is None:
        if size not in (None, AUTO):
            why = "no drafter is loaded" if options.draft else "drafting is switched off"
            raise UserError(f"A `block_size` was given, but {why}.")
        return 1
    if size in (None, AUTO):
        return AUTO
    if size > largest:
        reason = "the size this drafter was trained for"
        if largest < (trained := model.drafter.block_size):
            reason = f"the most that a rotating cache takes (the drafter was trained for {trained})"
        raise UserError(
            f"`block_size` must be {AUTO!r} or between 1 and {largest}, {reason}; not {size}."
        )
    return size
