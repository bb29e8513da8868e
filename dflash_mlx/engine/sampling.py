"""How a token is chosen: the settings, and the target's distribution that they define."""

from collections.abc import Callable
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
        temp, top_p, top_k, min_p: see their help.
        seed: of the position-keyed noise; None stands for 0.
        acceptance: ``"coupled"`` (the text is that of plain sampling with the same seed) or
            ``"rejection"`` (accepts more; equal in distribution only).
        sampler: a callable from log-probabilities ``[1, vocab]`` to tokens ``[1]``, as mlx-lm's
            ``make_sampler`` returns; it replaces all of the above.

    Raises:
        UserError: a value is out of its range.
    """

    temp: float = _option(0.0, "temperature; 0 is greedy")
    top_p: float = _option(0.0, "nucleus mass; 0 keeps all", least=0, most=1)
    top_k: int = _option(0, "tokens to keep; 0 keeps all", least=0)
    min_p: float = _option(0.0, "least probability relative to the best token", least=0, most=1)
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
