"""The map of a reduced vocabulary, in its forms and with its mistakes."""

import mlx.core as mx
import pytest
from formats import make, vocabulary_maps

from dflash_mlx.convert.reader import draft_ids
from dflash_mlx.errors import UserError

CONFIG, WHOLE = (make(f"speculators{which}").config for which in ("", ", whole vocabulary"))
IDS = mx.array([*range(0, 20), 30, 41, 41 + 11, 63], mx.int32)
OFFSETS, KNOWN = vocabulary_maps(IDS, 64).values()


@pytest.mark.parametrize(
    ("d2t", "t2d"),
    [
        (OFFSETS, None),
        (OFFSETS, KNOWN),
        (OFFSETS.astype(mx.int32), KNOWN),
        # The ids themselves, which t2d confirms.
        (IDS, KNOWN),
    ],
)
def test_forms(d2t: mx.array, t2d: mx.array | None) -> None:
    ids = draft_ids(CONFIG, d2t, t2d)
    assert ids.dtype == mx.int32
    assert mx.array_equal(ids, IDS)


@pytest.mark.parametrize(
    ("d2t", "t2d", "problem"),
    [
        # Absolute ids without anything that says so lead out of the vocabulary.
        (IDS, None, r"target tokens 0 to 86, .*vocab_size \(64\)"),
        (OFFSETS - 1, None, "target tokens -1 to 62"),
        (OFFSETS[::-1], None, "increasing"),
        (OFFSETS, vocabulary_maps(IDS + 1, 64)["t2d"], "24 draft tokens to other target tokens"),
        (OFFSETS, vocabulary_maps(IDS[:-1], 64)["t2d"], "than the 23 that t2d marks"),
        (OFFSETS, KNOWN[:-1], r"t2d is .* of shape \[63\]"),
        (OFFSETS, KNOWN.astype(mx.float32), "t2d is mlx.core.float32"),
    ],
)
def test_mistakes(d2t: mx.array, t2d: mx.array | None, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        draft_ids(CONFIG, d2t, t2d)


def test_the_whole_vocabulary() -> None:
    assert draft_ids(WHOLE, None, None) is None
    assert draft_ids(WHOLE, mx.zeros(64, mx.int64), mx.ones(64, mx.bool_)) is None
    with pytest.raises(UserError, match="d2t that is not all zeros"):
        draft_ids(WHOLE, mx.arange(64), None)
    with pytest.raises(UserError, match="t2d leaves out"):
        draft_ids(WHOLE, None, KNOWN)
