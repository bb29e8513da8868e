"""A drafter bound to its target, whose embedding table and head it borrows."""

import mlx.core as mx

from ..cache.linear import LinearCache
from ..errors import UserError
from ..fingerprint import fingerprint
from ..target.target import Target
from .config import DrafterConfig
from .model import Drafter


class BoundDrafter:
    """Drafts a block from an anchor, and keeps the context K/V up to date.

    This is the face that a round knows; anything with these attributes and methods can draft.

    Args:
        drafter: with its context weights stacked.
        target: the target that the features come from.

    Attributes:
        block_size: the largest block the drafter was trained for, anchor included.
        fingerprint: of the drafter, as far as its speed goes.
    """

    def __init__(self, drafter: Drafter, target: Target):
        config = drafter.config
        self.block_size = config.block_size
        self.fingerprint = fingerprint(drafter)
        self._drafter = drafter
        self._target = target
        mask = (
            drafter.mask_embedding
            if config.has_mask_embedding
            else target.embed(mx.array([config.mask_token_id]))[0]
        )
        self._mask_embedding = mask.astype(target.dtype)
        # A target's table may be padded beyond the vocabulary that the drafter was trained on.
        rows = mx.arange(target.vocab_size)
        self._known = rows < config.vocab_size if config.vocab_size < target.vocab_size else None
        mx.eval(self._mask_embedding)

    def kernels(self, block_size: int) -> str:
        """Which way the drafter's fused parts run in a round of one sequence, and why."""
        drafter = self._drafter
        return f"context K/V {drafter.context_path(block_size)}, block {drafter.block_path()}"

    def make_context(self, start: mx.array) -> list[LinearCache]:
        """Empty context K/V whose first row is at position ``start [B]``."""
        return self._drafter.make_context(start)

    def write_context(self, features: mx.array, context: list[LinearCache]) -> None:
        """Write the context K/V of ``features [B, n, taps * hidden]`` at the context's offset."""
        self._drafter.write_context(features, context)

    def draft(self, anchor: mx.array, block_size: int, context: list[LinearCache]) -> mx.array:
        """Logits ``[B, block_size - 1, vocab]`` of the tokens after ``anchor [B]``.

        Row ``j`` of a block predicts the token at its own position, so the anchor's row is unused.
        """
        x = self._target.embed(anchor[:, None])
        masks = mx.broadcast_to(
            self._mask_embedding, (x.shape[0], block_size - 1, self._mask_embedding.shape[0])
        )
        hidden = self._drafter(mx.concatenate([x, masks], axis=1), context)
        logits = self._target.head(hidden[:, 1:].astype(self._target.dtype))
        return logits if self._known is None else mx.where(self._known, logits, -mx.inf)


def check_pair(config: DrafterConfig, target: Target) -> None:
    """Check that a drafter was made for this target.

    Raises:
        UserError: naming what does not fit, with both values.
    """
    if config.target_hidden_size != target.hidden_size or config.hidden_size != target.hidden_size:
        raise UserError(
            f"The drafter was made for another target: its fc takes taps of width "
            f"{config.target_hidden_size} and its layers are {config.hidden_size} wide, but the "
            f"target's hidden size is {target.hidden_size}."
        )
    layers = target.num_layers
    if config.num_target_layers not in (None, layers):
        raise UserError(
            f"The drafter was made for a target of {config.num_target_layers} layers, but this "
            f"target has {layers}."
        )
    if beyond := [i for i in config.target_layer_ids if i >= layers]:
        raise UserError(
            f"The drafter taps layers {list(config.target_layer_ids)}, but the target has only "
            f"{layers} layers, so {beyond} do not exist."
        )
    if config.vocab_size > target.vocab_size:
        raise UserError(
            f"The drafter's vocabulary has {config.vocab_size} tokens, but the target's embedding "
            f"table has only {target.vocab_size} rows."
        )
    if not config.has_mask_embedding and config.mask_token_id >= target.vocab_size:
        raise UserError(
            f"The drafter's mask token {config.mask_token_id} has no row in the target's embedding "
            f"table of {target.vocab_size} rows, and the checkpoint brings no mask_embedding."
        )
