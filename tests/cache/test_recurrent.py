"""Recurrent states: where they stand after a commit, and which lengths can be handed back."""

import copy
import itertools

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, make_prompt_cache
from support.lossless import Kind

from dflash_mlx.cache.recurrent import KEPT, RecurrentCache, Tape

KIND = Kind("qwen3_5")


def states_after(tokens):
    """mlx-lm's own states after ``tokens``, of every recurrent layer."""
    cache = make_prompt_cache(KIND.model)
    if tokens:
        KIND.model(mx.array([tokens]), cache=cache)
    return [c.cache for c in cache if type(c) is ArraysCache]


def recurrent(queue):
    return [c for c in queue.state.caches if isinstance(c, RecurrentCache)]


def handed_back(queue, length, row=0):
    return [c.hand_back(row, length, ArraysCache(2)).cache for c in recurrent(queue)]


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert a.shape == b.shape
            assert mx.allclose(a, b, rtol=1e-4, atol=1e-5)


def played(accept, lengths=(9,)):
    """Rounds, all of them read.

    Returns:
        The tokens of each row, the bonus last, where each round of row 0 ended, and the queue.
    """
    emitted, accepted, queue = KIND.check(5, accept, lengths, n=30)
    news = queue.read()
    prompts = [KIND.case(length, 30, row=row)[0] for row, length in enumerate(lengths)]
    tokens = [p + e + new for p, e, new in zip(prompts, emitted, news.tokens, strict=True)]
    steps = [counts[0] + 1 for counts in (*accepted, news.accepted)]
    return tokens, list(itertools.accumulate(steps, initial=lengths[0] - 1)), queue


@pytest.mark.parametrize("right", range(5))
def test_states_stand_at_the_last_commit_and_are_evaluated(right, tmp_path):
    (tokens,), _, queue = played(lambda _: right)
    assert queue.lengths == [len(tokens) - 1]
    # What has been evaluated has no graph behind it any more.
    mx.synchronize()
    mx.export_to_dot(str(tmp_path / "graph.dot"), *queue.state.replayed())
    assert "->" not in (tmp_path / "graph.dot").read_text()
    assert_same([c.states for c in recurrent(queue)], states_after(tokens[:-1]))


def test_every_length_of_the_last_rounds_can_be_handed_back():
    counts = [3, 0, 4, 2, 1, 4]
    (tokens,), ends, queue = played(lambda r: counts[r % 6])
    for length in range(ends[-1 - KEPT], ends[-1] + 1):
        assert_same(handed_back(queue, length), states_after(tokens[:length]))
    for length in (ends[-1 - KEPT] - 1, ends[-1] + 1):
        with pytest.raises(ValueError, match="out of reach"):
            handed_back(queue, length)


def test_rows_of_a_batch_are_handed_back_by_themselves():
    texts, _, queue = played(lambda r: [r % 5, (r + 2) % 5], (3, 20))
    for row, tokens in enumerate(texts):
        assert queue.lengths[row] == len(tokens) - 1
        assert_same(handed_back(queue, len(tokens) - 1, row), states_after(tokens[:-1]))


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
