"""When the interval between two reads is the time of a round."""

from types import SimpleNamespace

import pytest

from dflash_mlx.engine import timing
from dflash_mlx.engine.timing import RoundTimer


class Scene:
    """A loop whose clock, reads and consumer follow a script.

    Each round is (rows, seconds of submitting, seconds waiting in the read, seconds of the
    consumer after it).
    """

    def __init__(self, monkeypatch, rounds, alone=False):
        self.now, self.rounds = 0.0, rounds
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        self.timer = RoundTimer(alone)

    def run(self, ahead=1):
        times = []
        for i, (rows, submit, wait, consumer) in enumerate(self.rounds):
            self.now += submit

            def read(rows=rows, wait=wait):
                self.now += wait
                return SimpleNamespace(block_size=rows)

            following = self.rounds[i + 1][0] if ahead and i + 1 < len(self.rounds) else None
            news, seconds = self.timer.read(SimpleNamespace(read=read, next_size=following))
            assert news.block_size == rows
            times.append(seconds)
            with self.timer.held_up():
                self.now += consumer
        return times


def test_intervals_while_the_size_stays(monkeypatch):
    gpu = [(4, 2.0, 8.0, 0.0)] * 5
    assert Scene(monkeypatch, gpu).run() == [None, 10, 10, 10, None]
    cpu = [(4, 9.9, 0.1, 0.2)] * 5
    assert Scene(monkeypatch, cpu).run() == [None, *[pytest.approx(10.2)] * 3, None]


def test_no_time_is_told_where_sizes_change(monkeypatch):
    rounds = [(size, 2.0, 8.0, 0.0) for size in (4, 4, 4, 1, 4, 4, 4, 4)]
    assert Scene(monkeypatch, rounds).run() == [None, 10, None, None, 10, 10, 10, None]


def test_a_slow_consumer_counts_only_where_the_device_was_busy(monkeypatch):
    # The device was done long before the read.
    assert Scene(monkeypatch, [(4, 2.0, 0.0, 50.0)] * 5).run() == [None] * 5
    # The device was still at it, so the read tells when it was done.
    slow = [(4, 2.0, 6.0, 2.0)] * 5
    assert Scene(monkeypatch, slow).run() == [None, None, 10, 10, None]
    # One long pause spoils two intervals: the next one begins when nobody knows.
    paused = [(4, 2.0, 8.0, 0.0)] * 2 + [(4, 2.0, 8.0, 90.0), (4, 2.0, 0.0, 0.0)]
    paused += [(4, 2.0, 8.0, 0.0)] * 3
    assert Scene(monkeypatch, paused).run() == [None, 10, 10, None, 10, 10, None]


def test_rounds_that_wait_for_the_host_are_timed_one_by_one(monkeypatch):
    rounds = [(size, 2.0, 8.0, 0.0) for size in (4, 4, 1, 4)]
    assert Scene(monkeypatch, rounds, alone=True).run(ahead=0) == [None, 10, 10, 10]


def test_seconds_leave_the_consumer_out(monkeypatch):
    scene = Scene(monkeypatch, [(4, 2.0, 8.0, 5.0)] * 3)
    scene.run()
    assert scene.timer.seconds == pytest.approx(30)
