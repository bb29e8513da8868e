"""The cost table: read between measured cells, corrected by rounds, and checked when it is read."""

import copy
import json
import math
import random

import pytest

from dflash_mlx.engine.costs import CostTable


def table(**changes):
    parts = {
        "contexts": [500, 4500],
        "rounds": {1: [10.0, 14.0], 2: [12.0, 20.0], 5: [18.0, 26.0]},
        "drafts": {2: [1.0, 2.0], 5: [2.0, 3.0]},
        "verifies": {1: [9.0, 13.0], 2: [10.0, 17.0], 5: [15.0, 22.0]},
        "choices": {
            "greedy": {1: 0.5, 2: 1.0, 5: 2.0},
            "temp": {1: 1.5, 2: 3.0, 5: 7.0},
        },
    }
    return CostTable(**copy.deepcopy(parts | changes))


@pytest.mark.parametrize(
    ("rows", "context", "seconds"),
    [
        (1, 500, 10),
        (2, 4500, 20),
        (1, 2500, 12),
        (2, 8500, 28),
        (5, 0, 18),
        (3, 500, 14),
        (4, 4500, 24),
        (9, 500, 18),
    ],
)
def test_lines_between_cells_and_beyond_the_last_context(rows, context, seconds):
    assert table().seconds(rows, context) == pytest.approx(seconds)


def test_another_way_of_choosing_adds_what_it_takes_longer():
    assert table().seconds(2, 500, "temp") == pytest.approx(14)
    assert table().column(500, "temp") == pytest.approx({1: 11, 2: 14, 5: 23})
    assert table().seconds(2, 500, "never measured") == pytest.approx(12)


def test_rounds_correct_their_own_cell_most():
    costs = table()
    for _ in range(100):
        costs.learn(2, 500, 15.0)
    assert costs.seconds(2, 500) == pytest.approx(15, rel=0.01)
    # The others follow in part, in case it is the machine that got slower.
    assert 10 < costs.seconds(1, 500) < 12.5
    assert 20 < costs.seconds(2, 4500) < 23


@pytest.mark.parametrize("context", [100, 500, 1500, 4500, 6000])
def test_learning_converges_at_every_context(context):
    costs = table()
    goal = 1.2 * costs.seconds(5, context)
    for _ in range(150):
        costs.learn(5, context, goal)
    assert costs.seconds(5, context) == pytest.approx(goal, rel=0.02)


def test_a_hiccup_moves_little():
    costs = table()
    costs.learn(2, 500, 1000.0)
    assert costs.seconds(2, 500) <= 12 * 1.16
    for _ in range(60):
        costs.learn(2, 500, 12.0)
    costs.learn(2, 500, 1000.0)
    assert costs.seconds(2, 500) <= 12 * 1.04
    costs.learn(2, 500, 1e-6)
    assert costs.seconds(2, 500) >= 12 * 0.97


def test_noise_averages_out():
    costs, luck = table(), random.Random(0)
    for _ in range(300):
        costs.learn(2, 500, 12 * luck.uniform(0.9, 1.1) * (3 if luck.random() < 0.03 else 1))
    assert costs.seconds(2, 500) == pytest.approx(12, rel=0.06)


def test_what_is_learned_far_out_stays_there():
    costs = table()
    before = costs.seconds(1, 500), costs.seconds(5, 4500)
    for _ in range(100):
        costs.learn(1, 30_000, 60.0)
    assert costs.contexts == [500, 4500, 9000, 18000, 36000]
    assert costs.seconds(1, 30_000) == pytest.approx(60, rel=0.05)
    assert (costs.seconds(1, 500), costs.seconds(5, 4500)) == before
    assert CostTable.from_dict(json.loads(json.dumps(costs.to_dict()))) == costs


def test_a_guess_far_out_is_corrected_within_a_few_rounds():
    costs = table()
    guessed, goal = costs.seconds(2, 16_000), 1.8 * costs.seconds(2, 16_000)
    for _ in range(12):
        costs.learn(2, 16_000, goal)
    assert costs.seconds(2, 16_000) > guessed + 0.6 * (goal - guessed)


def test_what_has_confirmed_a_cell():
    costs = table()
    assert not costs.confirmed(1, 600)
    costs.learn(2, 600, 12.0)
    assert not costs.confirmed(1, 600) and costs.confirmed(2, 600)
    costs.learn(1, 600, 10.0)
    assert costs.confirmed(1, 600) and not costs.confirmed(1, 4000)
    assert not costs.confirmed(1, 50_000)
    costs.learn(1, 50_000, 100.0)
    assert costs.confirmed(1, 50_000)


def test_sizes_that_were_not_measured_teach_nothing():
    costs = table()
    costs.learn(3, 500, 99.0)
    assert costs == table()


def test_acceptance_is_a_slow_mean_over_texts():
    costs = table()
    costs.learn_acceptance(0, 0)
    assert costs.acceptance is None
    costs.learn_acceptance(50, 20)
    assert costs.acceptance == pytest.approx(0.4)
    costs.learn_acceptance(100, 80)
    assert costs.acceptance == pytest.approx(0.6)


def test_json_and_back():
    costs = table(acceptance=0.4)
    assert CostTable.from_dict(json.loads(json.dumps(costs.to_dict()))) == costs


def test_news_are_told_from_noise():
    costs = table(acceptance=0.5)
    assert not costs.differs(table(acceptance=0.52), 0.05)
    assert costs.differs(table(acceptance=0.6), 0.05)
    assert costs.differs(table(), 0.05)
    assert costs.differs(table(acceptance=0.5, choices={}), 0.05)
    for seconds, told in ((12.3, False), (13.0, True)):
        other = table(acceptance=0.5)
        other.rounds[2][0] = seconds
        assert other.differs(costs, 0.05) is told


DAMAGES = {
    "no object": lambda d: None,
    "a list": lambda d: [],
    "no contexts": lambda d: d.pop("contexts") and d,
    "one context": lambda d: d | {"contexts": [500]},
    "falling contexts": lambda d: d | {"contexts": [500, 400]},
    "no plain rounds": lambda d: d["rounds"].pop("1") and d,
    "a short row": lambda d: d["rounds"].update({"2": [1.0]}) or d,
    "not a number": lambda d: d["rounds"].update({"2": ["x", 1.0]}) or d,
    "NaN": lambda d: d["rounds"].update({"2": [math.nan, 1.0]}) or d,
    "infinite": lambda d: d["rounds"].update({"2": [math.inf, 1.0]}) or d,
    "zero": lambda d: d["rounds"].update({"2": [0.0, 1.0]}) or d,
    "negative": lambda d: d["drafts"].update({"2": [-1.0, 1.0]}) or d,
    "a verify without time": lambda d: d["verifies"].update({"2": [0.0, 1.0]}) or d,
    "rows of a choice missing": lambda d: d["choices"]["temp"].pop("2") and d,
    "choices without greedy": lambda d: d["choices"].pop("greedy") and d,
    "acceptance beyond 1": lambda d: d | {"acceptance": 1.5},
    "acceptance in words": lambda d: d | {"acceptance": "good"},
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_not_a_table_is_refused(damage):
    content = json.loads(json.dumps(table().to_dict()))
    with pytest.raises(ValueError):
        CostTable.from_dict(damage(content))
