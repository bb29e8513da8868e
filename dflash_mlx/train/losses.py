"""Losses of a block's positions, and the weights that positions of different place have in the sum.

How z-lab trained the candidate selector of DFlash 2 is not published. Its loss here is the recipe
of vLLM's ``speculators``: the token before each position is the text's, the candidates are the
likeliest tokens as in use, and the text's token takes the place of the weakest of them where it is
none. (NeMo AutoModel instead leaves such positions out.) The loss is added to the positions' own
with the same weights.
"""

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx
import numpy as np

from ..drafter.selector import CandidateSelector, top_candidates
from ..errors import UserError

LOSSES = ("ce", "kl")
WEIGHTINGS = ("decay", "dpace", "uniform")


def default_gamma(block_size: int) -> float:
    """The decay of the DFlash paper (arXiv 2602.06036): 7, 5 and 4 for blocks of 16, 10 and 8."""
    return float(np.interp(block_size, [2, 8, 10, 16], [1, 4, 5, 7]))


@dataclass(frozen=True)
class Objective:
    """What training minimizes: ``sum(w * loss) / sum(w)`` over the active positions of a batch.

    Attributes:
        loss: ``"ce"``, cross entropy with the text's own tokens; or ``"kl"``, the divergence
            ``KL(target || drafter)`` at ``temperature``, times its square (JetSpec, 2606.18394).
        weighting: ``"decay"``, ``exp(-(k - given) / gamma)`` for position ``k``; ``"dpace"``, by
            the drafter's own confidence (2605.18810); or ``"uniform"``.
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
        if not self.gamma > 0:
            raise UserError(f"`gamma` must be above 0, not {self.gamma}.")
        if not 0 < self.alpha <= 1:
            # At 0 one hopeless position takes all weight from those after it.
            raise UserError(f"`dpace_alpha` must be above 0 and at most 1, not {self.alpha}.")
        if not self.temperature > 0:
            raise UserError(f"`kd_temperature` must be above 0, not {self.temperature}.")

    def weights(self, ce: mx.array, given: mx.array, active: mx.array) -> mx.array:
        """The positions' weights ``[N, b]``, 0 where inactive; no gradient passes through them.

        Args:
            ce: ``[N, b]``, cross entropies.
            given: ``[N]``, leading positions of each block that are given.
            active: ``[N, b]``.
        """
        if self.weighting == "dpace":
            return dpace_weights(ce, active, self.alpha)
        if self.weighting == "uniform":
            return active.astype(mx.float32)
        return mx.exp((given[:, None] - mx.arange(active.shape[1])) / self.gamma) * active


def dpace_weights(ce: mx.array, active: mx.array, alpha: float) -> mx.array:
    """``w_j = sum over m >= j of product over i <= m of (1 - alpha) q_i + alpha``.

    ``q = exp(-ce)`` is how sure the drafter is of the right token. With ``alpha`` 0 the weight is
    the derivative of the expected accepted length by ``log q_j``. An inactive position has factor 1
    and adds no term of its own: no token is there to be accepted.
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


def selector_loss(
    selector: CandidateSelector, hidden: mx.array, logits: mx.array, tokens: mx.array
) -> mx.array:
    """Cross entropy ``[N, b - 1]`` of the text's token among the candidates of each position.

    Args:
        selector: scores candidates.
        hidden: ``[N, b - 1, hidden]``.
        logits: ``[N, b - 1, vocab]`` float32; gradients pass through those of the candidates.
        tokens: ``[N, b]``, the text, the anchor first.
    """
    # A padded table may hold tokens that no codebook has.
    known = selector.predecessor_codebook.weight.shape[0] - 1
    before, right = mx.minimum(tokens[:, :-1], known), tokens[:, 1:]
    ids = candidates_with(mx.stop_gradient(logits), right, selector.top_k)
    gate = selector.hidden_projection(hidden).astype(mx.float32)
    rows = selector.predecessor_codebook(before).astype(mx.float32) * gate
    columns = selector.successor_codebook(mx.minimum(ids, known)).astype(mx.float32)
    transition = (columns @ rows[..., None])[..., 0]
    scores = mx.take_along_axis(logits, ids, axis=-1) + transition
    place = mx.argmax(ids == right[..., None], axis=-1)
    return cross_entropy(scores, place)


def candidates_with(logits: mx.array, tokens: mx.array, k: int) -> mx.array:
    """The ``k`` likeliest tokens ``[..., k]``, the weakest of them replaced by ``tokens [...]``
    where it is not among them."""
    ids = top_candidates(logits, k)
    values = mx.take_along_axis(logits, ids, axis=-1)
    missing = ~(ids == tokens[..., None]).any(axis=-1, keepdims=True)
    weakest = mx.arange(k) == mx.argmin(values, axis=-1, keepdims=True)
    return mx.where(missing & weakest, tokens[..., None], ids)
