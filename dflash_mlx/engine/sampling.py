"""How a token is chosen: the settings, and the target's distribution that they define."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from ..errors import UserError

ACCEPTANCE = ("coupled", "rejection")


@dataclass(frozen=True)
class Sampling:
    """Sampling settings, with mlx-lm's names and meanings.

    Attributes:
        temp: temperature; 0 is greedy.
        top_p: nucleus mass; 0 or 1 keeps everything.
        top_k: how many tokens to keep; 0 keeps everything.
        min_p: least probability relative to the most likely token's; 0 keeps everything.
        seed: of the position-keyed noise.
        acceptance: ``"coupled"`` (the text is that of plain sampling with the same seed) or
            ``"rejection"`` (accepts more; equal in distribution only).
        sampler: a callable from log-probabilities ``[1, vocab]`` to tokens ``[1]``, as mlx-lm's
            ``make_sampler`` returns; it replaces all of the above.

    Raises:
        UserError: a value is out of its range.
    """

    temp: float = 0.0
    top_p: float = 0.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    acceptance: str = "coupled"
    sampler: Callable[[mx.array], mx.array] | None = None

    def __post_init__(self) -> None:
        if self.temp != 0 and not 1e-30 <= self.temp <= 1e30:
            # Beyond, a score times the reciprocal is not a float32 number.
            raise UserError(f"temp must be 0 or between 1e-30 and 1e30, not {self.temp}.")
        for name in ("top_p", "min_p"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} must be between 0 and 1, not {getattr(self, name)}.")
        if not (isinstance(self.top_k, int) and self.top_k >= 0):
            raise UserError(f"top_k must be a whole number from 0 up, not {self.top_k}.")
        if not (isinstance(self.seed, int) and 0 <= self.seed < 2**64):
            raise UserError(f"seed must be a whole number from 0 to 2**64 - 1, not {self.seed}.")
        if self.acceptance not in ACCEPTANCE:
            raise UserError(
                f"acceptance must be one of {', '.join(ACCEPTANCE)}, not {self.acceptance!r}."
            )
        if self.sampler is not None and (self.temp or self.top_p or self.top_k or self.min_p):
            raise UserError("Give either a sampler or temp, top_p, top_k and min_p, not both.")
        if self.sampler is not None and self.acceptance == "rejection":
            raise UserError(
                "A sampler does not tell its distribution, which acceptance 'rejection' needs."
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
