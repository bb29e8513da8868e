"""How a token is chosen: the settings, and the target's distribution that they define."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from ..errors import UserError
from .option import OptionTable, check_callable, option

_option = partial(option, group="sampling")


@dataclass(frozen=True)
class Sampling(OptionTable):
    """Sampling settings, with mlx-lm's names and meanings.

    Attributes:
        temp, top_p, top_k, min_p, min_tokens_to_keep, xtc_probability, xtc_threshold: see their
            help.
        xtc_special_tokens: ids that XTC never excludes.
        seed: of the position-keyed noise; None stands for 0.
        acceptance: ``"coupled"`` (the text is that of plain sampling with the same seed) or
            ``"rejection"`` (accepts more; equal in distribution only).
        sampler: a callable from log-probabilities ``[1, vocab]`` to tokens ``[1]``, as mlx-lm's
            ``make_sampler`` returns; it replaces all of the above.

    Raises:
        UserError: a value is out of its range.
    """

    temp: float = _option(0.0, "temperature; 0 is greedy")
    top_p: float = _option(
        0.0,
        "keep the likeliest tokens that together have this probability; 0 keeps all",
        least=0,
        most=1,
    )
    top_k: int = _option(0, "keep so many of the likeliest tokens; 0 keeps all", least=0)
    min_p: float = _option(
        0.0,
        "keep tokens that have this share of the likeliest one's probability",
        least=0,
        most=1,
    )
    min_tokens_to_keep: int = _option(1, "tokens that --min-p keeps at least", least=1)
    xtc_probability: float = _option(
        0.0,
        "how often XTC leaves out all likely tokens but the least likely of them",
        least=0,
        most=1,
    )
    xtc_threshold: float = _option(
        0.1, "probability above which a token is likely for XTC", least=0, most=0.5
    )
    xtc_special_tokens: Sequence[int] = ()
    seed: int | None = _option(
        None, "seed of the sampling", unset="a random one", least=0, most=2**64 - 1
    )
    acceptance: str = _option(
        "coupled",
        "coupled: the text equals plain sampling with the same seed; rejection: accepts more, "
        "equal in distribution",
        choices=("coupled", "rejection"),
    )
    sampler: Callable[[mx.array], mx.array] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temp != 0 and not 1e-30 <= self.temp <= 1e30:
            # Beyond, a score times the reciprocal is not a float32 number.
            raise UserError(f"`temp` must be 0 or between 1e-30 and 1e30, not {self.temp}.")
        if self.min_tokens_to_keep != 1 and not self.min_p:
            raise UserError("`min_tokens_to_keep` does nothing without `min_p`.")
        if self.xtc_threshold != 0.1 and not self.xtc_probability:
            raise UserError("`xtc_threshold` does nothing without `xtc_probability`.")
        object.__setattr__(self, "xtc_special_tokens", token_ids(self.xtc_special_tokens))
        check_callable("sampler", self.sampler)
        if self.sampler is None:
            return
        if self.temp or self.top_p or self.top_k or self.min_p or self.xtc_probability:
            raise UserError("Give either a `sampler` or `temp`, `top_p`, `top_k` and `min_p`.")
        if self.seed is not None:
            raise UserError("A `sampler` draws from mx.random; use mx.random.seed, not `seed`.")
        if self.acceptance == "rejection":
            raise UserError(
                "A `sampler` does not tell its distribution, which `acceptance` 'rejection' needs."
            )

    @property
    def greedy(self) -> bool:
        return self.temp == 0 and self.sampler is None

    @property
    def excludes(self) -> bool:
        """Whether XTC has a part in it, which needs numbers of its own."""
        return self.xtc_probability > 0

    def scores(
        self, logits: mx.array, luck: mx.array | None = None, special: mx.array | None = None
    ) -> mx.array:
        """Unnormalized log-probabilities of the sampled distribution, float32.

        The order is mlx-lm's: top-p, min-p, XTC and top-k on the probabilities at temperature 1,
        then the temperature. A token that is filtered out gets ``-inf``.

        Args:
            logits: float32, vocabulary last.
            luck: uniform numbers that broadcast with the logits, by which XTC is applied or not.
            special: bool like ``luck``, the tokens that XTC never excludes.
        """
        scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if 0 < self.top_p < 1:
            # A nucleus below the float32 numbers would be empty; this one holds a token.
            scores = apply_top_p(scores, max(self.top_p, 1e-30))
        if self.min_p:
            keep = min(self.min_tokens_to_keep, logits.shape[-1])
            scores = apply_min_p(scores, self.min_p, keep)
        if self.excludes:
            scores = mx.where(luck > self.xtc_probability, scores, self._excluded(scores, special))
        if 0 < self.top_k < logits.shape[-1]:
            scores = apply_top_k(scores, self.top_k)
        return scores * (1 / self.temp)

    def _excluded(self, scores: mx.array, special: mx.array | None) -> mx.array:
        """What XTC leaves: of the tokens above the threshold, the least likely one."""
        p = mx.softmax(scores, axis=-1)
        least = mx.where(p > self.xtc_threshold, p, mx.inf).min(axis=-1, keepdims=True)
        out = p > least if special is None else (p > least) & ~special
        return mx.where(out, -mx.inf, scores)


def token_ids(ids: Sequence[int]) -> tuple[int, ...]:
    """The ids of special tokens, checked to be some."""
    if not isinstance(ids, Sequence) or not all(isinstance(i, int) and i >= 0 for i in ids):
        raise UserError(f"`xtc_special_tokens` must be a list of token ids, not {ids!r}.")
    return tuple(ids)
