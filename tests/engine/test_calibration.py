"""Calibration measures every size of tiny pairs, and leaves no trace."""

from types import SimpleNamespace

import mlx.core as mx
import pytest
from support.pairs import oracle_pair, random_pair
from support.tiny import tiny_model

from dflash_mlx.engine import calibration
from dflash_mlx.engine.calibration import (
    affordable_sizes,
    calibrate,
    sizes_to_measure,
    time_choice,
)
from dflash_mlx.engine.choose import Chooser
from dflash_mlx.engine.costs import CostTable
from dflash_mlx.engine.penalties import Penalties
from dflash_mlx.engine.sampling import Sampling


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (2, [1, 2]),
        (8, list(range(1, 9))),
        (16, list(range(1, 17))),
        (20, [*range(1, 17), 20]),
        (32, [*range(1, 17), 20, 24, 28, 32]),
    ],
)
def test_sizes_to_measure(largest, sizes):
    assert sizes_to_measure(largest) == sizes


@pytest.mark.parametrize(
    ("largest", "seconds", "sizes", "long_sizes"),
    [
        (8, 0.1, [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 4, 5, 6, 8]),
        (12, 0.3, [1, 2, 4, 8, 12], [1, 2, 4, 8, 12]),
        (12, 3.0, [1, 2, 12], [1, 2, 12]),
        (2, 3.0, [1, 2], [1, 2]),
    ],
)
def test_a_slow_machine_measures_fewer_sizes(largest, seconds, sizes, long_sizes):
    assert affordable_sizes(largest, seconds) == (sizes, long_sizes)


@pytest.mark.parametrize("unevenness", [1, 2])
@pytest.mark.parametrize("seconds", [0.25, 2.0])
def test_what_a_slow_machine_is_asked_for_is_bounded(seconds, unevenness, monkeypatch):
    now, rounds, drafts = [0.0], [], []
    monkeypatch.setattr(calibration, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    with random_pair(tiny_model(), block_size=12) as pair:
        forward, draft = pair.target.forward, pair.drafter.draft

        def slow_forward(ids, caches):
            rounds.append(ids.shape[1])
            now[0] += seconds * (unevenness if len(rounds) % 2 else 1)
            return forward(ids, caches)

        def counted_draft(*arguments):
            drafts.append(arguments)
            return draft(*arguments)

        pair.target.forward, pair.drafter.draft = slow_forward, counted_draft
        table = calibrate(pair.target, pair.drafter, 12)
    sizes, some = affordable_sizes(12, seconds)
    assert table.sizes == sizes
    measured = len(sizes + some) * (calibration.ROUNDS + 2 + 1)
    # More times of plain decoding, three warm-ups and three rigs.
    plain = len(sizes + some) // calibration.PLAIN_EVERY
    beside = plain * (calibration.ROUNDS + 2) + 3 * 2 + 3 * 2
    repeats = 2 * (calibration.PATIENCE / seconds + 2 * (calibration.ROUNDS + 2))
    assert len(rounds) <= measured + beside + (repeats if unevenness > 1 else 0)
    assert len(rounds) > measured
    alone = (calibration.REPEATS + 1) * (len(sizes + some) + len(sizes))
    assert len(drafts) <= sum(rows > 1 for rows in rounds) + alone
    if unevenness == 1 and seconds < 1:
        assert now[0] <= calibration.BUDGET + beside * seconds


def test_a_hiccup_during_one_time_of_plain_decoding_is_no_cost(monkeypatch):
    now, plain = [0.0], []
    monkeypatch.setattr(calibration, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    with random_pair(tiny_model(), block_size=8) as pair:
        forward = pair.target.forward

        def slow_at_first(ids, caches):
            plain.append(ids.shape[1] == 1)
            now[0] += 0.01 * ids.shape[1] * (3 if plain[-1] and sum(plain) < 12 else 1)
            return forward(ids, caches)

        pair.target.forward = slow_at_first
        table = calibrate(pair.target, pair.drafter, 8)
    assert sum(plain) > 24
    assert table.rounds[1][0] == pytest.approx(0.01) and table.rounds[2][0] == pytest.approx(0.02)


@pytest.mark.parametrize("budget", [0.0, 1e-9])
def test_few_sizes_make_a_table(budget, monkeypatch):
    monkeypatch.setattr(calibration, "BUDGET", budget)
    with random_pair(tiny_model()) as pair:
        table = calibrate(pair.target, pair.drafter, 6)
    assert table.sizes == [1, 2, 6] and set(table.choices["greedy"]) == {1, 2, 6}
    assert table.seconds(4, 100) > 0


@pytest.mark.parametrize(
    "family",
    ["llama", "qwen3_moe", "gemma3_text", "gpt_oss", "qwen3_next", "deepseek_v3", "glm_moe_dsa"],
)
def test_every_size_is_measured_at_two_contexts(family):
    model, calls = tiny_model(family), []
    with oracle_pair(model, [1] * 50, block_size=10) as pair:
        table = calibrate(
            pair.target, pair.drafter, 10, 4096, lambda done, total: calls.append((done, total))
        )
    assert table.sizes == list(range(1, 11))
    assert table.contexts == list(calibration.CONTEXTS)
    assert set(table.drafts) == set(range(2, 11))
    assert set(table.verifies) == set(range(1, 11))
    assert calls == [(i + 1, calls[-1][1]) for i in range(len(calls))]
    assert calls[-1][0] == calls[-1][1]
    # Sound, and does not get cheaper with length.
    assert CostTable.from_dict(table.to_dict()) == table
    assert all(short <= long for short, long in table.rounds.values())


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


@pytest.mark.parametrize(
    "chooser",
    [
        Chooser(Sampling(temp=0.7, top_p=0.9, seed=1)),
        Chooser(Sampling(temp=0.7, top_k=5, seed=1, acceptance="rejection")),
        Chooser(Sampling(), Penalties(repetition_penalty=1.2, logit_bias={3: 1.0})),
        Chooser(Sampling(), keep_logprobs=True),
    ],
    ids=["top-p", "rejection", "penalties", "logprobs"],
)
def test_every_way_of_choosing_can_be_timed(chooser):
    with random_pair(tiny_model()) as pair:
        taken = time_choice(pair.target, pair.drafter, chooser, (1, 2, 5))
    assert set(taken) == {1, 2, 5} and min(taken.values()) > 0


def test_a_slower_size_is_found_slower():
    """The device works where the host waits: in the reads, or in submitting."""
    model = tiny_model()
    with oracle_pair(model, [1] * 50, block_size=6) as pair:
        forward = pair.target.forward

        def heavy(ids, caches):
            logits, features = forward(ids, caches)
            if ids.shape[1] == 4:
                work = mx.random.normal((700, 700), key=mx.random.key(0))
                for _ in range(6):
                    work = work @ work / 700
                logits = logits + 0 * work.sum()
            return logits, features

        pair.target.forward = heavy
        table = calibrate(pair.target, pair.drafter, 6)
    for times in (table.rounds, table.verifies):
        assert times[4][0] > max(times[size][0] for size in (2, 3, 5, 6))
    # The target's work is none of the draft's.
    assert table.drafts[4][0] < table.verifies[4][0]
