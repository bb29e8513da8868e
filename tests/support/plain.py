"""Plain decoding, row by row, on mlx-lm alone: what every other way must equal."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from dflash_mlx.engine.noise import EXCLUDE, TARGET, row_seeds
from dflash_mlx.engine.sampling import Sampling

MARGIN = 1e-4


def vocab_of(model: nn.Module) -> int:
    """How many logits the model has."""
    return model(mx.array([[0]])).shape[-1]


def random_prompt(length: int, vocab: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    return mx.random.randint(0, vocab, (length,), key=mx.random.key(seed)).tolist()


def plain_greedy(model: nn.Module, prompt: Sequence[int], n: int, **options: object) -> list[int]:
    """``n`` tokens by mlx-lm's own generator."""
    steps = generate_step(mx.array(prompt), model, max_tokens=n, **options)
    return [int(token) for token, _ in steps]


def plain_sampled(
    model: nn.Module, prompt: Sequence[int], n: int, sampling: Sampling, row: int = 0
) -> list[int]:
    """``n`` tokens, each the argmax of log-probability plus the noise of its position."""
    cache = make_prompt_cache(model)
    tokens, feed = [], list(prompt)
    for i in range(n):
        logits = model(mx.array([feed]), cache=cache)[0, -1]
        feed = [int(mx.argmax(_scores(logits, sampling, len(prompt) + i, row)).item())]
        tokens += feed
    return tokens


def plain(
    model: nn.Module, prompt: Sequence[int], n: int, sampling: Sampling, row: int = 0
) -> list[int]:
    """``n`` tokens under ``sampling``, as batch row ``row`` draws them."""
    if sampling.greedy:
        return plain_greedy(model, prompt, n)
    return plain_sampled(model, prompt, n, sampling, row)


def clear_case(
    model: nn.Module, length: int, n: int, sampling: Sampling, row: int = 0, seed: int = 0
) -> tuple[list[int], list[int]]:
    """A random prompt and its plain text, whose every choice has a clear winner.

    Sums are rounded differently in another shape of the same product, which may turn a near-tie
    over; a text without near-ties must come out token for token.
    """
    vocab = vocab_of(model)
    for attempt in range(20):
        prompt = random_prompt(length, vocab, 1000 * seed + attempt)
        text = plain(model, prompt, n, sampling, row)
        logits = model(mx.array([prompt + text]))[0, length - 1 : -1]
        scores = [_scores(x, sampling, length + i, row) for i, x in enumerate(logits)]
        top = mx.sort(mx.stack(scores), axis=-1)[:, -2:]
        if (top[:, 1] - top[:, 0]).min().item() > MARGIN:
            return prompt, text
    raise AssertionError(f"No prompt of {length} tokens without near-ties was found.")


def _scores(logits: mx.array, sampling: Sampling, position: int, row: int) -> mx.array:
    """What the token at ``position`` is the argmax of."""
    if sampling.greedy:
        return logits
    seeds = row_seeds(sampling.seed, row + 1)[row]
    keys = {x: mx.stack([seeds[x], mx.array(position, mx.uint32)]) for x in (TARGET, EXCLUDE)}
    noise = mx.random.gumbel(logits.shape, key=keys[TARGET])
    luck = mx.random.uniform(shape=(), key=keys[EXCLUDE])
    special = mx.array([i in sampling.xtc_special_tokens for i in range(logits.shape[-1])])
    return sampling.scores(logits[None].astype(mx.float32), luck, special)[0] + noise


def clear_turn(
    model: nn.Module, before: Sequence[int], length: int, n: int
) -> tuple[list[int], list[int]]:
    """A random turn after ``before``, and the greedy text that follows, without near-ties."""
    for seed in range(50):
        turn = random_prompt(length, vocab_of(model), 77_000 + seed)
        text = plain_greedy(model, [*before, *turn], n)
        logits = model(mx.array([[*before, *turn, *text]]))[0, len(before) + length - 1 : -1]
        top = mx.sort(logits, axis=-1)[:, -2:]
        if (top[:, 1] - top[:, 0]).min().item() > MARGIN:
            return turn, text
    raise AssertionError(f"No turn of {length} tokens without near-ties was found.")


def clear_steps(
    model: nn.Module,
    length: int,
    n: int,
    seed: int = 0,
    make_cache: Callable[[nn.Module], list[object]] = make_prompt_cache,
    margin: float = MARGIN,
    **options: object,
) -> tuple[list[int], list[int]]:
    """A random prompt and its greedy text, without near-ties among the steps themselves.

    For caches that forget or round, which no single forward over all of it can stand for.

    Args:
        model: the target.
        length: of the prompt.
        n: tokens of text.
        seed: of the prompt.
        make_cache: makes the empty cache.
        margin: that the best token has at least. A quantized cache needs more: what is rounded
            differently by a hair may come out a whole quantum apart.
        options: of mlx-lm's ``generate_step``.
    """
    for attempt in range(200):
        prompt = random_prompt(length, model.args.vocab_size, 1000 * seed + attempt)
        cache = make_cache(model)
        steps = generate_step(mx.array(prompt), model, max_tokens=n, prompt_cache=cache, **options)
        text, margins = [], []
        for token, logprobs in steps:
            top = mx.sort(logprobs)[-2:]
            margins.append(top[1] - top[0])
            text.append(int(token))
        if mx.stack(margins).min().item() > margin:
            return prompt, text
    raise AssertionError(f"No prompt of {length} tokens without near-ties was found.")
