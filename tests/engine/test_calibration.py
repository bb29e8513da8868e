"""Calibration measures every size of tiny pairs, and leaves no trace."""

import mlx.core as mx
import pytest
from support.pairs import oracle_pair, random_pair
from support.tiny import tiny_model

from dflash_mlx.engine import calibration
from dflash_mlx.engine.calibration import calibrate, sizes_to_measure
from dflash_mlx.engine.costs import CostTable

UP_TO_16 = list(range(1, 17))


@pytest.mark.parametrize(
    ("largest", "seconds", "sizes", "long_sizes"),
    [
        (2, 0.0, [1, 2], [1, 2]),
        (16, 0.0, UP_TO_16, [1, 2, 4, 5, 6, 8, 9, 16]),
        (20, 0.0, [*UP_TO_16, 20], [1, 2, 4, 5, 6, 8, 9, 20]),
        (32, 0.0, [*UP_TO_16, 20, 24, 28, 32], [1, 2, 4, 5, 6, 8, 9, 32]),
        (8, 0.1, [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 4, 5, 6, 8]),
        (12, 0.3, [1, 2, 4, 8, 12], [1, 2, 4, 8, 12]),
        (12, 3.0, [1, 2, 12], [1, 2, 12]),
        (2, 3.0, [1, 2], [1, 2]),
    ],
)
def test_a_slow_machine_measures_fewer_sizes(largest, seconds, sizes, long_sizes):
    assert sizes_to_measure(largest, seconds) == (sizes, long_sizes)


@pytest.mark.parametrize("unevenness", [1, 2])
@pytest.mark.parametrize("seconds", [0.1, 0.25])
def test_what_a_slow_machine_is_asked_for_is_bounded(seconds, unevenness):
    now, rounds, drafts = 0.0, [], []
    with random_pair(tiny_model(), block_size=12) as pair:
        forward, draft = pair.target.forward, pair.drafter.draft

        def slow_forward(ids, caches):
            nonlocal now
            rounds.append(ids.shape[1])
            now += seconds * (unevenness if len(rounds) % 2 else 1)
            return forward(ids, caches)

        def counted_draft(*arguments):
            drafts.append(arguments)
            return draft(*arguments)

        pair.target.forward, pair.drafter.draft = slow_forward, counted_draft
        table = calibrate(pair.target, pair.drafter, 12, clock=lambda: now)
    sizes, some = sizes_to_measure(12, seconds)
    assert table.sizes == sizes
    measured = len(sizes + some) * (calibration.ROUNDS + 2 + 1)
    # More times of plain decoding, three warm-ups and two rigs.
    plain = len(sizes + some) // calibration.PLAIN_EVERY
    beside = plain * (calibration.ROUNDS + 2) + 3 * 2 + 2 * 2
    repeats = 2 * (calibration.PATIENCE / seconds + 2 * (calibration.ROUNDS + 2))
    assert measured < len(rounds) <= measured + beside + (repeats if unevenness > 1 else 0)
    alone = (calibration.DRAFTS + 1) * len(sizes + some)
    assert len(drafts) <= sum(size > 1 for size in rounds) + alone
    if unevenness == 1 and seconds < 1:
        assert now <= calibration.BUDGET + beside * seconds


@pytest.mark.parametrize("begins", [20, 60, 150])
def test_a_machine_that_gets_busy_does_not_take_for_ever(begins):
    """From some forward on, each takes a hundred times as long as was planned for."""
    now, forwards, seconds = 0.0, 0, 0.01
    with random_pair(tiny_model(), block_size=16) as pair:
        forward = pair.target.forward

        def slow_forward(ids, caches):
            nonlocal now, forwards
            forwards += 1
            now += seconds * (100 if forwards > begins else 1)
            return forward(ids, caches)

        pair.target.forward = slow_forward
        table = calibrate(pair.target, pair.drafter, 16, clock=lambda: now)
    assert {1, 2, 16} <= set(table.sizes)
    assert all(len(cells) == 2 for cells in table.rounds["greedy"].values())
    # What a table must have, in single rounds, and the size that was at it when the time was over.
    needed = (3 + 1) * 3 * 2 + 2 * (3 * calibration.ROUNDS + 6) + 10
    assert now <= calibration.TIME_LIMIT + needed * 100 * seconds


