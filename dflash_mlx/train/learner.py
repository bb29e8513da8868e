"""Gradients of a drafter on one sequence, with memory bounded by a chunk of blocks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten

from ..drafter.model import Drafter
from ..target.target import Target
from .blocks import Blocks
from .forward import BlockForward, KeysValues, Parameters
from .losses import Objective, cross_entropy, divergence, selector_loss

# Times the loss where the head runs in float16, so that what comes back through it is not too small
# for that; a power of two, which is taken out of the gradients without a trace.
_FLOAT16_SCALE = 2.0**8


class Encoding(NamedTuple):
    """What the target says about a text.

    Attributes:
        features: ``[S, taps * hidden]``, the drafter's context.
        hidden: ``[S, hidden]`` after the final norm, from which distillation takes the target's
            logits; None where it is not needed.
    """

    features: mx.array
    hidden: mx.array | None


@dataclass
class Sums:
    """Sums over blocks, from which a step's loss and gradients are made.

    Attributes:
        gradients: of the loss, float32, by parameter name; empty before the first block.
        scalars: ``[4]``: of ``w * loss``, of ``w``, the active positions, and those of them whose
            likeliest token is the text's.
    """

    gradients: Parameters
    scalars: mx.array

    @classmethod
    def zero(cls) -> "Sums":
        return cls({}, mx.zeros(4))


class Learner(BlockForward):
    """A drafter under training and the target that it learns from, whose weights never change.

    Args:
        drafter: see :class:`.forward.BlockForward`.
        target: see there.
        objective: what to minimize.
        chunk_blocks: blocks whose logits exist at one time.
        dtype: of the forward; parameters are kept in float32.
    """

    def __init__(
        self,
        drafter: Drafter,
        target: Target,
        objective: Objective,
        chunk_blocks: int = 64,
        dtype: mx.Dtype = mx.float32,
    ):
        super().__init__(drafter, target, dtype)
        self.objective, self._chunk_blocks = objective, chunk_blocks
        self._scale = _FLOAT16_SCALE if target.dtype == mx.float16 else 1.0

    def parameters(self) -> Parameters:
        """The drafter's parameters in float32, by name."""
        return {k: v.astype(mx.float32) for k, v in tree_flatten(self.drafter.parameters())}

    def encode(self, tokens: mx.array) -> Encoding:
        """One forward of the target over a text ``[S]``."""
        hidden, features = self.target.encode(tokens[None])
        distils = self.objective.loss == "kl"
        encoding = Encoding(features[0].astype(self.dtype), hidden[0] if distils else None)
        mx.eval(encoding)
        return encoding

    def add(self, parameters: Parameters, encoding: Encoding, blocks: Blocks, sums: Sums) -> None:
        """Add the blocks of one sequence to ``sums``.

        The context K/V are computed once; the gradient that every chunk sends back to them is
        summed and goes through the context projections at the end. Each chunk is evaluated before
        the next one begins, so only one chunk's activations and logits exist.
        """
        working = {k: v.astype(self.dtype) for k, v in parameters.items()}
        near = {k: v for k, v in working.items() if not _is_context_only(k)}
        far = {k: v for k, v in working.items() if _is_context(k)}
        self.use(working)
        context = self.context(encoding.features)
        mx.eval(context)
        pull = [tuple(mx.zeros(part.shape) for part in layer) for layer in context]
        step = mx.value_and_grad(self._chunk_loss, argnums=(0, 1))
        for part in self.chunks(blocks):
            (_, scalars), (near_grads, context_grads) = step(near, context, part, encoding.hidden)
            _add(sums.gradients, {k: self._unscaled(v) for k, v in near_grads.items()})
            pull = [
                tuple(a + self._unscaled(b) for a, b in zip(x, y, strict=True))
                for x, y in zip(pull, context_grads, strict=True)
            ]
            sums.scalars = sums.scalars + scalars
            mx.eval(sums.gradients, pull, sums.scalars)
        _add(sums.gradients, mx.grad(self._context_loss)(far, encoding.features, pull))
        mx.eval(sums.gradients)
        # Differentiation leaves its tracers in the module.
        self.use(working)

    def chunks(self, blocks: Blocks) -> Iterator[Blocks]:
        """The blocks, ``chunk_blocks`` at a time."""
        for begin in range(0, len(blocks), self._chunk_blocks):
            yield blocks.part(begin, begin + self._chunk_blocks)

    def losses(
        self, hidden: mx.array, logits: mx.array, blocks: Blocks, teacher: mx.array | None
    ) -> tuple[mx.array, mx.array]:
        """Losses and weights ``[N, b - 1]`` of all positions but the anchors'.

        Args:
            hidden: of the positions.
            logits: of the positions.
            blocks: the blocks.
            teacher: the target's hidden states ``[S, hidden]``, for distillation.
        """
        tokens, active = mx.array(blocks.tokens[:, 1:]), mx.array(blocks.active[:, 1:])
        active = active & (tokens < self.config.vocab_size)
        losses = ce = cross_entropy(logits, tokens)
        if self.objective.loss == "kl":
            losses = divergence(logits, self._taught(blocks, teacher), self.objective.temperature)
        if "candidate_selector" in self.drafter:
            losses = losses + selector_loss(
                self.drafter.candidate_selector, hidden, logits, mx.array(blocks.tokens)
            )
        weights = self.objective.weights(ce, mx.array(blocks.given) - 1, active)
        return losses, weights

    def _taught(self, blocks: Blocks, hidden: mx.array) -> mx.array:
        """The target's logits for the positions' tokens: those of the positions before."""
        before = mx.array(blocks.anchors)[:, None] + mx.arange(blocks.tokens.shape[1] - 1)
        before = mx.minimum(before, hidden.shape[0] - 1)
        logits = self.target.head(hidden[before]).astype(mx.float32)
        return mx.stop_gradient(self.only_known(logits))

    def _chunk_loss(
        self,
        parameters: Parameters,
        context: list[KeysValues],
        blocks: Blocks,
        teacher: mx.array | None,
    ) -> tuple[mx.array, mx.array]:
        """What is differentiated, and the scalars of :class:`Sums`."""
        self.use(parameters)
        hidden = self.hidden(blocks, context)
        logits = self.logits(hidden)
        losses, weights = self.losses(hidden, logits, blocks, teacher)
        active = mx.array(blocks.active[:, 1:])
        correct = active & (mx.argmax(logits, axis=-1) == mx.array(blocks.tokens[:, 1:]))
        loss = (losses * weights).sum()
        return loss * self._scale, mx.stack([loss, weights.sum(), active.sum(), correct.sum()])

    def _context_loss(
        self, parameters: Parameters, features: mx.array, pull: list[KeysValues]
    ) -> mx.array:
        """A scalar whose gradient is that of the loss through the context K/V."""
        self.use(parameters)
        pairs = zip(self.context(features), pull, strict=True)
        return sum((x * g).sum() for kv, grads in pairs for x, g in zip(kv, grads, strict=True))

    def _unscaled(self, gradient: mx.array) -> mx.array:
        gradient = gradient.astype(mx.float32)
        return gradient if self._scale == 1.0 else gradient / self._scale


def _is_context_only(name: str) -> bool:
    return name.startswith(("fc.", "hidden_norm.", "hidden_dim_adapter."))


def _is_context(name: str) -> bool:
    """Whether a parameter takes part in the context K/V."""
    return _is_context_only(name) or any(f".{x}." in name for x in ("k_proj", "v_proj", "k_norm"))


def _add(sums: Parameters, news: Parameters) -> None:
    for name, value in news.items():
        value = value.astype(mx.float32)
        sums[name] = sums[name] + value if name in sums else value
