"""The cost table: read between measured cells, and corrected by rounds."""

import copy
import json
import math
import random

import pytest

from dflash_mlx.engine.costs import GREEDY, UNKNOWN_ROUNDS, CostTable, guess_for_batch


def table(acceptance=None):
    rounds = {1: [10.0, 14.0], 2: [12.0, 20.0], 5: [18.0, 26.0]}
    sampled = {1: [11.0, 15.0], 2: [14.0, 22.0], 5: [23.0, 31.0]}
    drafts = {2: [1.0, 2.0], 5: [2.0, 3.0]}
    verifies = {1: [9.0, 13.0], 2: [10.0, 17.0], 5: [15.0, 22.0]}
    both = {"greedy": rounds, "temp": sampled}
    return copy.deepcopy(CostTable([500, 4500], both, drafts, verifies, acceptance))


def repeat(costs, times, *round_):
    for _ in range(times):
        costs.learn(*round_)
    return costs


@pytest.mark.parametrize(
    ("context", "seconds"), [(0, 10), (500, 10), (2500, 12), (4500, 14), (8500, 18)]
)
def test_lines_between_contexts_and_beyond_the_last(context, seconds):
    assert table().column(context)[1] == pytest.approx(seconds)
    assert table().column(context, "temp")[1] == pytest.approx(seconds + 1)
    assert table().column(context, "never seen") == table().column(context)


def test_rounds_correct_their_own_cell_most():
    costs = repeat(table(), 100, 2, 500, 15.0)
    assert costs.column(500)[2] == pytest.approx(15, rel=0.01)
    # The others follow in part, in case it is the machine that got slower.
    assert 10 < costs.column(500)[1] < 12.5
    assert 20 < costs.column(4500)[2] < 23
    # Another way of choosing has its own.
    assert costs.column(500, "temp") == table().column(500, "temp")


def busy():
    """A table whose smaller blocks were timed while the machine was busy."""
    sizes = {1: 45.0, 2: 133.0, 4: 126.0, 7: 120.0, 8: 119.0, 16: 240.0}
    return CostTable([500, 4500], {"greedy": {size: [x, x + 8] for size, x in sizes.items()}})


@pytest.mark.parametrize("context", [10, 500, 2500, 60_000])
def test_a_block_never_costs_more_than_a_larger_one(context):
    costs = busy()
    seconds = costs.column(context)
    assert list(seconds) == costs.sizes
    assert seconds[1] < seconds[2] == seconds[4] == seconds[7] == seconds[8] < seconds[16]
    # Only where the table says that does it change what is read.
    assert list(table().column(context).values()) == sorted(table().column(context).values())
    costs.rounds["greedy"][1] = [300.0, 308.0]
    assert costs.column(500)[1] == 119


def test_a_time_that_contradicts_the_table_counts_at_once():
    costs = busy()
    costs.learn(8, 500, 90.0)
    assert costs.column(500) == pytest.approx(
        {1: 45 * (1 - 0.5 * 29 / 119), 2: 90, 4: 90, 7: 90, 8: 90, 16: 240 * (1 - 0.5 * 29 / 119)}
    )
    # What fits the table counts in part.
    costs.learn(2, 500, 70.0)
    assert costs.column(500)[2] == pytest.approx(80)
    # Not even an absurd time spoils all.
    costs.learn(4, 500, 1e-6)
    assert costs.column(500)[1] > 25


def test_what_was_timed_does_not_give_way_to_one_time():
    costs = repeat(table(), 30, 2, 500, 12.0)
    before = costs.column(500)
    costs.learn(5, 500, 12.5)
    assert costs.column(500)[1] > 0.8 * before[1] and costs.rounds["greedy"][2][0] > 0.8 * 12
    # Sizes that were not timed give way to those that were, in both directions.
    costs = repeat(busy(), 60, 4, 500, 200.0)
    assert costs.column(500)[4] == pytest.approx(200, rel=0.01)
    assert 200 * 0.99 <= costs.column(500)[8] <= costs.column(500)[16]


def test_neighbours_move_with_a_corrected_size():
    rounds = {size: [40.0 + 10 * size] * 2 for size in range(1, 10)}
    costs = CostTable([500, 4500], {"greedy": copy.deepcopy(rounds)})
    repeat(costs, 60, 8, 500, 132.0)
    moved = {size: seconds / rounds[size][0] for size, seconds in costs.column(500).items()}
    assert moved[8] == pytest.approx(1.1, rel=0.01)
    assert 1.04 < moved[1] < moved[6] < moved[7] < moved[8] > moved[9] > 1.07


def test_a_new_way_of_choosing_adds_what_its_first_rounds_took_longer():
    costs = repeat(table(), UNKNOWN_ROUNDS - 1, 2, 500, 12.8, "top_k")
    assert costs.rounds == table().rounds
    # A hiccup among them counts for nothing.
    costs.learn(5, 500, 99.0, "top_k")
    assert costs.column(500, "top_k") == pytest.approx({1: 10.4, 2: 12.8, 5: 20.0})
    # More than choosing can take is laid to the machine, and changes the sizes alike.
    slow, greedy = repeat(costs, UNKNOWN_ROUNDS, 2, 500, 24.0, "top_p"), costs.column(500)
    assert slow.column(500, "top_p") == pytest.approx(
        {size: 24.0 / 13.0 * (x + 0.5 * size) for size, x in greedy.items()}
    )
    repeat(costs, 60, 5, 500, 19.0, "top_k")
    assert costs.column(500, "top_k")[5] == pytest.approx(19.0, rel=0.01)
    assert costs.column(500) == table().column(500)


