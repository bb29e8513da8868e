"""Anchors and the blocks made of them."""

import numpy as np

from dflash_mlx.train.blocks import Sequence, make_blocks, sample_blocks


def sequence(mask: str) -> Sequence:
    """A text whose token ``i`` is ``100 + i``, supervised where ``mask`` has an x."""
    return Sequence(
        np.arange(100, 100 + len(mask), dtype=np.int32), np.array([c == "x" for c in mask])
    )


def test_an_anchor_is_followed_by_a_supervised_token():
    assert sequence("..xx.x").anchors().tolist() == [1, 2, 4]
    assert sequence("..xx.x").answers() == [(2, 4), (5, 6)]


def test_the_first_token_has_no_anchor_before_it():
    assert sequence("xxx").anchors().tolist() == [0, 1]
    assert sequence("xxx").answers() == [(1, 3)]


def test_labels_are_those_of_the_same_position():
    blocks = make_blocks(sequence("..xxxxxx"), np.array([1, 3]), 4)
    assert blocks.tokens.tolist() == [[101, 102, 103, 104], [103, 104, 105, 106]]
    assert blocks.active.tolist() == [[False, True, True, True]] * 2


def test_rows_past_the_text_and_unsupervised_ones_are_inactive():
    blocks = make_blocks(sequence(".xx.x"), np.array([0, 3]), 4)
    assert blocks.active.tolist() == [[False, True, True, False], [False, True, False, False]]


def test_given_rows_are_inactive():
    blocks = make_blocks(sequence("xxxxxx"), np.array([0]), 4, np.array([3], np.int32))
    assert blocks.active.tolist() == [[False, False, False, True]]


def test_anchors_are_distinct_sorted_random_and_not_the_same_twice():
    text, random = sequence("." * 5 + "x" * 200), np.random.default_rng(0)
    first, second = (sample_blocks(text, 4, 20, random).anchors for _ in range(2))
    for anchors in (first, second):
        assert len(set(anchors.tolist())) == 20 and (np.diff(anchors) > 0).all()
        assert anchors.min() >= 4 and anchors.max() <= 203
    assert first.tolist() != second.tolist()


def test_a_short_text_has_all_of_its_anchors():
    blocks = sample_blocks(sequence("..xxx"), 4, 20, np.random.default_rng(0))
    assert blocks.anchors.tolist() == [1, 2, 3]


def test_every_anchor_is_as_likely_as_another():
    text, random = sequence("." + "x" * 10), np.random.default_rng(0)
    drawn = np.concatenate([sample_blocks(text, 4, 3, random).anchors for _ in range(3000)])
    counts = np.bincount(drawn, minlength=10)
    assert len(counts) == 10 and (abs(counts - 900) < 5 * 900**0.5).all()


def test_a_prefix_leaves_a_row_to_learn():
    text, random = sequence("..xxx..xx"), np.random.default_rng(0)
    for _ in range(50):
        assert sample_blocks(text, 8, 9, random, prefixes=True).active.any(axis=1).all()


def test_half_of_the_blocks_get_a_prefix_and_short_ones_are_likelier():
    text, random = sequence("." + "x" * 5000), np.random.default_rng(0)
    given = sample_blocks(text, 8, 4000, random, prefixes=True).given
    counts = np.bincount(given, minlength=9)
    assert counts[0] == 0 and counts[8] == 0 and abs(counts[1] - 2000) < 5 * 1000**0.5
    expected = 0.9 ** np.arange(2, 8)
    expected *= counts[2:8].sum() / expected.sum()
    assert (abs(counts[2:8] - expected) < 5 * expected**0.5).all()
