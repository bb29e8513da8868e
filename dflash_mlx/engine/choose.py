"""Choosing drafts and target tokens under one set of settings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..drafter.proposal import Proposal
from .accept import accept_by_rejection, accept_equal
from .noise import DRAFT, TARGET, gumbel, row_seeds
from .penalties import Penalties
from .sampling import Sampling
from .state import State

LogitsProcessor = Callable[[mx.array, mx.array], mx.array]


@dataclass
class Draft:
    """The drafts of one block.

    Attributes:
        tokens: ``[B, n - 1]`` int32.
        scores: ``[B, n - 1, vocab]``, log of the distribution that they were drawn from up to a
            constant, or None when the acceptance rule does not need it.
        noise: ``[B, n, vocab]``, shared with the target's choice, or None.
    """

    tokens: mx.array
    scores: mx.array | None = None
    noise: mx.array | None = None


@dataclass
class Verdict:
    """What a verified block comes to.

    Attributes:
        tokens: ``[B, n]`` int32; the first ``accepted + 1`` of a row are emitted.
        accepted: ``[B]`` int32, the accepted drafts.
        logprobs: ``[B, n, vocab]`` float32 before sampling filters, or None when not asked for.
    """

    tokens: mx.array
    accepted: mx.array
    logprobs: mx.array | None


class Chooser:
    """Draws the drafts of a block, and decides which of them the target keeps.

    Args:
        sampling: how a token is drawn.
        penalties: applied to the target's logits row by row, and to the draft's by what is
            committed before the block.
        processors: user's logits processors, called as mlx-lm calls them: ``f(tokens, logits)``
            with all tokens so far ``[t]`` and logits ``[1, vocab]``. Batch 1 only.
        batch: batch rows.
        keep_logprobs: whether the verdict carries log-probabilities.
    """

    def __init__(
        self,
        sampling: Sampling,
        penalties: Penalties | None = None,
        processors: Sequence[LogitsProcessor] = (),
        batch: int = 1,
        keep_logprobs: bool = False,
    ):
        self.sampling = sampling
        self.penalties = penalties or Penalties()
        self.processors = tuple(processors)
        self._keep_logprobs = keep_logprobs
        self._seeds = row_seeds(sampling.seed, batch)
        self._draws = not sampling.greedy and sampling.sampler is None
        self._rejects = self._draws and sampling.acceptance == "rejection"

    def draft(self, proposal: Proposal, state: State) -> Draft:
        """Draw the drafts of a block.

        A selector's candidates are drawn as a vocabulary is, filters and all: what the target's
        filters will refuse is not worth proposing, and ``q`` is whatever was drawn from.
        """
        if self.penalties.penalizes:
            # Which drafts precede a row is not known before they are drawn, all at once.
            proposal = proposal.penalized(
                lambda logits: self.penalties.apply(
                    logits.astype(mx.float32), state.history, state.offset[:, None]
                )
            )
        logits = proposal.logits
        if not self._draws:
            return Draft(proposal.follow(mx.argmax(logits, axis=-1), logits)[0])
        scores = self.sampling.scores(logits.astype(mx.float32))
        n = logits.shape[1]
        purpose = DRAFT if self._rejects else TARGET
        noise = gumbel(self._seeds[:, purpose], _positions(state, n + 1), proposal.vocab)
        choice = mx.argmax(scores + proposal.pick(noise[:, :n]), axis=-1)
        tokens, scores = proposal.follow(choice, scores)
        return Draft(tokens, scores) if self._rejects else Draft(tokens, noise=noise)

    def judge(self, draft: Draft | None, logits: mx.array, state: State) -> Verdict:
        """Decide on the drafts, given the target's logits ``[B, n, vocab]`` of the whole block."""
        tokens = mx.zeros((logits.shape[0], 0), mx.int32) if draft is None else draft.tokens
        logits = self._processed(logits, tokens, state)
        logprobs = None
        if self._keep_logprobs or self.sampling.sampler is not None:
            logits = logits.astype(mx.float32)
            logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)

        if draft is not None and self._rejects:
            p = mx.softmax(self.sampling.scores(logits.astype(mx.float32)), axis=-1)
            q = mx.softmax(draft.scores, axis=-1)
            positions = _positions(state, logits.shape[1])
            chosen, accepted = accept_by_rejection(tokens, q, p, self._seeds, positions)
        else:
            noise = None if draft is None else draft.noise
            chosen, accepted = accept_equal(tokens, self._choose(logits, logprobs, noise, state))
        return Verdict(chosen.astype(mx.int32), accepted, logprobs if self._keep_logprobs else None)

    def _processed(self, logits: mx.array, drafts: mx.array, state: State) -> mx.array:
        n = logits.shape[1]
        if self.penalties.penalizes:
            last = state.offset[:, None] + mx.arange(n)
            logits = self.penalties.apply(logits.astype(mx.float32), state.history, last)
        if not self.processors:
            return logits
        rows = []
        for j in range(n):
            seen = mx.concatenate([state.committed, drafts[0, :j]])
            row = logits[:, j]
            for processor in self.processors:
                row = processor(seen, row)
            rows.append(row)
        return mx.stack(rows, axis=1)

    def _choose(
        self, logits: mx.array, logprobs: mx.array | None, noise: mx.array | None, state: State
    ) -> mx.array:
        """The target's own token at every row of the block, ``[B, n]``."""
        if self.sampling.sampler is not None:
            # One call a row, as in plain decoding: a sampler may draw once for all rows it gets.
            rows = [self.sampling.sampler(logprobs[:, j]) for j in range(logits.shape[1])]
            return mx.stack(rows, axis=1)
        if not self._draws:
            return mx.argmax(logits, axis=-1)
        if noise is None:
            positions = _positions(state, logits.shape[1])
            noise = gumbel(self._seeds[:, TARGET], positions, logits.shape[-1])
        return mx.argmax(self.sampling.scores(logits.astype(mx.float32)) + noise, axis=-1)


def _positions(state: State, n: int) -> mx.array:
    """Absolute positions ``[B, n]`` of the tokens that a block's rows choose."""
    return state.offset[:, None] + 1 + mx.arange(n)
