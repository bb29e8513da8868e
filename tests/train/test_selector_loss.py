"""The selector's training candidates and its loss, against NumPy."""

import mlx.core as mx
import numpy as np
import pytest
from support.pairs import tiny_selector
from support.training import numbers

from dflash_mlx.train.selector import candidates_with, selector_loss

K, VOCAB = 4, 97


def test_the_weakest_candidate_makes_room():
    logits = mx.array([[5.0, 1.0, 4.0, 3.0, 2.0, 0.0]] * 2)
    ids = candidates_with(logits, mx.array([2, 5]), 3)
    assert sorted(ids[0].tolist()) == [0, 2, 3]
    assert sorted(ids[1].tolist()) == [0, 2, 5]


def test_loss():
    selector = tiny_selector(VOCAB, K)
    hidden, logits = numbers(0, 3, 5, 32), numbers(1, 3, 5, VOCAB) * 3
    tokens = np.random.default_rng(2).integers(0, VOCAB, (3, 6))
    # Some of the text's tokens are among the likeliest.
    tokens[:, 2] = logits[:, 1].argmax(axis=-1)
    got = selector_loss(selector, *map(mx.array, (hidden, logits, tokens)))
    before, after = (
        np.array(book.weight, np.float64)
        for book in (selector.predecessor_codebook, selector.successor_codebook)
    )
    gates = hidden.astype(np.float64) @ np.array(selector.hidden_projection.weight).T
    for n in range(3):
        for j in range(5):
            right = tokens[n, j + 1]
            best = np.argsort(-logits[n, j])[:K].tolist()
            if right not in best:
                best[-1] = right
            row = before[tokens[n, j]] * gates[n, j]
            scores = np.array([logits[n, j, c] + row @ after[c] for c in best])
            p = np.exp(scores - scores.max())
            expected = -np.log(p[best.index(right)] / p.sum())
            assert got[n, j].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
