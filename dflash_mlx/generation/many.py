"""Several prompts at once, in one call."""

from collections.abc import Mapping, Sequence

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UserError
from ..loading.pair import Pair
from .engine_thread import Engine


def batch_generate(
    model: Pair,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[str | Sequence[int] | mx.array],
    max_tokens: int | Sequence[int] = 256,
    *,
    max_batch: int = 8,
    verbose: bool = False,
    options: Sequence[Mapping[str, object]] | None = None,
    **shared: object,
) -> list[str]:
    """Generate a text for each prompt, together, as ``mlx_lm.batch_generate`` does.

    Each text is what :func:`~dflash_mlx.generate` gives alone.

    Args:
        model: from :func:`dflash_mlx.load`.
        tokenizer: from :func:`dflash_mlx.load`.
        prompts: text, token ids, or a one-dimensional array of ids, each.
        max_tokens: how many tokens to emit at most, for all or for each prompt.
        max_batch: texts that are written at a time.
        verbose: print how many texts are complete, as they come.
        options: further options of each prompt, see :func:`~dflash_mlx.stream_generate`.
        shared: further options of all prompts.

    Returns:
        The texts, in the order of the prompts.

    Raises:
        UserError: an option is unknown, out of range, or cannot be honoured.
    """
    limits = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else list(max_tokens)
    each = [{}] * len(prompts) if options is None else list(options)
    for name, given in (("max_tokens", limits), ("options", each)):
        if len(given) != len(prompts):
            raise UserError(f"`{name}` has {len(given)} entries for {len(prompts)} prompts.")
    with Engine(model, tokenizer, max_batch, max_waiting=len(prompts)) as engine:
        handles = [
            engine.submit(prompt, max_tokens=limit, **{**shared, **own})
            for prompt, limit, own in zip(prompts, limits, each, strict=True)
        ]
        texts = []
        for handle in handles:
            texts.append(handle.text())
            if verbose:
                print(f"[batch_generate] {len(texts)} of {len(prompts)} texts", flush=True)
        return texts
