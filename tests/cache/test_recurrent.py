"""Recurrent states: where they stand after a commit, and which lengths can be handed back."""

import copy
import functools

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, make_prompt_cache
from support.batch import run, start
from support.oracle import OracleDrafter
from support.plain import clear_case
from support.tiny import VOCAB, tiny_model

from dflash_mlx.cache.recurrent import KEPT, RecurrentCache, Tape
from dflash_mlx.engine.choose import Chooser
from dflash_mlx.engine.queue import RoundQueue
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.target.target import Target

FAMILY = "qwen3_5"
model_of = functools.cache(tiny_model)


@functools.cache
def case(length=9):
    return clear_case(model_of(FAMILY), length, 80, Sampling())


def states_after(tokens):
    """mlx-lm's own states after ``tokens``, of every recurrent layer."""
    cache = make_prompt_cache(model_of(FAMILY))
    if tokens:
        model_of(FAMILY)(mx.array([tokens]), cache=cache)
    return [c.cache for c in cache if type(c) is ArraysCache]


def recurrent(state):
    return [c for c in state.caches if isinstance(c, RecurrentCache)]


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert a.shape == b.shape
            assert mx.allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("right", range(5))
def test_states_stand_at_the_last_commit(right):
    prompt, truth = case()
    target = Target(model_of(FAMILY), (0,))
    drafter = OracleDrafter([prompt + truth], lambda _: right, VOCAB)
    _, _, queue = run(target, drafter, [prompt], 30, 5, Sampling())
    target.release()
    # One round is in flight, and the states are already behind it.
    length = len(prompt) - 1 + (right + 1) * drafter.rounds
    expected = states_after((prompt + truth)[:length])
    assert_same([c.states for c in recurrent(queue.state)], expected)


def test_every_length_of_the_last_rounds_can_be_handed_back():
    prompt, truth = case()
    counts = [3, 0, 4, 2, 1, 4]
    target = Target(model_of(FAMILY), (0,))
    drafter = OracleDrafter([prompt + truth], lambda r: counts[r % 6], VOCAB)
    _, _, queue = run(target, drafter, [prompt], 12, 5, Sampling())
    target.release()
    rounds = drafter.rounds
    ends = [len(prompt) - 1 + sum(counts[r % 6] + 1 for r in range(n)) for n in range(rounds + 1)]
    for length in range(ends[-1 - KEPT], ends[-1] + 1):
        caches = [ArraysCache(2) for _ in recurrent(queue.state)]
        for ours, stock in zip(recurrent(queue.state), caches, strict=True):
            ours.hand_back(0, length, stock)
        assert_same([c.cache for c in caches], states_after((prompt + truth)[:length]))
    for length in (ends[-1 - KEPT] - 1, ends[-1] + 1):
        with pytest.raises(ValueError, match="out of reach"):
            recurrent(queue.state)[0].hand_back(0, length, ArraysCache(2))


def test_rows_of_a_batch_are_handed_back_by_themselves():
    cases = [clear_case(model_of(FAMILY), k, 80, Sampling(), row) for row, k in enumerate((3, 20))]
    prompts, truth = zip(*cases, strict=True)
    target = Target(model_of(FAMILY), (0,))
    drafter = OracleDrafter([prompts[0] + truth[0], prompts[1] + truth[0]], lambda _: 3, VOCAB)
    emitted, _, queue = run(target, drafter, prompts, 20, 5, Sampling())
    target.release()
    for row in range(2):
        length = queue.lengths[row]
        caches = [ArraysCache(2) for _ in recurrent(queue.state)]
        for ours, stock in zip(recurrent(queue.state), caches, strict=True):
            ours.hand_back(row, length, stock)
        tokens = (prompts[row] + emitted[row])[:length]
        assert_same([c.cache for c in caches], states_after(tokens))


def test_stock_caches_and_copies_of_them_stay_as_they_are():
    stock = ArraysCache(2)
    stock.cache = [mx.ones((1, 3, 4)), mx.ones((1, 2, 4, 4))]
    before = list(stock.cache)
    ours = RecurrentCache.adopt([stock])
    window = mx.concatenate([before[0], mx.zeros((1, 2, 4))], axis=1)
    ours[0], ours[1] = window[:, -3:], window[:, -3:]
    ours.record(Tape(windows=[window, window]))
    shared = copy.copy(stock)
    ours.commit(mx.array([5]), mx.array([0]))
    assert all(a is b for a, b in zip(stock.cache, before, strict=True))
    ours.hand_back(0, 5, stock)
    assert stock.cache[0].sum().item() == 8
    assert all(a is b for a, b in zip(shared.cache, before, strict=True))


def test_a_row_without_a_state_starts_from_zeros():
    full = ArraysCache(1)
    full.cache = [mx.ones((1, 3, 4))]
    states = RecurrentCache.adopt([ArraysCache(1), full]).states
    assert states[0].shape == (2, 3, 4)
    assert states[0].sum(axis=(1, 2)).tolist() == [0, 12]
    assert RecurrentCache.adopt([ArraysCache(1), ArraysCache(1)]).states == [None]


def test_states_of_unknown_origin_are_refused():
    def written(*states):
        cache = RecurrentCache([None] * 2)
        for i, state in enumerate(states):
            cache[i] = state
        return cache

    window, state = mx.zeros((1, 5, 4)), mx.zeros((1, 3, 4))
    with pytest.raises(ValueError, match="no convolution or recurrence"):
        written(state, state).record(Tape([window]))
    with pytest.raises(ValueError, match="no convolution or recurrence"):
        written(state).record(Tape([window, window]))
    with pytest.raises(ValueError, match="elsewhere"):
        written(state, state).record(Tape([window, window, window]))
    with pytest.raises(ValueError, match="no convolution or recurrence"):
        written(mx.zeros((1, 3, 7)), state).record(Tape([window, window]))
    with pytest.raises(ValueError, match="not recorded"):
        written(state, state).commit(mx.array([3]), mx.array([2]))


def test_a_round_evaluates_its_states(tmp_path):
    prompt, truth = case()
    target = Target(model_of(FAMILY), (0,))
    drafter = OracleDrafter([prompt + truth], lambda r: r % 5, VOCAB)
    state, lengths = start(target, drafter, [prompt])
    queue = RoundQueue(target, drafter, Chooser(Sampling()), state, lengths)
    for _ in range(3):
        queue.submit(5)
        queue.read()
    target.release()
    # What has been evaluated has no graph behind it any more.
    mx.synchronize()
    mx.export_to_dot(str(tmp_path / "graph.dot"), *queue.state.replayed())
    assert "->" not in (tmp_path / "graph.dot").read_text()