@pytest.mark.parametrize("context", [100, 500, 1500, 4500, 6000])
def test_learning_converges_at_every_context(context):
    goal = 1.2 * table().column(context)[5]
    costs = repeat(table(), 150, 5, context, goal)
    assert costs.column(context)[5] == pytest.approx(goal, rel=0.02)


def test_a_hiccup_moves_little():
    costs = repeat(table(), 1, 2, 500, 1000.0)
    assert costs.column(500)[2] <= 12 * 1.16
    repeat(costs, 60, 2, 500, 12.0)
    assert repeat(costs, 1, 2, 500, 1000.0).column(500)[2] <= 12 * 1.04
    assert repeat(costs, 1, 2, 500, 1e-6).column(500)[2] >= 12 * 0.97


def test_noise_averages_out():
    costs, luck = table(), random.Random(0)
    for _ in range(300):
        costs.learn(2, 500, 12 * luck.uniform(0.9, 1.1) * (3 if luck.random() < 0.03 else 1))
    assert costs.column(500)[2] == pytest.approx(12, rel=0.06)


def test_what_is_learned_far_out_stays_there():
    costs = repeat(table(), 100, 1, 30_000, 60.0)
    assert costs.contexts == [500, 4500, 9000, 18000, 36000]
    assert costs.column(30_000)[1] == pytest.approx(60, rel=0.05)
    assert costs.column(500) == table().column(500)
    assert costs.column(4500)[5] == table().column(4500)[5]
    assert CostTable.from_dict(json.loads(json.dumps(costs.to_dict()))) == costs


def test_a_guess_far_out_is_corrected_within_a_few_rounds():
    guessed = table().column(16_000)[2]
    costs = repeat(table(), 12, 2, 16_000, 1.8 * guessed)
    assert costs.column(16_000)[2] > 1.48 * guessed


def test_what_has_confirmed_a_cell():
    costs = repeat(table(), 1, 2, 600, 12.0)
    assert not costs.confirmed(1, 600) and costs.confirmed(2, 600)
    repeat(costs, 1, 1, 600, 10.0)
    assert costs.confirmed(1, 600) and not costs.confirmed(1, 600, "temp")
    assert not costs.confirmed(1, 4000) and not costs.confirmed(1, 50_000)
    assert repeat(costs, 1, 1, 50_000, 100.0).confirmed(1, 50_000)


def test_acceptance_is_a_slow_mean_over_texts():
    costs, means = table(), []
    for examined, accepted in ((0, 0), (50, 20), (100, 80)):
        costs.learn_acceptance(examined, accepted)
        means.append(costs.acceptance)
    assert means == [None, pytest.approx(0.4), pytest.approx(0.6)]


def test_news_are_told_from_noise():
    costs = table(0.5)
    assert not costs.differs(table(0.52), 0.05)
    assert costs.differs(table(0.6), 0.05)
    assert costs.differs(table(), 0.05) and table().differs(costs, 0.05)
    for seconds, told in ((12.3, False), (13.0, True)):
        other = table(0.5)
        other.rounds["greedy"][2][0] = seconds
        assert other.differs(costs, 0.05) is told
    del other.rounds["temp"]
    assert costs.differs(other, 1.0)


DAMAGES = {
    "no object": lambda d: None,
    "a list": lambda d: [],
    "no contexts": lambda d: d.pop("contexts") and d,
    "one context": lambda d: d | {"contexts": [500]},
    "falling contexts": lambda d: d | {"contexts": [500, 400]},
    "no plain rounds": lambda d: d["rounds"]["greedy"].pop("1") and d,
    "a short row": lambda d: d["rounds"]["greedy"].update({"2": [1.0]}) or d,
    "not a number": lambda d: d["rounds"]["greedy"].update({"2": ["x", 1.0]}) or d,
    "NaN": lambda d: d["rounds"]["greedy"].update({"2": [math.nan, 1.0]}) or d,
    "infinite": lambda d: d["rounds"]["temp"].update({"2": [math.inf, 1.0]}) or d,
    "zero": lambda d: d["rounds"]["temp"].update({"2": [0.0, 1.0]}) or d,
    "negative": lambda d: d["drafts"].update({"2": [-1.0, 1.0]}) or d,
    "a verify without time": lambda d: d["verifies"].update({"2": [0.0, 1.0]}) or d,
    "a size of a choice missing": lambda d: d["rounds"]["temp"].pop("2") and d,
    "no greedy rounds": lambda d: d["rounds"].pop("greedy") and d,
    "acceptance beyond 1": lambda d: d | {"acceptance": 1.5},
    "acceptance in words": lambda d: d | {"acceptance": "good"},
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_not_a_table_is_refused(damage):
    content = json.loads(json.dumps(table(0.4).to_dict()))
    assert CostTable.from_dict(content) == table(0.4)
    with pytest.raises(ValueError):
        CostTable.from_dict(damage(content))


def test_costs_of_a_batch_are_guessed_by_its_positions():
    table = CostTable([32, 128], {GREEDY: {1: [1.0, 2.0], 2: [2.0, 4.0], 4: [3.0, 6.0]}})
    guess = guess_for_batch(table, 3).rounds[GREEDY]
    # 3 positions lie between 2 and 4; 6 and 12 are beyond the largest.
    assert guess == {1: [2.5, 5.0], 2: [4.5, 9.0], 4: [9.0, 18.0]}
