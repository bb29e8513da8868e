"""How a token is chosen: the settings, and the target's distribution that they define."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from ..errors import UserError, whole_number
from .option import check_callable, check_number, option

ACCEPTANCE = ("coupled", "rejection")


@dataclass(frozen=True)
class Sampling:
    """Sampling settings, with mlx-lm's names and meanings.

    Attributes:
        temp, top_p, top_k, min_p: see their help.
        seed: of the position-keyed noise; None stands for 0.
        acceptance: ``"coupled"`` (the text is that of plain sampling with the same seed) or
            ``"rejection"`` (accepts more; equal in distribution only).
        sampler: a callable from log-probabilities ``[1, vocab]`` to tokens ``[1]``, as mlx-lm's
            ``make_sampler`` returns; it replaces all of the above.

    Raises:
        UserError: a value is out of its range.
    """

    temp: float = option(0.0, "temperature; 0 is greedy")
    top_p: float = option(0.0, "nucleus mass; 0 keeps all")
    top_k: int = option(0, "tokens to keep; 0 keeps all")
    min_p: float = option(0.0, "least probability relative to the best token")
    seed: int | None = option(None, "seed of the sampling", unset="a random one")
    acceptance: str = option(
        "coupled",
        "coupled: the text equals plain sampling with the same seed; rejection: accepts more, "
        "equal in distribution",
        choices=ACCEPTANCE,
    )
    sampler: Callable[[mx.array], mx.array] | None = None

    def __post_init__(self) -> None:
        # Beyond, a score times the reciprocal is not a float32 number.
        if self.temp != 0:
            check_number("temp", self.temp, 1e-30, 1e30)
        check_number("top_p", self.top_p, 0, 1)
        check_number("min_p", self.min_p, 0, 1)
        whole_number("top_k", self.top_k, 0)
        if self.seed is not None and whole_number("seed", self.seed, 0) >= 2**64:
            raise UserError(f"`seed` must be below 2**64, not {self.seed}.")
        if self.acceptance not in ACCEPTANCE:
            raise UserError(
                f"`acceptance` must be one of {', '.join(ACCEPTANCE)}, not {self.acceptance!r}."
            )
        check_callable("sampler", self.sampler)
        if self.sampler is None:
            return
        if self.temp or self.top_p or self.top_k or self.min_p:
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

    def scores(self, logits: mx.array) -> mx.array:
        """Unnormalized log-probabilities of the sampled distribution, float32.

        The order is mlx-lm's: top-p, min-p and top-k on the probabilities at temperature 1, then
        the temperature. A token that is filtered out gets ``-inf``.

        Args:
            logits: float32, vocabulary last.
        """
        scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if 0 < self.top_p < 1:
            # A nucleus below the float32 numbers would be empty; this one holds a token.
            scores = apply_top_p(scores, max(self.top_p, 1e-30))
        if self.min_p:
            scores = apply_min_p(scores, self.min_p)
        if 0 < self.top_k < logits.shape[-1]:
            scores = apply_top_k(scores, self.top_k)
        return scores * (1 / self.temp)
