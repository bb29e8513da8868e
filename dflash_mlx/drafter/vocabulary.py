"""From the vocabulary of a drafter's head to the target's."""

import mlx.core as mx

from ..errors import UserError
from .config import DrafterConfig


class Vocabulary:
    """Places the logits of a drafter's head at the tokens of the target's vocabulary.

    The target's table may be padded beyond what the drafter was trained with, and the drafter's own
    head may cover the frequent tokens alone.

    Args:
        config: the drafter's.
        d2t: ``[draft_vocab_size]``, the target's ids of a reduced vocabulary, or None.
        size: tokens of the target's table.
    """

    def __init__(self, config: DrafterConfig, d2t: mx.array | None, size: int):
        self._known: mx.array | None = None
        self._column: mx.array | None = None
        if d2t is None and config.vocab_size == size:
            return
        ids = mx.arange(config.vocab_size) if d2t is None else d2t
        column = mx.full((size,), -1, mx.int32)
        column[ids] = mx.arange(ids.size, dtype=mx.int32)
        self._known = column >= 0
        if config.has_lm_head:
            self._column = mx.maximum(column, 0)
        mx.eval(self._known, self._column)

    def __call__(self, logits: mx.array) -> mx.array:
        """``[..., size]`` of the head's ``[..., columns]``; -inf where a token is unknown."""
        if self._column is not None:
            logits = mx.take(logits, self._column, axis=-1)
        return logits if self._known is None else mx.where(self._known, logits, -mx.inf)


def check_draft_ids(config: DrafterConfig, d2t: mx.array) -> None:
    """Check that ``d2t`` names distinct tokens of the target's vocabulary.

    Raises:
        UserError: it does not.
    """
    ids = d2t.tolist()
    if beyond := [token for token in ids if not 0 <= token < config.vocab_size]:
        raise UserError(
            f"The drafter's d2t names tokens {beyond[:5]}, but its vocab_size is "
            f"{config.vocab_size}; it must hold the target's ids themselves. Convert it again."
        )
    if len(set(ids)) < len(ids):
        raise UserError(
            f"The drafter's d2t names {len(ids)} tokens, of which only {len(set(ids))} are "
            "different. Convert it again."
        )
