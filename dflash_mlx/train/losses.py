"""Losses of a block's rows, and the weights that rows of different place have in the sum."""

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx
import numpy as np

from ..errors import UserError

LOSSES = ("ce", "kl")
WEIGHTINGS = ("decay", "dpace", "uniform")


def default_gamma(block_size: int) -> float:
    """The decay of the DFlash paper (arXiv 2602.06036): 7, 5 and 4 for blocks of 16, 10 and 8."""
    return float(np.interp(block_size, [2, 8, 10, 16], [1, 4, 5, 7]))


@dataclass(frozen=True)
class Objective:
    """What training minimizes: ``sum(w * loss) / sum(w)`` over the active rows of a batch.

    Attributes:
        loss: ``"ce"``, cross entropy with the text's own tokens; or ``"kl"``, the divergence
            ``KL(target || drafter)`` at ``temperature``, times its square (JetSpec, 2606.18394).
        weighting: ``"decay"``, ``exp(-(k - given) / gamma)`` for row ``k``; ``"dpace"``, by the
            drafter's own confidence (2605.18810); or ``"uniform"``.
        gamma: of the decay.
        alpha: how far D-PACE draws confidences towards 1.
        temperature: of both distributions in ``"kl"``.

    Raises:
        UserError: a value is out of its range.
    """

    gamma: float
    loss: Literal["ce", "kl"] = "ce"
    weighting: Literal["decay", "dpace", "uniform"] = "decay"
    alpha: float = 0.5
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise UserError(f"The loss must be one of {', '.join(LOSSES)}, not {self.loss!r}.")
        if self.weighting not in WEIGHTINGS:
            names = ", ".join(WEIGHTINGS)
            raise UserError(f"The weighting must be one of {names}, not {self.weighting!r}.")
        if not self.gamma > 0:
            raise UserError(f"gamma must be above 0, not {self.gamma}.")
        if not 0 < self.alpha <= 1:
            # At 0 one hopeless row takes all weight from those after it.
            raise UserError(f"D-PACE's alpha must be above 0 and at most 1, not {self.alpha}.")
        if not self.temperature > 0:
            raise UserError(
                f"The distillation temperature must be above 0, not {self.temperature}."
            )

    def weights(self, ce: mx.array, given: mx.array, active: mx.array) -> mx.array:
        """The rows' weights ``[N, b]``, 0 where inactive; no gradient passes through them.

        Args:
            ce: ``[N, b]``, cross entropies.
            given: ``[N]``, leading rows of each block that are given.
            active: ``[N, b]``.
        """
        if self.weighting == "dpace":
            return dpace_weights(ce, active, self.alpha)
        if self.weighting == "uniform":
            return active.astype(mx.float32)
        rows = mx.arange(active.shape[1])
        return mx.exp((given[:, None] - rows) / self.gamma) * active


def dpace_weights(ce: mx.array, active: mx.array, alpha: float) -> mx.array:
    """``w_j = sum over m >= j of product over i <= m of (1 - alpha) q_i + alpha``.

    ``q = exp(-ce)`` is how sure the drafter is of the right token. With ``alpha`` 0 the weight is
    the derivative of the expected accepted length by ``log q_j``. An inactive row has factor 1 and
    adds no term of its own: no token is there to be accepted.
    """
    confidence = (1 - alpha) * mx.exp(-mx.stop_gradient(ce)) + alpha
    survival = mx.cumprod(mx.where(active, confidence, 1.0), axis=-1) * active
    return mx.cumsum(survival, axis=-1, reverse=True) * active


def cross_entropy(logits: mx.array, tokens: mx.array) -> mx.array:
    """``-log softmax(logits)[token]`` of float32 ``logits [..., vocab]``.

    With a gradient of its own, because logits are the largest arrays of all: each exponential is
    taken once, and the gradient is made in one pass.
    """

    @mx.custom_function
    def loss(logits: mx.array) -> tuple[mx.array, mx.array]:
        p, total = _softmax(logits)
        return total - mx.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0], p

    @loss.vjp
    def gradient(
        logits: mx.array, cotangents: tuple[mx.array, mx.array], outputs: tuple[mx.array, mx.array]
    ) -> mx.array:
        is_token = mx.arange(logits.shape[-1]) == tokens[..., None]
        return _residual(outputs[1], is_token, cotangents[0][..., None])

    return loss(logits)[0]


def divergence(logits: mx.array, teacher: mx.array, temperature: float) -> mx.array:
    """``T^2 KL(softmax(teacher / T) || softmax(logits / T))``, vocabulary last.

    No gradient goes to the teacher; see :func:`cross_entropy` for how the other is made.
    """

    @mx.custom_function
    def loss(logits: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        q, total_q = _softmax(logits / temperature)
        p, total_p = _softmax(teacher / temperature)
        log_ratio = (teacher - logits) / temperature - (total_p - total_q)[..., None]
        return temperature**2 * (p * log_ratio).sum(axis=-1), q, p

    @loss.vjp
    def gradient(
        logits: mx.array,
        cotangents: tuple[mx.array, mx.array, mx.array],
        outputs: tuple[mx.array, mx.array, mx.array],
    ) -> mx.array:
        return _residual(*outputs[1:], temperature * cotangents[0][..., None])

    return loss(logits)[0]


def _softmax(logits: mx.array) -> tuple[mx.array, mx.array]:
    """Probabilities, and the logarithm of the sum of exponentials that they were divided by."""
    p = mx.softmax(logits, axis=-1)
    # The largest probability is never near zero, so its logarithm is exact.
    return p, logits.max(axis=-1) - mx.log(p.max(axis=-1))


@mx.compile
def _residual(a: mx.array, b: mx.array, scale: mx.array) -> mx.array:
    return (a - b) * scale
