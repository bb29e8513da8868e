"""Logit bias and the three penalties, as mlx-lm's ``make_logits_processors`` defines them.

Theirs read a Python-sized list of tokens; these read the device-side history, so that each
position of a block sees exactly the committed tokens and the drafts before it, without waiting for
the host.
"""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import mlx.core as mx

from ..errors import UserError
from .history import History
from .option import OptionTable, option

_option = partial(option, group="sampling")


@dataclass(frozen=True)
class Penalties(OptionTable):
    """Settings with mlx-lm's names; None or 0 turns a penalty off.

    Attributes:
        logit_bias: numbers by token ids, which may also be their digits, as in JSON.

    Raises:
        UserError: a value is out of its range.
    """

    logit_bias: Mapping[int, float] | None = _option(
        None, "JSON object from token id to a number to add", unset="none"
    )
    repetition_penalty: float | None = _option(None, "repetition penalty", unset="none", least=0)
    repetition_context_size: int = _option(20, "tokens to look back", least=1)
    presence_penalty: float | None = _option(None, "presence penalty", unset="none")
    presence_context_size: int = _option(20, "tokens to look back", least=1)
    frequency_penalty: float | None = _option(None, "frequency penalty", unset="none")
    frequency_context_size: int = _option(20, "tokens to look back", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "logit_bias", _numbers_by_token(self.logit_bias or {}))

    @property
    def look_back(self) -> bool:
        """Whether any penalty needs the history."""
        return bool(self.repetition_penalty or self.presence_penalty or self.frequency_penalty)

    @property
    def penalizes(self) -> bool:
        """Whether there is anything to apply."""
        return bool(self.logit_bias) or self.look_back

    def apply(self, logits: mx.array, history: History | None, last: mx.array) -> mx.array:
        """The penalized logits.

        Args:
            logits: ``[B, n, vocab]`` float32.
            history: needed when :attr:`look_back`.
            last: ``[B, n]`` or ``[B, 1]``, the last token that each position has seen.
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


def _numbers_by_token(bias: Mapping[int | str, float]) -> dict[int, float]:
    try:
        numbers = {
            int(token) if isinstance(token, str) else operator.index(token): float(number)
            for token, number in bias.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"`logit_bias` must map token ids to numbers, not {bias!r}.") from error
    # A bias of -inf bans a token; anything else that is not finite would spoil all of them.
    if bad := [x for x in numbers.values() if not x < math.inf]:
        raise UserError(f"`logit_bias` must be numbers, or -inf, not {bad[0]}.")
    return numbers


def _add(logits: mx.array, tokens: mx.array, amounts: mx.array) -> mx.array:
    """Add ``amounts`` to the logits ``[B, n, vocab]`` of ``tokens``, both ``[B, n or 1, size]``."""
    shape = (*logits.shape[:2], tokens.shape[-1])
    rows = mx.arange(logits.shape[0])[:, None, None], mx.arange(logits.shape[1])[:, None]
    return logits.at[(*rows, mx.broadcast_to(tokens, shape))].add(mx.broadcast_to(amounts, shape))


def _seen(logits: mx.array, tokens: mx.array, there: mx.array) -> mx.array:
    """Which entries of the logits are of a token that is there."""
    return _add(mx.zeros_like(logits), tokens, there.astype(logits.dtype)) > 0
