"""Gradients of a drafter on one sequence, with memory bounded by a chunk of blocks."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from ..cache.linear import round_up
from ..drafter.model import Drafter
from ..drafter.selector import SelectorWalk
from ..target.target import Target
from .blocks import Blocks
from .forward import BlockForward, ContextKV, check_trainable
from .losses import Objective, cross_entropy, divergence
from .selector import selector_loss

Parameters = dict[str, mx.array]

# Context is cut at a multiple of this, so that chunks share the shapes of their buffers.
CONTEXT_STEP = 64
# Times the loss where the head runs in float16, so that what comes back through it is not too small
# for that; a power of two, which is taken out of the gradients without a trace.
_FLOAT16_SCALE = 2.0**8
# Stands for minus infinity where a difference of two of them must not become NaN.
_NEVER = -1e9


class Features(NamedTuple):
    """What the target says about a text.

    Attributes:
        taps: ``[S, taps * hidden]``, the drafter's context.
        hidden: ``[S, hidden]`` after the final norm, from which distillation takes the target's
            logits; None where it is not needed.
    """

    taps: mx.array
    hidden: mx.array | None


@dataclass
class Sums:
    """Sums over blocks, from which a step's loss and gradients are made.

    Attributes:
        gradients: of ``loss``, float32, by parameter name; empty before the first block.
        loss: sum of ``w * loss``.
        weight: sum of ``w``.
        rows: active rows.
        correct: active rows whose likeliest token is the text's.
    """

    gradients: Parameters
    loss: mx.array
    weight: mx.array
    rows: mx.array
    correct: mx.array

    @classmethod
    def zero(cls) -> "Sums":
        return cls({}, *(mx.array(0.0) for _ in range(4)))

    def scalars(self) -> list[mx.array]:
        return [self.loss, self.weight, self.rows, self.correct]


class Learner:
    """A drafter under training and the target that it learns from, whose weights never change.

    Args:
        drafter: with all its projections unquantized and not stacked. Its parameters are only a
            place to put the arrays that a call is given.
        target: embeds the blocks and turns hidden states into logits; gradients pass through.
        objective: what to minimize.
        chunk_blocks: blocks whose logits exist at one time.
        dtype: of the forward; parameters are kept in float32.

    Raises:
        UserError: the drafter has a part that this trainer cannot train.
    """

    def __init__(
        self,
        drafter: Drafter,
        target: Target,
        objective: Objective,
        chunk_blocks: int = 64,
        dtype: mx.Dtype = mx.float32,
    ):
        check_trainable(drafter)
        self.drafter = drafter
        self.target = target
        self.objective = objective
        self.chunk_blocks = chunk_blocks
        self.dtype = dtype
        self._config = drafter.config
        self._scale = _FLOAT16_SCALE if target.dtype == mx.float16 else 1.0
        self._forward = BlockForward(drafter)

    def parameters(self) -> Parameters:
        """The drafter's parameters in float32, by name."""
        return {k: v.astype(mx.float32) for k, v in tree_flatten(self.drafter.parameters())}

    def features(self, tokens: mx.array) -> Features:
        """One forward of the target over a text ``[S]``."""
        hidden, taps = self.target.encode(tokens[None])
        keep = self.objective.loss == "kl"
        features = Features(taps[0].astype(self.dtype), hidden[0] if keep else None)
        mx.eval(features)
        return features

    def add(self, parameters: Parameters, features: Features, blocks: Blocks, sums: Sums) -> None:
        """Add the blocks of one sequence to ``sums``.

        The context K/V are computed once; the gradient that every chunk sends back to them is
        summed and goes through the context projections at the end. Each chunk is evaluated before
        the next one begins, so only one chunk's activations and logits exist.
        """
        working = {k: v.astype(self.dtype) for k, v in parameters.items()}
        near = {k: v for k, v in working.items() if not _is_context_only(k)}
        far = {k: v for k, v in working.items() if _is_context(k)}
        self._use(working)
        context = self._forward.context(features.taps)
        mx.eval(context)
        pull = [tuple(mx.zeros(part.shape) for part in layer) for layer in context]
        step = mx.value_and_grad(self._chunk_loss, argnums=(0, 1))
        for part in self.chunks(blocks):
            (loss, news), (near_grads, context_grads) = step(near, context, part, features.hidden)
            _add(sums.gradients, {k: self._unscaled(v) for k, v in near_grads.items()})
            pull = [
                tuple(a + self._unscaled(b) for a, b in zip(x, y, strict=True))
                for x, y in zip(pull, context_grads, strict=True)
            ]
            weight, rows, correct = news
            sums.loss, sums.weight = sums.loss + self._unscaled(loss), sums.weight + weight
            sums.rows, sums.correct = sums.rows + rows, sums.correct + correct
            mx.eval(sums.gradients, pull, sums.scalars())
        _add(sums.gradients, mx.grad(self._context_loss)(far, features.taps, pull))
        mx.eval(sums.gradients)
        # Differentiation leaves its tracers in the module.
        self._use(parameters)

    def chunks(self, blocks: Blocks) -> Iterator[Blocks]:
        """The blocks, ``chunk_blocks`` at a time."""
        for begin in range(0, len(blocks), self.chunk_blocks):
            yield blocks.part(begin, begin + self.chunk_blocks)

    def context(self, parameters: Parameters, features: Features) -> ContextKV:
        """The context K/V of a sequence, to be given to :meth:`hidden`."""
        self._use({k: v.astype(self.dtype) for k, v in parameters.items()})
        return self._forward.context(features.taps)

    def hidden(self, blocks: Blocks, context: ContextKV) -> mx.array:
        """Hidden states ``[N, b - 1, hidden]`` of all rows but the anchors'."""
        keys = min(round_up(int(blocks.anchors[-1]) + 1, CONTEXT_STEP), context[0][0].shape[1])
        context = [(k[:, :keys], v[:, :keys]) for k, v in context]
        return self._forward(self._embed(blocks), mx.array(blocks.anchors), context)[:, 1:]

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits ``[N, b - 1, vocab]`` of hidden states, float32."""
        config = self._config
        logits = self.target.head_raw(hidden.astype(self.target.dtype)).astype(mx.float32)
        if config.output_multiplier != 1.0:
            logits = logits * config.output_multiplier
        if config.final_logit_softcapping is not None:
            logits = mx.tanh(logits / config.final_logit_softcapping)
            logits = logits * config.final_logit_softcapping
        return self._only_known(logits)

    def losses(
        self, hidden: mx.array, logits: mx.array, blocks: Blocks, teacher: mx.array | None
    ) -> tuple[mx.array, mx.array]:
        """Losses and weights ``[N, b - 1]`` of all rows but the anchors'.

        Args:
            hidden: of the rows.
            logits: of the rows.
            blocks: the blocks.
            teacher: the target's hidden states ``[S, hidden]``, for distillation.
        """
        tokens, active = mx.array(blocks.tokens[:, 1:]), mx.array(blocks.active[:, 1:])
        active = active & (tokens < self._config.vocab_size)
        losses = ce = cross_entropy(logits, tokens)
        if self.objective.loss == "kl":
            losses = divergence(logits, self._taught(blocks, teacher), self.objective.temperature)
        if "candidate_selector" in self.drafter:
            losses = losses + selector_loss(
                self.drafter.candidate_selector, hidden, logits, mx.array(blocks.tokens)
            )
        weights = self.objective.weights(ce, mx.array(blocks.given) - 1, active)
        return losses, weights

    def drafts(
        self, hidden: mx.array, logits: mx.array, blocks: Blocks, context: ContextKV
    ) -> mx.array:
        """The tokens ``[N, b - 1]`` that a greedy round would draft, in all passes of the drafter.

        Args:
            hidden: of the first pass.
            logits: of the first pass.
            blocks: whose anchors alone are given.
            context: of their sequence.
        """
        first = self._greedy(hidden, logits, blocks)
        prefix = self._config.draft_prefix
        if prefix is None:
            return first
        tokens = np.concatenate([blocks.tokens[:, :1], np.array(first, np.int32)], axis=1)
        given = np.full(len(blocks), prefix, np.int32)
        again = self.hidden(replace(blocks, tokens=tokens, given=given), context)
        rows = mx.arange(first.shape[1])[:, None] < prefix - 1
        hidden = mx.where(rows, hidden, again)
        return self._greedy(hidden, mx.where(rows, logits, self.logits(again)), blocks)

    def _greedy(self, hidden: mx.array, logits: mx.array, blocks: Blocks) -> mx.array:
        if "candidate_selector" not in self.drafter:
            return mx.argmax(logits, axis=-1)
        anchors, selector = mx.array(blocks.tokens[:, 0]), self.drafter.candidate_selector
        walk = SelectorWalk(selector, logits, lambda x: x, anchors, hidden)
        return walk.follow(mx.argmax(walk.logits, axis=-1), walk.logits)[0]

    def _chunk_loss(
        self, parameters: Parameters, context: ContextKV, blocks: Blocks, teacher: mx.array | None
    ) -> tuple[mx.array, tuple[mx.array, mx.array, mx.array]]:
        self._use(parameters)
        rows = self.hidden(blocks, context)
        logits = self.logits(rows)
        losses, weights = self.losses(rows, logits, blocks, teacher)
        active = mx.array(blocks.active[:, 1:])
        correct = active & (mx.argmax(logits, axis=-1) == mx.array(blocks.tokens[:, 1:]))
        news = weights.sum(), active.sum(), correct.sum()
        return (losses * weights).sum() * self._scale, news

    def _context_loss(self, parameters: Parameters, taps: mx.array, pull: ContextKV) -> mx.array:
        """A scalar whose gradient is that of the loss through the context K/V."""
        self._use(parameters)
        pairs = zip(self._forward.context(taps), pull, strict=True)
        return sum((x * g).sum() for kv, grads in pairs for x, g in zip(kv, grads, strict=True))

    def _unscaled(self, gradient: mx.array) -> mx.array:
        gradient = gradient.astype(mx.float32)
        return gradient if self._scale == 1.0 else gradient / self._scale

    def _use(self, parameters: Parameters) -> None:
        self.drafter.update(tree_unflatten(list(parameters.items())))

    def _embed(self, blocks: Blocks) -> mx.array:
        """Input embeddings ``[N, b, hidden]``: the given tokens, then the mask token."""
        config, target = self._config, self.target
        lookup = target.embed if config.embed_scale == "target" else target.embed_raw
        known = lookup(mx.array(blocks.tokens)) * config.input_embedding_scale
        if config.has_mask_embedding:
            mask = self.drafter.mask_embedding
        else:
            mask = lookup(mx.array([config.mask_token_id]))[0] * config.input_embedding_scale
        is_given = mx.arange(blocks.tokens.shape[1]) < mx.array(blocks.given)[:, None]
        return mx.where(is_given[..., None], known, mask).astype(self.dtype)

    def _taught(self, blocks: Blocks, hidden: mx.array) -> mx.array:
        """The target's logits for the rows' tokens: those of the positions before."""
        rows = mx.array(blocks.anchors)[:, None] + mx.arange(blocks.tokens.shape[1] - 1)
        rows = mx.minimum(rows, hidden.shape[0] - 1)
        logits = self.target.head(hidden[rows]).astype(mx.float32)
        return mx.stop_gradient(self._only_known(logits))

    def _only_known(self, logits: mx.array) -> mx.array:
        """Without the rows of a padded table that the drafter was not trained on."""
        if self._config.vocab_size >= self.target.vocab_size:
            return logits
        return mx.where(mx.arange(logits.shape[-1]) < self._config.vocab_size, logits, _NEVER)


def _is_context_only(name: str) -> bool:
    return name.startswith(("fc.", "hidden_norm.", "hidden_dim_adapter."))


def _is_context(name: str) -> bool:
    """Whether a parameter takes part in the context K/V."""
    return _is_context_only(name) or any(f".{x}." in name for x in ("k_proj", "v_proj", "k_norm"))


def _add(sums: Parameters, news: Parameters) -> None:
    for name, value in news.items():
        value = value.astype(mx.float32)
        sums[name] = sums[name] + value if name in sums else value
