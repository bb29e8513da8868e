"""When the interval between two reads is the time of a round."""

from types import SimpleNamespace

import pytest

from dflash_mlx.engine.timing import RoundTimer


def run(rounds, alone=False, disturbed=()):
    """The time told of each round, and that of all without the consumer's.

    Each round is (block size, seconds of submitting, seconds waiting in the read, seconds of the
    consumer after it).
    """
    now, times = 0.0, []
    timer = RoundTimer(clock=lambda: now)
    following = [None] * len(rounds) if alone else [*(r[0] for r in rounds[1:]), None]
    for (size, submit, wait, consumer), next_size in zip(rounds, following, strict=True):
        now += submit

        def read(size=size, wait=wait):
            nonlocal now
            now += wait
            return SimpleNamespace(block_size=size)

        news, seconds = timer.read(SimpleNamespace(read=read, next_size=next_size), alone)
        assert news.block_size == size
        times.append(seconds)
        if len(times) in disturbed:
            timer.disturbed()
        with timer.held_up():
            now += consumer
    return times, timer.seconds


GPU = (4, 2.0, 8.0, 0.0)


@pytest.mark.parametrize(
    ("rounds", "times"),
    [
        ([GPU] * 5, [None, 10, 10, 10, None]),
        ([(4, 9.9, 0.1, 0.2)] * 5, [None, *[pytest.approx(10.2)] * 3, None]),
        # No time can be told where sizes change for good.
        (
            [(size, 2.0, 8.0, 0.0) for size in (4, 4, 4, 1, 1, 4, 8, 4)],
            [None, 10, None, 10, None, None, 10, None],
        ),
        # A probe: on a GPU its own interval is longer, on the CPU the one before.
        (
            [(size, 2.0, x, 0.0) for size, x in ((1, 4), (1, 4), (1, 4), (8, 9), (1, 4), (1, 4))],
            [None, 6, None, 11, 6, None],
        ),
        (
            [(size, x, 0.1, 0.0) for size, x in ((1, 6), (1, 6), (1, 11), (8, 6), (1, 6), (1, 6))],
            [None, pytest.approx(6.1), None, pytest.approx(11.1), pytest.approx(6.1), None],
        ),
        # One that seems to have taken no time is none.
        (
            [(size, x, 0.1, 0.0) for size, x in ((1, 6), (1, 6), (1, 2), (8, 1), (1, 6), (1, 6))],
            [None, pytest.approx(6.1), None, None, pytest.approx(6.1), None],
        ),
        # The device was done long before the read.
        ([(4, 2.0, 0.0, 50.0)] * 5, [None] * 5),
        # The device was still at it, so the read tells when it was done.
        ([(4, 2.0, 6.0, 2.0)] * 5, [None, None, 10, 10, None]),
        # One long pause spoils two intervals: the next one begins when nobody knows.
        (
            [GPU, GPU, (4, 2.0, 8.0, 90.0), (4, 2.0, 0.0, 0.0), GPU, GPU, GPU],
            [None, 10, 10, None, 10, 10, None],
        ),
    ],
    ids=[
        "gpu",
        "cpu",
        "sizes",
        "probe, gpu",
        "probe, cpu",
        "nothing",
        "slow consumer",
        "busy device",
        "pause",
    ],
)
def test_intervals_between_reads_that_are_the_time_of_a_round(rounds, times):
    told, seconds = run(rounds)
    assert told == times
    assert seconds == pytest.approx(sum(submit + wait for _, submit, wait, _ in rounds))


def test_what_else_is_computed_between_two_reads_is_not_laid_to_a_round():
    assert run([GPU] * 6, disturbed=[3])[0] == [None, 10, 10, None, 10, None]


def test_rounds_that_wait_for_the_host_are_timed_one_by_one():
    rounds = [(size, 2.0, 8.0, 0.0) for size in (4, 4, 1, 4)]
    assert run(rounds, alone=True)[0] == [None, 10, 10, 10]
