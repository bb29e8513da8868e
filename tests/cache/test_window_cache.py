"""The ring of a drafter's sliding layers holds what was committed last, and nothing else."""

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.cache.context import WindowContext, stack

BLOCK = 8


class Recorded:
    """A ring and a list that agree: each committed row has a number of its own."""

    def __init__(self, window: int, start: int):
        self.window = window
        self.ring = WindowContext(mx.array([start], mx.int32), window, BLOCK)
        self.rows: dict[int, int] = {}
        self.end = self.oldest = start
        self._count = 0

    def _numbers(self, n: int) -> mx.array:
        self._count += n
        return (mx.arange(n) + self._count).astype(mx.float32).reshape(1, 1, n, 1)

    def write(self, n: int, kept: int) -> None:
        self.ring.reserve(self.end + n + BLOCK)
        rows = self._numbers(n)
        self.ring.write(rows, -rows)
        numbers = rows.flatten().tolist()
        self.rows |= {self.end + j: numbers[j] for j in range(kept)}
        self.end += kept
        self.ring.commit(mx.array([self.end], mx.int32), mx.array([kept - 1]))

    def rewind(self, length: int) -> None:
        # Two rounds may be taken back, and the window before them is still there.
        self.oldest = min(max(self.oldest, self.end - self.window - 2 * BLOCK), length)
        self.ring.rewind(length)
        self.end = length
        self.rows = {p: row for p, row in self.rows.items() if p < length}

    def check(self, n: int) -> None:
        """Draft ``n`` rows, and look at the window before them and at themselves."""
        ring, block = self.ring, self._numbers(n)
        ring.reserve(self.end + n)
        keys, values = ring.update_and_fetch(block, -block)
        positions = np.array(ring.positions(n))[0]
        seen = (positions >= max(self.end - self.window, ring.start.item())) & (
            positions < self.end + n
        )
        found = dict(
            zip(
                positions[seen].tolist(),
                keys[0, 0, :, 0][mx.array(np.flatnonzero(seen))].tolist(),
                strict=True,
            )
        )
        truth = self.rows | {self.end + j: x for j, x in enumerate(block.flatten().tolist())}
        oldest = max(self.end - self.window, self.oldest)
        # All that is there is right, and all that must be there is.
        assert all(truth[p] == number for p, number in found.items())
        assert set(range(oldest, self.end + n)) <= set(found)
        assert mx.array_equal(values, -keys)


@pytest.mark.parametrize("window", [1, 5, 40, 41, 104])
@pytest.mark.parametrize("start", [0, 777])
def test_any_sequence_of_rounds_chunks_and_rewinds(window, start):
    random = np.random.RandomState(window)
    for _ in range(6):
        recorded = Recorded(window, start)
        for _ in range(40):
            kind = random.randint(10)
            if kind == 0:
                rows = random.randint(1, 300)
                recorded.write(rows, rows)
            elif kind == 1 and recorded.end > start:
                recorded.rewind(random.randint(start, recorded.end + 1))
            else:
                rows = random.randint(1, BLOCK + 1)
                recorded.check(rows)
                recorded.write(rows, random.randint(1, rows + 1))
            recorded.check(random.randint(1, BLOCK + 1))


# Rings have 64 slots or a multiple: with 40 too few slots would be rounded up to enough.
@pytest.mark.parametrize("window", [40, 41, 56])
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_rewound_by_the_rounds_in_flight_it_misses_nothing(rounds, window):
    recorded = Recorded(window, 0)
    for _ in range(40):
        recorded.write(BLOCK, BLOCK)
    assert recorded.ring.start.item() == 0
    recorded.rewind(recorded.end - rounds * BLOCK)
    recorded.oldest = 0
    recorded.check(BLOCK)


def test_stacked_rows_are_as_each_was():
    rings = [Recorded(12, 0), Recorded(12, 0), Recorded(12, 5)]
    for ring, chunks in zip(rings, ((90, 3), (), (7,)), strict=True):
        for n in chunks:
            ring.write(n, n)
    stacked = stack([r.ring for r in rings])
    stacked.reserve(200)
    assert stacked.offset.tolist() == [93, 0, 12]
    assert stacked.start.tolist() == [0, 0, 5]
    assert stacked.keys.shape == (3, 1, 64, 1)
    assert mx.array_equal(stacked.keys[0:1], rings[0].ring.keys)
    assert mx.array_equal(stacked.keys[2:3], rings[2].ring.keys)
    positions = stacked.positions(4)
    for row, ring in enumerate(rings):
        ring.ring.reserve(200)
        assert mx.array_equal(positions[row], ring.ring.positions(4)[0])
