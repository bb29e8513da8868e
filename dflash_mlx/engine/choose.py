"""Choosing drafts and target tokens under one set of settings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..drafter.proposal import Proposal
from .accept import accept_by_rejection, accept_equal
from .noise import DRAFT, EXCLUDE, TARGET, gumbel, row_seeds, uniform
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

    def at(self, j: int) -> "Draft":
        """What it takes to decide on position ``j`` alone: its token only where a test needs it."""
        if self.scores is not None and j < self.tokens.shape[1]:
            return Draft(self.tokens[:, j : j + 1], self.scores[:, j : j + 1])
        noise = None if self.noise is None else self.noise[:, j : j + 1]
        return Draft(self.tokens[:, :0], noise=noise)


@dataclass
class Verdict:
    """What a verified block comes to.

    Attributes:
        tokens: ``[B, n]`` int32; the first ``accepted + 1`` of a row are emitted.
        accepted: ``[B]`` int32, the accepted drafts.
        logprobs: ``[n, vocab]`` float32 of each batch row, before sampling filters; a row is None,
            or all of it is, when not asked for.
    """

    tokens: mx.array
    accepted: mx.array
    logprobs: mx.array | Sequence[mx.array | None] | None


class Chooser:
    """Draws the drafts of a block, and decides which of them the target keeps.

    Args:
        sampling: how a token is drawn.
        penalties: applied to the target's logits position by position, and to the draft's by what
            is committed before the block.
        processors: user's logits processors, called as mlx-lm calls them: ``f(tokens, logits)``
            with all tokens so far ``[t]`` and logits ``[1, vocab]``, once for each position, in
            order. Batch 1 only.
        batch: batch rows, which draw differently from one seed.
        keep_logprobs: whether the verdict carries log-probabilities.
        seeds: ``[B, 3]`` instead, one a batch row and purpose.

    Attributes:
        drafts_nan: whether the first drafts' logits hold NaN, a bool on the device; None before.
    """

    def __init__(
        self,
        sampling: Sampling,
        penalties: Penalties | None = None,
        processors: Sequence[LogitsProcessor] = (),
        batch: int = 1,
        keep_logprobs: bool = False,
        seeds: mx.array | None = None,
    ):
        self.sampling = sampling
        self.penalties = penalties or Penalties()
        self.processors = tuple(processors)
        self._keep_logprobs = keep_logprobs
        self.drafts_nan: mx.array | None = None
        self._seeds = row_seeds(sampling.seed, batch) if seeds is None else seeds
        self._draws = not sampling.greedy and sampling.sampler is None
        self._rejects = self._draws and sampling.acceptance == "rejection"

    def draft(self, proposal: Proposal, state: State) -> Draft:
        """Draw the drafts of a block.

        A selector's candidates are drawn as a vocabulary is, filters and all: what the target's
        filters will refuse is not worth proposing, and ``q`` is whatever was drawn from.
        """
        if self.penalties.penalizes:
            # Which drafts precede a position is not known before they are drawn, all at once.
            proposal = proposal.penalized(
                lambda logits: self.penalties.apply(
                    logits.astype(mx.float32), state.history, state.offset[:, None]
                )
            )
        logits = proposal.logits
        if self.drafts_nan is None:
            # Once: in every round it would be a pass over the vocabulary.
            self.drafts_nan = mx.isnan(logits).any()
        if not self._draws:
            return Draft(proposal.follow(mx.argmax(logits, axis=-1), logits)[0])
        n = logits.shape[1]
        positions = _positions(state, n + 1)
        scores = self._scores(logits, positions[:, :n], proposal)
        purpose = DRAFT if self._rejects else TARGET
        noise = gumbel(self._seeds[:, purpose], positions, proposal.vocab)
        choice = mx.argmax(scores + proposal.pick(noise[:, :n]), axis=-1)
        tokens, scores = proposal.follow(choice, scores)
        return Draft(tokens, scores) if self._rejects else Draft(tokens, noise=noise)

    def judge(self, draft: Draft | None, logits: mx.array, state: State) -> Verdict:
        """Decide on the drafts, given the target's logits ``[B, n, vocab]`` of the whole block."""
        if draft is None:
            draft = Draft(mx.zeros((logits.shape[0], 0), mx.int32))
        positions = _positions(state, logits.shape[1])
        if self.penalties.penalizes:
            logits = self.penalties.apply(logits.astype(mx.float32), state.history, positions - 1)
        if self.processors:
            return self._judge_in_order(draft, logits, positions, state.committed[0])
        return self._decide(draft, logits, positions)

    def _judge_in_order(
        self, draft: Draft, logits: mx.array, positions: mx.array, seen: mx.array
    ) -> Verdict:
        """Decide position by position, waiting for each, and end at the first rejected draft.

        A processor may keep a state that every call moves on, as those of grammar libraries do. So
        it is called as in plain decoding: once for a position, and never behind a rejected draft.
        """
        n, emitted, logprobs = logits.shape[1], [], []
        for j in range(n):
            scores = logits[:, j]
            for processor in self.processors:
                scores = processor(seen, scores)
            one = draft.at(j)
            # A rejection test of one draft also draws the token after it, which nobody takes.
            width = one.tokens.shape[1] + 1
            repeated = mx.repeat(scores[:, None], width, axis=1)
            verdict = self._decide(one, repeated, positions[:, j : j + width])
            emitted.append(verdict.tokens[:, 0])
            logprobs.append(verdict.logprobs)
            seen = mx.concatenate([seen, emitted[-1]])
            if j == n - 1 or not mx.array_equal(emitted[-1], draft.tokens[:, j]):
                break
        # What is behind the last one is never emitted, but a block has its width.
        rest = n - len(emitted)
        tokens = mx.pad(mx.stack(emitted, axis=1), [(0, 0), (0, rest)])
        kept = None
        if self._keep_logprobs:
            kept = mx.concatenate([x[:, :1] for x in logprobs], axis=1)
            kept = mx.pad(kept, [(0, 0), (0, rest), (0, 0)])
        return Verdict(tokens, mx.array([len(emitted) - 1], mx.int32), kept)

    def _decide(self, draft: Draft, logits: mx.array, positions: mx.array) -> Verdict:
        """Decide on drafts, given the target's logits of them and perhaps of the token after."""
        logprobs = None
        if self._keep_logprobs or self.sampling.sampler is not None:
            logits = logits.astype(mx.float32)
            logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)

        if draft.scores is not None:
            p = mx.softmax(self._scores(logits, positions), axis=-1)
            q = mx.softmax(draft.scores, axis=-1)
            chosen, accepted = accept_by_rejection(draft.tokens, q, p, self._seeds, positions)
        else:
            chosen = self._choose(logits, logprobs, draft.noise, positions)
            chosen, accepted = accept_equal(draft.tokens, chosen)
        return Verdict(chosen.astype(mx.int32), accepted, logprobs if self._keep_logprobs else None)

    def _choose(
        self,
        logits: mx.array,
        logprobs: mx.array | None,
        noise: mx.array | None,
        positions: mx.array,
    ) -> mx.array:
        """The target's own token at every position of the block, ``[B, n]``."""
        if self.sampling.sampler is not None:
            # One call a position, as in plain decoding: a sampler may draw once for all it gets.
            tokens = [self.sampling.sampler(logprobs[:, j]) for j in range(logits.shape[1])]
            return mx.stack(tokens, axis=1)
        if not self._draws:
            return mx.argmax(logits, axis=-1)
        if noise is None:
            noise = gumbel(self._seeds[:, TARGET], positions, logits.shape[-1])
        return mx.argmax(self._scores(logits, positions) + noise, axis=-1)

    def _scores(
        self, logits: mx.array, positions: mx.array, proposal: Proposal | None = None
    ) -> mx.array:
        """As :meth:`Sampling.scores`, for the tokens at ``positions [B, n]``.

        Whether XTC is applied is drawn by the position as well, once for draft and target.
        """
        logits, luck, special = logits.astype(mx.float32), None, None
        if self.sampling.excludes:
            luck = uniform(self._seeds[:, EXCLUDE], positions)
            luck = mx.expand_dims(luck, list(range(2, logits.ndim)))
        if self.sampling.excludes and self.sampling.xtc_special_tokens:
            vocab = logits.shape[-1] if proposal is None else proposal.vocab
            ids = mx.array(self.sampling.xtc_special_tokens)
            special = mx.any(mx.arange(vocab)[:, None] == ids, axis=-1)
            special = mx.broadcast_to(special, (*positions.shape, vocab))
            special = special if proposal is None else proposal.pick(special)
        return self.sampling.scores(logits, luck, special)


def _positions(state: State, n: int) -> mx.array:
    """Absolute positions ``[B, n]`` of the tokens that a block chooses."""
    return state.offset[:, None] + 1 + mx.arange(n)
