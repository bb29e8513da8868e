"""Which drafts are kept: two rules, both lossless, both inside the graph."""

import mlx.core as mx

from .noise import ACCEPT, TARGET, gumbel, uniform


def leading(agreed: mx.array) -> mx.array:
    """How many entries are true before the first false one, along the last axis, int32."""
    return mx.cumprod(agreed.astype(mx.int32), axis=-1).sum(axis=-1)


def accept_equal(drafts: mx.array, targets: mx.array) -> tuple[mx.array, mx.array]:
    """Keep drafts while they are the target's own tokens.

    Args:
        drafts: ``[B, n - 1]``.
        targets: ``[B, n]``, the target's choice at every row of the block.

    Returns:
        The tokens ``[B, n]``, of which ``accepted [B]`` drafts and one bonus are emitted.
    """
    return targets, leading(drafts == targets[:, :-1])


def accept_by_rejection(
    drafts: mx.array, q: mx.array, p: mx.array, seeds: mx.array, positions: mx.array
) -> tuple[mx.array, mx.array]:
    """Keep a draft with probability ``min(1, p / q)``, and correct with the residual.

    Leviathan et al., arXiv 2211.17192, algorithm 1: at the first rejected row the token is drawn
    from ``max(p - q, 0)``, after a full acceptance from the last row's ``p``.

    Args:
        drafts: ``[B, n - 1]``, drawn from ``q``.
        q: ``[B, n - 1, vocab]``, exactly the distribution that the drafts were drawn from.
        p: ``[B, n, vocab]``, the target's.
        seeds: ``[B, 4]``, one a purpose.
        positions: ``[B, n]``, of the tokens to choose.

    Returns:
        The tokens ``[B, n]``, of which ``accepted [B]`` drafts and one bonus are emitted.
    """
    n = p.shape[1]
    chosen = drafts[..., None]
    p_draft = mx.take_along_axis(p[:, :-1], chosen, axis=-1)[..., 0]
    q_draft = mx.take_along_axis(q, chosen, axis=-1)[..., 0]
    u = uniform(seeds[:, ACCEPT], positions[:, :-1])
    accepted = leading(u * q_draft < p_draft)

    row = accepted[:, None, None]
    none = mx.zeros_like(p[:, :1])
    p_row = mx.take_along_axis(p, row, axis=1)
    residual = mx.maximum(p_row - mx.take_along_axis(mx.concatenate([q, none], 1), row, axis=1), 0)
    # Equal distributions never reject, but rounding may leave no residual where they nearly are.
    residual = mx.where(residual.sum(axis=-1, keepdims=True) > 0, residual, p_row)
    at = mx.take_along_axis(positions, accepted[:, None], axis=1)
    noise = gumbel(seeds[:, TARGET], at, p.shape[-1])
    bonus = mx.argmax(mx.log(residual) + noise, axis=-1)
    tokens = mx.concatenate([drafts, bonus], axis=1)
    return mx.where(mx.arange(n) == accepted[:, None], bonus, tokens), accepted
