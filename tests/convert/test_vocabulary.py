"""The map of a reduced vocabulary, in its forms and with its mistakes."""

import mlx.core as mx
import pytest
from formats import drafter_of

from dflash_mlx.convert.reader import draft_ids
from dflash_mlx.errors import UserError

CONFIG = drafter_of("speculators")
IDS = mx.array([*range(0, 20), 30, 41, 41 + 11, 63], mx.int32)
OFFSETS = IDS - mx.arange(24)


def known(ids: mx.array) -> mx.array:
    return (mx.arange(64)[:, None] == ids).any(axis=1)


@pytest.mark.parametrize("dtype", [mx.int32, mx.int64])
@pytest.mark.parametrize("t2d", [None, known(IDS)])
def test_offsets(dtype: mx.Dtype, t2d: mx.array | None) -> None:
    ids = draft_ids(CONFIG, OFFSETS.astype(dtype), t2d)
    assert ids.dtype == mx.int32
    assert mx.array_equal(ids, IDS)


def test_absolute_ids_that_t2d_confirms() -> None:
    assert mx.array_equal(draft_ids(CONFIG, IDS, known(IDS)), IDS)


@pytest.mark.parametrize(
    ("d2t", "t2d", "problem"),
    [
        # Absolute ids without anything that says so lead out of the vocabulary.
        (IDS, None, r"target tokens 0 to 86, .*vocab_size \(64\)"),
        (OFFSETS - 1, None, "target tokens -1 to 62"),
        (OFFSETS[::-1], None, "increasing"),
        (OFFSETS, known(IDS + 1), "24 draft tokens to other target tokens"),
        (OFFSETS, known(IDS[:-1]), "than the 23 that t2d marks"),
        (OFFSETS, known(IDS)[:-1], r"t2d is .* of shape \[63\]"),
        (OFFSETS, known(IDS).astype(mx.float32), "t2d is mlx.core.float32"),
    ],
)
def test_mistakes(d2t: mx.array, t2d: mx.array | None, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        draft_ids(CONFIG, d2t, t2d)


def test_the_whole_vocabulary() -> None:
    config = drafter_of("speculators, whole vocabulary")
    draft_ids(config, None, None)
    draft_ids(config, mx.zeros(64, mx.int64), mx.ones(64, mx.bool_))
    with pytest.raises(UserError, match="d2t that is not all zeros"):
        draft_ids(config, mx.arange(64), None)
    with pytest.raises(UserError, match="t2d leaves out"):
        draft_ids(config, None, known(IDS))
