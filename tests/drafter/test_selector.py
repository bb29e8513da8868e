"""The candidate selector: which candidates, which way through them, and by which distribution."""

import mlx.core as mx
import numpy as np
import pytest
from support.pairs import tiny_selector

from dflash_mlx.drafter.selector import SelectorWalk, top_candidates

B, ROWS, HIDDEN = 3, 5, 32


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(
    ("vocab", "k"), [(1, 1), (7, 7), (97, 4), (5000, 16), (4097, 16), (4096, 16), (40000, 3)]
)
def test_candidates_are_the_largest(vocab, k, dtype):
    logits = mx.random.normal((2, 3, vocab), key=mx.random.key(vocab)).astype(dtype)
    ids = top_candidates(logits, k)
    assert ids.shape == (2, 3, k)
    numbers = np.array(logits.astype(mx.float32))
    found = np.take_along_axis(numbers, np.array(ids), axis=-1)
    assert (np.sort(found) == np.sort(numbers)[..., -k:]).all()
    # Equal values may come in any order, but no token twice.
    assert all(len(set(row)) == k for row in np.array(ids).reshape(-1, k).tolist())


def test_candidates_of_a_vocabulary_that_is_mostly_unknown():
    logits = mx.full((1, 1, 20000), -mx.inf)
    logits[..., 19990:] = mx.arange(10)
    logits[..., 5] = 3.5
    assert set(top_candidates(logits, 11).flatten().tolist()) == {5, *range(19990, 20000)}


def one_by_one(selector, raw, anchor, hidden, choose):
    """The walk as a loop: tokens ``[rows]`` and scores ``[rows, vocab]`` of one sequence."""
    before, after, project = (
        np.array(x.weight, np.float64)
        for x in (
            selector.predecessor_codebook,
            selector.successor_codebook,
            selector.hidden_projection,
        )
    )
    tokens, rows = [], []
    for j, row in enumerate(raw):
        kept = np.argsort(row)[-selector.top_k :]
        scores = np.full(row.shape, -np.inf)
        scores[kept] = row[kept] + after[kept] @ (before[anchor] * (project @ hidden[j]))
        anchor = choose(j, scores)
        tokens.append(anchor)
        rows.append(scores)
    return np.array(tokens), np.stack(rows)


@pytest.fixture
def parts():
    selector = tiny_selector(vocab=97, top_k=5)
    raw = mx.random.normal((B, ROWS, 97), key=mx.random.key(1)) * 2
    hidden = mx.random.normal((B, ROWS, HIDDEN), key=mx.random.key(2)) * 0.3
    return selector, raw, mx.array([4, 96, 0], mx.int32), hidden


@pytest.mark.parametrize("draws", [False, True])
def test_walk_is_that_of_a_loop(parts, draws):
    selector, raw, anchor, hidden = parts
    walk = SelectorWalk(selector, raw, lambda x: x, anchor, hidden)
    noise = mx.random.gumbel(raw.shape, key=mx.random.key(3)) * 3 * draws
    choice = mx.argmax(walk.logits + walk.pick(noise), axis=-1)
    tokens, scores = walk.follow(choice, walk.logits)
    assert tokens.dtype == mx.int32
    for b in range(B):
        drawn = np.array(noise[b])
        path, rows = one_by_one(
            selector,
            np.array(raw[b]),
            anchor[b].item(),
            np.array(hidden[b]),
            lambda j, scores, drawn=drawn: int(np.argmax(scores + drawn[j])),
        )
        assert tokens[b].tolist() == path.tolist()
        known = np.isfinite(rows)
        assert (np.isfinite(np.array(scores[b])) == known).all()
        assert np.allclose(np.array(scores[b])[known], rows[known], atol=1e-4)
    # The pairwise part has its say: without it, the walk is another.
    assert not mx.array_equal(tokens, mx.argmax(raw + noise, axis=-1))


def cap(logits):
    return mx.tanh(logits / 2) * 2


def test_transform_is_applied_to_what_is_kept(parts):
    selector, raw, anchor, hidden = parts
    walk = SelectorWalk(selector, raw, cap, anchor, hidden)
    capped = SelectorWalk(selector, cap(raw), lambda x: x, anchor, hidden)
    assert mx.allclose(scores_of(walk), scores_of(capped), atol=1e-5)


def scores_of(walk):
    return walk.follow(mx.argmax(walk.logits, axis=-1), walk.logits)[1]


def test_penalties_come_before_the_candidates_are_found(parts):
    selector, raw, anchor, hidden = parts
    best = mx.argmax(raw[0, 0]).item()
    bias = mx.where(mx.arange(97) == best, -mx.inf, mx.where(mx.arange(97) == 7, 50.0, 0.0))
    unknown = mx.where(mx.arange(97) == 9, -mx.inf, raw)
    walk = SelectorWalk(selector, unknown, cap, anchor, hidden).penalized(lambda x: x + bias)
    assert not (walk.ids == best).any()
    assert not (walk.ids == 9).any()
    assert (walk.ids == 7).any(axis=-1).all()
    expected = SelectorWalk(selector, cap(raw) + bias, lambda x: x, anchor, hidden)
    assert mx.allclose(scores_of(walk)[..., 7], scores_of(expected)[..., 7])


def test_anchor_beyond_the_codebooks_is_drafted_from_all_the_same(parts):
    selector, raw, _, hidden = parts
    walk = SelectorWalk(selector, raw, lambda x: x, mx.array([97, 500, 96]), hidden)
    assert mx.isfinite(walk.logits).all()
