"""Logit bias and the three penalties, as mlx-lm's ``make_logits_processors`` defines them.

Theirs read a Python-sized list of tokens; these read the device-side history, so that each row of
a block sees exactly the committed tokens and the drafts before it, without waiting for the host.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import mlx.core as mx

from ..errors import UserError
from .history import History


@dataclass(frozen=True)
class Penalties:
    """Settings with mlx-lm's names; None or 0 turns a penalty off.

    Raises:
        UserError: a value is out of its range.
    """

    logit_bias: Mapping[int, float] = field(default_factory=dict)
    repetition_penalty: float | None = None
    repetition_context_size: int = 20
    presence_penalty: float | None = None
    presence_context_size: int = 20
    frequency_penalty: float | None = None
    frequency_context_size: int = 20

    def __post_init__(self) -> None:
        # A bias of -inf bans a token; anything else that is not finite would spoil all of them.
        if bad := [x for x in self.logit_bias.values() if not x < math.inf]:
            raise UserError(f"logit_bias must be numbers, or -inf, not {bad[0]}.")
        if self.repetition_penalty is not None and self.repetition_penalty < 0:
            raise UserError(
                f"repetition_penalty must be a number from 0 up, not {self.repetition_penalty}."
            )
        for name in ("repetition", "presence", "frequency"):
            penalty = getattr(self, f"{name}_penalty")
            if not math.isfinite(penalty or 0):
                raise UserError(f"{name}_penalty must be a finite number, not {penalty}.")
            size = getattr(self, f"{name}_context_size")
            if not (isinstance(size, int) and size > 0):
                raise UserError(
                    f"{name}_context_size must be a whole number from 1 up, not {size}."
                )

    @property
    def look_back(self) -> bool:
        """Whether any penalty needs the history."""
        return bool(self.repetition_penalty or self.presence_penalty or self.frequency_penalty)

    def __bool__(self) -> bool:
        return bool(self.logit_bias) or self.look_back

    def apply(self, logits: mx.array, history: History | None, last: mx.array) -> mx.array:
        """The penalized logits.

        Args:
            logits: ``[B, n, vocab]`` float32.
            history: needed when :attr:`look_back`.
            last: ``[B, n]`` or ``[B, 1]``, the position of the last token that each row has seen.
        """
        if self.logit_bias:
            tokens = mx.array(list(self.logit_bias))
            logits = logits.at[..., tokens].add(mx.array(list(self.logit_bias.values())))
        if self.repetition_penalty:
            seen = _seen(logits, *history.window(last, self.repetition_context_size))
            penalized = mx.where(
                logits < 0, logits * self.repetition_penalty, logits / self.repetition_penalty
            )
            logits = mx.where(seen, penalized, logits)
        if self.presence_penalty:
            seen = _seen(logits, *history.window(last, self.presence_context_size))
            logits = logits - self.presence_penalty * seen
        if self.frequency_penalty:
            # Subtracted once an occurrence, as mlx-lm does: a product would round differently.
            tokens, there = history.window(last, self.frequency_context_size)
            logits = _add(logits, tokens, -self.frequency_penalty * there)
        return logits


def _add(logits: mx.array, tokens: mx.array, amounts: mx.array) -> mx.array:
    """Add ``amounts`` to the logits ``[B, n, vocab]`` of ``tokens``, both ``[B, n or 1, size]``."""
    shape = (*logits.shape[:2], tokens.shape[-1])
    rows = mx.arange(logits.shape[0])[:, None, None], mx.arange(logits.shape[1])[:, None]
    return logits.at[(*rows, mx.broadcast_to(tokens, shape))].add(mx.broadcast_to(amounts, shape))


def _seen(logits: mx.array, tokens: mx.array, there: mx.array) -> mx.array:
    """Which entries of the logits are of a token that is there."""
    return _add(mx.zeros_like(logits), tokens, there.astype(logits.dtype)) > 0
