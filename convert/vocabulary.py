"""The map from a reduced draft vocabulary to the target's, checked and in the MLX format's form.

A checkpoint's ``d2t`` [draft_vocab_size] holds offsets, ``target = draft + d2t[draft]``, and
``t2d`` [vocab_size] says which target tokens have a draft token, in the same order. Source:
https://github.com/vllm-project/speculators, ``DraftVocabMixin``.
"""

import mlx.core as mx
import numpy as np

from ..drafter.config import DrafterConfig
from ..errors import UserError


def absolute_ids(config: DrafterConfig, d2t: mx.array, t2d: mx.array | None) -> mx.array:
    """The target id of each draft token, ``[draft_vocab_size]`` int32, strictly increasing.

    Args:
        config: With a ``draft_vocab_size``.
        d2t: ``[draft_vocab_size]``, offsets; or the ids themselves, where ``t2d`` shows that.
        t2d: ``[vocab_size]`` of booleans, if the checkpoint has it.

    Raises:
        UserError: The ids are out of order or out of range, or the two maps disagree.
    """
    found = np.array(d2t).astype(np.int64)
    ids = found + np.arange(len(found))
    if t2d is not None:
        known = _known(config, t2d)
        if np.array_equal(found, known):
            ids = found
        elif not np.array_equal(ids, known):
            raise UserError(
                f"d2t maps {len(ids)} draft tokens to other target tokens than the {len(known)} "
                "that t2d marks; the checkpoint is damaged."
            )
    if np.any(np.diff(ids) <= 0):
        raise UserError(
            "d2t does not map the draft tokens to increasing target tokens; it is damaged, or not "
            "in the form of offsets."
        )
    if ids[0] < 0 or ids[-1] >= config.vocab_size:
        raise UserError(
            f"d2t maps to the target tokens {ids[0]} to {ids[-1]}, but vocab_size is "
            f"{config.vocab_size}; it is damaged, or not in the form of offsets."
        )
    return mx.array(ids.astype(np.int32))


def check_whole(config: DrafterConfig, d2t: mx.array | None, t2d: mx.array | None) -> None:
    """Check that the maps of a drafter with the whole vocabulary say nothing.

    Raises:
        UserError: They do.
    """
    if d2t is not None and mx.any(d2t != 0).item():
        raise UserError(
            "The checkpoint has a d2t that is not all zeros, but draft_vocab_size "
            f"is the whole vocabulary ({config.vocab_size}); one of the two is wrong."
        )
    if t2d is not None and len(_known(config, t2d)) != config.vocab_size:
        raise UserError(
            "t2d leaves out target tokens, but draft_vocab_size is the whole vocabulary "
            f"({config.vocab_size}); one of the two is wrong."
        )


def _known(config: DrafterConfig, t2d: mx.array) -> np.ndarray:
    """The target tokens that ``t2d`` marks."""
    if t2d.dtype != mx.bool_ or t2d.shape != (config.vocab_size,):
        raise UserError(
            f"t2d is {t2d.dtype} of shape {list(t2d.shape)}; it must be booleans of shape "
            f"[{config.vocab_size}] (vocab_size)."
        )
    return np.flatnonzero(np.array(t2d))
