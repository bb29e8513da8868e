"""The noise of a token depends on the seed, the row, the position and the purpose alone."""

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.engine.noise import ACCEPT, DRAFT, EXCLUDE, TARGET, gumbel, row_seeds, uniform

SEEDS = [0, 1, 2**32, 2**32 + 1, 2**64 - 1]
PURPOSES = (TARGET, DRAFT, ACCEPT, EXCLUDE)
VOCAB = 37
# Of a Gumbel variable: Euler's constant, and pi squared over 6.
MEAN, VARIANCE = 0.5772156649, 1.6449340668


def noise(seeds, offset, n, purpose=TARGET, vocab=VOCAB):
    return gumbel(seeds[:, purpose], mx.array(offset)[:, None] + mx.arange(n), vocab)


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_mlx_gumbel_under_the_key_of_seed_and_position(seed):
    seeds = row_seeds(seed, 3)
    got = noise(seeds, [4, 70000, 0], 5)
    numbers = uniform(seeds[:, ACCEPT], mx.array([[4, 5], [70000, 70001], [0, 1]]))
    for row, offset in enumerate([4, 70000, 0]):
        for j in range(5):
            position = mx.array(offset + j, mx.uint32)
            key = mx.stack([seeds[row, TARGET], position])
            assert mx.array_equal(got[row, j], mx.random.gumbel((VOCAB,), key=key))
            if j < 2:
                key = mx.stack([seeds[row, ACCEPT], position])
                assert mx.array_equal(numbers[row, j], mx.random.uniform(shape=(), key=key))


@pytest.mark.parametrize("vocab", [1, 2, 7, 8, 1001])
def test_neither_the_batch_nor_the_block_nor_the_offset_matters(vocab):
    # One row of a batch, and one position of a block, however they are reached.
    whole = noise(row_seeds(5, 7), [100] * 7, 40, vocab=vocab)
    for batch, offsets, n in [
        (1, [100], 1),
        (3, [103, 100, 131], 9),
        (5, [139, 100, 1, 120, 7], 2),
    ]:
        part = noise(row_seeds(5, batch), offsets, n, vocab=vocab)
        for row, offset in enumerate(offsets):
            for j in range(n):
                if offset + j >= 100 and offset + j < 140:
                    assert mx.array_equal(part[row, j], whole[row, offset + j - 100])


def test_seeds_are_reproducible_and_distinct():
    again = {seed: row_seeds(seed, 4).tolist() for seed in SEEDS}
    assert again == {seed: row_seeds(seed, 4).tolist() for seed in SEEDS}
    # Every stream of every seed is its own, at a batch of realistic size too.
    for batch in (4, 64):
        streams = np.concatenate([np.array(row_seeds(s, batch)).ravel() for s in SEEDS])
        assert len(set(streams.tolist())) == len(streams)


def test_a_larger_batch_keeps_the_seeds_of_its_first_rows():
    assert row_seeds(9, 1).tolist() == row_seeds(9, 8)[:1].tolist()
    assert row_seeds(9, 3).tolist() == row_seeds(9, 8)[:3].tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_uniform_numbers(seed):
    numbers = np.array(uniform(row_seeds(seed, 50)[:, ACCEPT], mx.zeros((50, 1)) + mx.arange(2000)))
    assert numbers.min() >= 0 and numbers.max() < 1
    n = numbers.size
    assert abs(numbers.mean() - 0.5) < 5 * (1 / 12 / n) ** 0.5
    bins = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert ((bins - n / 20) ** 2 / (n / 20)).sum() < 60  # 19 degrees of freedom


@pytest.mark.parametrize("purpose", PURPOSES)
def test_gumbel_moments(purpose):
    numbers = np.array(noise(row_seeds(3, 40), [0] * 40, 100, purpose, 50), np.float64)
    n = numbers.size
    assert np.isfinite(numbers).all()
    assert abs(numbers.mean() - MEAN) < 5 * (VARIANCE / n) ** 0.5
    # The fourth central moment of a Gumbel variable is 5.4 squared variances.
    assert abs(numbers.var() - VARIANCE) < 5 * VARIANCE * (4.4 / n) ** 0.5


def correlation(a, b):
    """In standard deviations of the correlation of independent numbers."""
    return abs(np.corrcoef(np.ravel(a), np.ravel(b))[0, 1]) * np.size(a) ** 0.5


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_streams_are_independent(seed):
    seeds = row_seeds(seed, 40)
    streams = [np.array(noise(seeds, [0] * 40, 100, p, 50)) for p in PURPOSES]
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        assert correlation(streams[a], streams[b]) < 5
    for stream in streams:
        assert correlation(stream[:, 1:], stream[:, :-1]) < 5  # positions
        assert correlation(stream[1:], stream[:-1]) < 5  # rows
        assert correlation(stream[..., 1:], stream[..., :-1]) < 5  # tokens
    # Whether a draft is kept must not hang together with what replaces it.
    numbers = np.array(uniform(seeds[:, ACCEPT], mx.zeros((40, 1)) + mx.arange(100)))
    for stream in streams[:2]:
        for token in range(50):
            assert correlation(numbers, stream[..., token]) < 5
    other = np.array(noise(row_seeds(seed ^ 1, 40), [0] * 40, 100, TARGET, 50))
    assert correlation(streams[0], other) < 5