BUSY = {
    "steady": (lambda size, plain: 1.0, False),
    "one hiccup": (lambda size, plain: 4.0 if size == 1 and 5 <= plain < 9 else 1.0, False),
    "busy for the second half": (lambda size, plain: 1.0 if plain < 18 else 3.0, True),
    "busy while small blocks were timed": (lambda size, plain: 2.5 if size == 3 else 1.0, True),
}


@pytest.mark.parametrize("case", BUSY)
def test_times_that_contradict_one_another_are_uncertain(case, monkeypatch):
    slower, uncertain = BUSY[case]
    monkeypatch.setattr(calibration, "UNBELIEVABLE", 1.5)
    now = plain = 0
    with random_pair(tiny_model(), block_size=8) as pair:
        forward = pair.target.forward

        def timed_forward(ids, caches):
            nonlocal now, plain
            size = ids.shape[1]
            plain += size == 1
            now += 0.01 * (1 + 0.05 * size) * slower(size, plain)
            return forward(ids, caches)

        pair.target.forward = timed_forward
        table = calibrate(pair.target, pair.drafter, 8, clock=lambda: now)
    assert table.uncertain == uncertain


def test_a_hiccup_during_one_time_of_plain_decoding_is_no_cost():
    now, plain = 0.0, []
    with random_pair(tiny_model(), block_size=8) as pair:
        forward = pair.target.forward

        def slow_at_first(ids, caches):
            nonlocal now
            plain.append(ids.shape[1] == 1)
            now += 0.01 * ids.shape[1] * (3 if plain[-1] and sum(plain) < 12 else 1)
            return forward(ids, caches)

        pair.target.forward = slow_at_first
        table = calibrate(pair.target, pair.drafter, 8, clock=lambda: now)
    assert sum(plain) > 24
    costs = table.column(table.contexts[0])
    assert costs[1] == pytest.approx(0.01) and costs[2] == pytest.approx(0.02)


@pytest.mark.parametrize(
    "family",
    ["llama", "qwen3_moe", "gemma3_text", "gpt_oss", "qwen3_next", "deepseek_v3", "glm_moe_dsa"],
)
def test_every_size_is_measured_at_two_contexts(family):
    model, calls = tiny_model(family), []
    with oracle_pair(model, [1] * 50, block_size=6) as pair:
        table = calibrate(
            pair.target, pair.drafter, 6, 4096, lambda done, total: calls.append((done, total))
        )
    assert table.sizes == list(table.verifies) == [1, *table.drafts] == list(range(1, 7))
    assert table.contexts == list(calibration.CONTEXTS)
    assert calls == [(i + 1, calls[-1][0]) for i in range(len(calls))]
    # Sound, and does not get cheaper with length.
    assert CostTable.from_dict(table.to_dict()) == table
    assert all(short <= long for short, long in table.rounds["greedy"].values())


@pytest.mark.parametrize("context_length", [None, 33, 600, 2048, 100_000])
def test_contexts_stay_below_the_targets(monkeypatch, context_length):
    monkeypatch.setattr(calibration, "CONTEXTS", (512, 4096))
    monkeypatch.setattr(calibration, "ROUNDS", 1)
    with random_pair(tiny_model()) as pair:
        low, high = calibrate(pair.target, pair.drafter, 2, context_length).contexts
    assert 0 < low < high
    if context_length is not None and context_length > 512:
        assert high < context_length


def test_nothing_is_drawn_from_the_users_random_numbers():
    with random_pair(tiny_model()) as pair:
        mx.random.seed(5)
        expected = mx.random.uniform(shape=(3,)).tolist()
        mx.random.seed(5)
        calibrate(pair.target, pair.drafter, 3)
        assert mx.random.uniform(shape=(3,)).tolist() == expected


def test_a_slower_size_is_found_slower():
    """The device works where the host waits: in the reads, or in submitting."""
    model = tiny_model()
    with oracle_pair(model, [1] * 50, block_size=6) as pair:
        forward = pair.target.forward

        def heavy(ids, caches):
            logits, features = forward(ids, caches)
            if ids.shape[1] == 4:
                work = mx.random.normal((500, 500), key=mx.random.key(0))
                for _ in range(4):
                    work = work @ work / 500
                logits = logits + 0 * work.sum()
            return logits, features

        pair.target.forward = heavy
        table = calibrate(pair.target, pair.drafter, 6)
    for times in (table.rounds["greedy"], table.verifies):
        assert times[4][0] > max(times[size][0] for size in (2, 3, 5, 6))
    # The target's work is none of the draft's.
    assert table.drafts[4][0] < table.verifies[4][0]
