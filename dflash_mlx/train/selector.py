"""The loss of DFlash 2's candidate selector.

How z-lab trained theirs is not published. This is the recipe of vLLM's ``speculators``: the token
before each row is the text's, the candidates are the likeliest tokens of the row as in use, and
the text's token takes the place of the weakest of them where it is none. (NeMo AutoModel instead
leaves such rows out.) The loss is added to the rows' own with the same weights.
"""

import mlx.core as mx

from ..drafter.selector import CandidateSelector, top_candidates
from .losses import cross_entropy


def selector_loss(
    selector: CandidateSelector, hidden: mx.array, logits: mx.array, tokens: mx.array
) -> mx.array:
    """Cross entropy ``[N, b - 1]`` of the text's token among the candidates of each row.

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
