"""A drafter bound to its target, whose embedding table and head it may borrow."""

from collections.abc import Sequence

import mlx.core as mx

from ..cache.protocol import ContextBuffer
from ..files import fingerprint
from ..target.target import Target
from .model import Drafter
from .proposal import IndependentRows, Proposal
from .selector import SelectorWalk
from .vocabulary import Vocabulary


class BoundDrafter:
    """The face of a drafter that a round knows; see :class:`.proposal.Drafting`.

    Args:
        drafter: with its context weights stacked.
        target: the target that the features come from.
    """

    def __init__(self, drafter: Drafter, target: Target):
        config = drafter.config
        self.block_size = config.block_size
        self.fingerprint = fingerprint(drafter)
        # What needs no target is the drafter's own.
        self.kernels = drafter.kernels
        self.make_context = drafter.make_context
        self.write_context = drafter.write_context
        self._config = config
        self._drafter = drafter
        self._target = target
        self._mask_embedding = (
            drafter.mask_embedding
            if config.has_mask_embedding
            else self._embed(mx.array([config.mask_token_id]))[0]
        ).astype(drafter.dtype)
        d2t = drafter.d2t if config.draft_vocab_size is not None else None
        self._vocabulary = Vocabulary(config, d2t, target.vocab_size)
        mx.eval(self._mask_embedding)

    def draft(
        self, anchor: mx.array, block_size: int, context: Sequence[ContextBuffer]
    ) -> Proposal:
        """A proposal for the ``block_size - 1`` tokens after ``anchor [B]``.

        Row ``j`` of the drafter's block predicts the token at its own position, so the anchor's
        row is unused; or the one after, and then the block needs one row less.

        A second pass, if the drafter was trained for one, sees the first's likeliest tokens in the
        leading rows, whatever will be drawn there: a round checks every draft by itself.
        """
        given = anchor[:, None]
        raw, hidden = self._pass(given, block_size, context)
        prefix = self._config.draft_prefix
        if prefix is not None and block_size > prefix:
            first = self._proposal(anchor, raw, hidden)
            leading, _ = first.follow(mx.argmax(first.logits, axis=-1), first.logits)
            given = mx.concatenate([given, leading[:, : prefix - 1]], axis=1)
            again = self._pass(given, block_size, context)
            raw, hidden = (
                mx.concatenate([x[:, : prefix - 1], y[:, prefix - 1 :]], axis=1)
                for x, y in zip((raw, hidden), again, strict=True)
            )
        return self._proposal(anchor, raw, hidden)

    def _pass(
        self, given: mx.array, block_size: int, context: Sequence[ContextBuffer]
    ) -> tuple[mx.array, mx.array]:
        """The head's product and the hidden states of the rows that draft a token.

        Args:
            given: ``[B, g]``, the tokens of the leading rows, the anchor first.
            block_size: tokens to verify.
            context: context K/V.
        """
        drafter, shifted = self._drafter, self._config.sample_from_anchor
        x = self._embed(given).astype(drafter.dtype)
        masks = block_size - given.shape[1] - (1 if shifted else 0)
        shape = (x.shape[0], masks, self._config.hidden_size)
        x = mx.concatenate([x, mx.broadcast_to(self._mask_embedding, shape)], axis=1)
        hidden = drafter(x, context)
        hidden = hidden if shifted else hidden[:, 1:]
        return self._head(hidden), hidden

    def _proposal(self, anchor: mx.array, raw: mx.array, hidden: mx.array) -> Proposal:
        if self._config.selector_top_k is None:
            return IndependentRows(self._vocabulary(self._transform(raw)))
        selector, raw = self._drafter.candidate_selector, self._vocabulary(raw)
        return SelectorWalk(selector, raw, self._transform, anchor, hidden)

    def _embed(self, ids: mx.array) -> mx.array:
        config = self._config
        if config.has_embed_tokens:
            # A target whose table is padded may have emitted a token beyond the drafter's.
            x = self._drafter.embed_tokens(mx.minimum(ids, config.vocab_size - 1))
        elif config.embed_scale == "raw":
            x = self._target.embedding(ids)
        else:
            x = self._target.embed(ids)
        scale = config.input_embedding_scale
        return x if scale == 1.0 else x * scale

    def _head(self, hidden: mx.array) -> mx.array:
        if self._config.has_lm_head:
            return self._drafter.lm_head(hidden)
        return self._target.head_raw(hidden.astype(self._target.dtype))

    def _transform(self, logits: mx.array) -> mx.array:
        """The drafter's logits, in float32 where they are not simply the head's."""
        multiplier, cap = self._config.output_multiplier, self._config.final_logit_softcapping
        if multiplier != 1.0:
            logits = logits.astype(mx.float32) * multiplier
        if cap is not None:
            logits = mx.tanh(logits.astype(mx.float32) / cap) * cap
        return logits
