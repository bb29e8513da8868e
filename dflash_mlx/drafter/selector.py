"""DFlash 2's candidate selector: a walk over the likeliest tokens of each row.

The score of candidate ``c`` at a row with hidden state ``h``, after the draft ``b`` of the row
before, is ``logit(c) + <predecessor[b] * proj(h), successor[c]>``; the first ``b`` is the anchor.
"""

import copy
from collections.abc import Callable
from typing import Self

import mlx.core as mx
import mlx.nn as nn

from .config import DrafterConfig

_CHUNK = 128


class CandidateSelector(nn.Module):
    def __init__(self, config: DrafterConfig):
        super().__init__()
        rank = config.selector_rank
        self.top_k = config.selector_top_k
        self.predecessor_codebook = nn.Embedding(config.vocab_size, rank)
        self.successor_codebook = nn.Embedding(config.vocab_size, rank)
        self.hidden_projection = nn.Linear(config.hidden_size, rank, bias=False)

    def __call__(self, anchor: mx.array, ids: mx.array, hidden: mx.array) -> mx.array:
        """How well each candidate follows each of the row before, float32.

        All pairs of two rows in one product: the walk itself then only looks up.

        Args:
            anchor: ``[B]``.
            ids: ``[B, m, k]``, the candidates.
            hidden: ``[B, m, hidden]``.

        Returns:
            ``[B, m, k, k]``, the earlier candidate first; in row 0 that is always the anchor.
        """
        # A target whose table is padded may have emitted a token that no codebook has.
        anchor = mx.minimum(anchor, self.predecessor_codebook.weight.shape[0] - 1)
        first = mx.broadcast_to(anchor[:, None, None], (ids.shape[0], 1, ids.shape[2]))
        before = mx.concatenate([first.astype(ids.dtype), ids[:, :-1]], axis=1)
        gate = self.hidden_projection(hidden).astype(mx.float32)[:, :, None]
        earlier = self.predecessor_codebook(before).astype(mx.float32) * gate
        later = self.successor_codebook(ids).astype(mx.float32)
        return earlier @ later.swapaxes(-1, -2)


class SelectorWalk:
    """A proposal whose rows choose among candidates, each given the draft of the row before.

    Args:
        selector: scores the candidates against one another.
        raw: ``[B, m, vocab]``, by which the candidates are found.
        transform: makes float32 logits of the kept values of ``raw``.
        anchor: ``[B]``.
        hidden: ``[B, m, hidden]``, the rows' hidden states after the final norm.

    Attributes:
        ids: ``[B, m, k]``, the candidates.
        logits: ``[B, m, k, k]`` float32: of each candidate, after each of the row before.
    """

    def __init__(
        self,
        selector: CandidateSelector,
        raw: mx.array,
        transform: Callable[[mx.array], mx.array],
        anchor: mx.array,
        hidden: mx.array,
    ):
        self.ids = top_candidates(raw, selector.top_k)
        kept = transform(mx.take_along_axis(raw, self.ids, axis=-1))
        self.logits = kept[:, :, None] + selector(anchor, self.ids, hidden)
        self._parts = selector, raw, transform, anchor, hidden

    @property
    def vocab(self) -> int:
        return self._parts[1].shape[-1]

    def rows(self, index: mx.array) -> Self:
        some = copy.copy(self)
        selector, raw, transform, anchor, hidden = self._parts
        some._parts = selector, raw[index], transform, anchor[index], hidden[index]
        some.ids, some.logits = self.ids[index], self.logits[index]
        return some

    def penalized(self, penalize: Callable[[mx.array], mx.array]) -> Self:
        selector, raw, transform, anchor, hidden = self._parts
        # A softcap would bring back what the drafter cannot draft.
        logits = mx.where(raw == -mx.inf, -mx.inf, transform(raw))
        return SelectorWalk(selector, penalize(logits), lambda x: x, anchor, hidden)

    def pick(self, values: mx.array) -> mx.array:
        return mx.take_along_axis(values, self.ids, axis=-1)[:, :, None]

    def follow(self, choice: mx.array, scores: mx.array) -> tuple[mx.array, mx.array]:
        at = mx.zeros((choice.shape[0], 1), choice.dtype)
        path = [at]
        for row in range(choice.shape[1]):
            at = mx.take_along_axis(choice[:, row], at, axis=1)
            path.append(at)
        path = mx.concatenate(path, axis=1)
        tokens = mx.take_along_axis(self.ids, path[:, 1:, None], axis=-1)[..., 0]
        gone = mx.take_along_axis(scores, path[:, :-1, None, None], axis=2)[:, :, 0]
        nowhere = mx.full((*tokens.shape, self.vocab), -mx.inf)
        return tokens.astype(mx.int32), mx.put_along_axis(nowhere, self.ids, gone, axis=-1)


def top_candidates(logits: mx.array, k: int) -> mx.array:
    """The indices ``[..., k]`` of the ``k`` largest values, in no order.

    A partition of the whole vocabulary is a sort on Metal. The ``k`` chunks with the largest maxima
    hold the ``k`` largest values, so only maxima and those chunks are partitioned.
    """
    *shape, vocab = logits.shape
    if vocab <= 2 * k * _CHUNK:
        return mx.argpartition(logits, kth=-k, axis=-1)[..., -k:]
    padding = [(0, 0)] * len(shape) + [(0, -vocab % _CHUNK)]
    chunks = mx.pad(logits, padding, constant_values=-mx.inf).reshape(*shape, -1, _CHUNK)
    best = mx.argpartition(chunks.max(axis=-1), kth=-k, axis=-1)[..., -k:]
    values = mx.take_along_axis(chunks, best[..., None], axis=-2).reshape(*shape, -1)
    index = (best[..., None] * _CHUNK + mx.arange(_CHUNK, dtype=best.dtype)).reshape(*shape, -1)
    within = mx.argpartition(values, kth=-k, axis=-1)[..., -k:]
    return mx.take_along_axis(index, within, axis=-1)
