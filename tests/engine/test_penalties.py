"""Penalties are mlx-lm's, at every row of a block and without reading a token on the host."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors
from support.chance import MarkovTarget, RandomDrafter, collect, trials
from support.tiny import tiny_model

from dflash_mlx.cache.adopt import adopt
from dflash_mlx.cache.linear import GROWTH
from dflash_mlx.engine.choose import Chooser
from dflash_mlx.engine.history import History
from dflash_mlx.engine.penalties import Penalties
from dflash_mlx.engine.queue import RoundQueue
from dflash_mlx.engine.round import run_round
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.engine.state import State
from dflash_mlx.errors import UserError
from dflash_mlx.target.target import Target

VOCAB = 11
SETTINGS = {
    "bias": {"logit_bias": {3: 1.7, 0: -2.25, 10: float("-inf")}},
    "repetition": {"repetition_penalty": 1.3},
    "reward": {"repetition_penalty": 0.7, "repetition_context_size": 1},
    "presence": {"presence_penalty": 0.37, "presence_context_size": 7},
    "frequency": {"frequency_penalty": 0.1},
    "negative": {"frequency_penalty": -0.3, "presence_penalty": -0.7, "presence_context_size": 2},
    "all": {
        "logit_bias": {3: 1.7, 0: -2.25},
        "repetition_penalty": 1.2,
        "repetition_context_size": 5,
        "presence_penalty": 0.31,
        "presence_context_size": 9,
        "frequency_penalty": 0.13,
        "frequency_context_size": 33,
    },
}
each = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)


def theirs(settings, seen, logits):
    """mlx-lm's processors on one row ``[vocab]``, given the tokens before it."""
    row = mx.array(logits)[None]
    for processor in make_logits_processors(**settings):
        row = processor(mx.array(seen), row)
    return row[0]


def committed(texts, prompts, start, chunk, rng):
    """A history of ``texts``, written as rounds write it: blocks whose tails are rejected."""
    history = History([t[:n] for t, n in zip(texts, prompts, strict=True)], mx.array(start))
    at = np.array(prompts)
    while (at < [len(t) for t in texts]).any():
        offset = np.array(start) + at
        history.reserve(int(offset.max()) + chunk)
        block = rng.integers(0, VOCAB, (len(texts), chunk))
        for row, text in enumerate(texts):
            right = text[at[row] : at[row] + rng.integers(1, chunk + 1)]
            block[row, : len(right)] = right
            at[row] += len(right)
        history.write(mx.array(block), mx.array(offset))
    return history


@each
@pytest.mark.parametrize("n", [1, 16])
@pytest.mark.parametrize(
    ("lengths", "prompts", "start"),
    [
        ([1], [1], [0]),
        ([60], [4], [0]),
        ([25, 1, 90], [25, 1, 90], [0, 0, 0]),
        ([40, 3, 300], [8, 2, 250], [0, 0, 0]),  # the buffer grows in the middle
        ([30, 5, 12], [30, 1, 3], [700, 0, 19]),  # continued prompt caches
    ],
)
def test_every_row_of_a_block_equals_mlx_lm(settings, n, lengths, prompts, start):
    rng = np.random.default_rng(len(lengths) + n)
    # Few tokens and long windows: duplicates in every one of them.
    texts = [rng.integers(0, VOCAB, k).tolist() for k in lengths]
    history = committed(texts, prompts, start, 6, rng)
    offset = mx.array(start) + mx.array(lengths) - 1
    drafts = rng.integers(0, VOCAB, (len(texts), n - 1))
    block = np.concatenate([[[t[-1]] for t in texts], drafts], axis=1)
    history.reserve(int(offset.max().item()) + n)
    history.write(mx.array(block), offset)

    logits = mx.random.normal((len(texts), n, VOCAB), key=mx.random.key(n)) * 5
    got = Penalties(**settings).apply(logits, history, offset[:, None] + mx.arange(n))
    for row, text in enumerate(texts):
        for j in range(n):
            want = theirs(settings, text + drafts[row, :j].tolist(), logits[row, j])
            assert mx.array_equal(got[row, j], want), (row, j)


@each
def test_drafts_are_penalized_by_what_is_committed(settings):
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, VOCAB, k).tolist() for k in (9, 30)]
    history = committed(texts, [4, 30], [0, 5], 3, rng)
    offset = mx.array([8, 34])
    logits = mx.random.normal((2, 7, VOCAB), key=mx.random.key(1)) * 5
    got = Penalties(**settings).apply(logits, history, offset[:, None])
    for row, text in enumerate(texts):
        for j in range(7):
            assert mx.array_equal(got[row, j], theirs(settings, text, logits[row, j]))


def test_a_long_history_grows_in_steps():
    rng = np.random.default_rng(2)
    text = rng.integers(0, VOCAB, 3 * GROWTH).tolist()
    history = committed([text], [GROWTH], [0], 16, rng)
    sizes = {"repetition_context_size": 2 * GROWTH, "presence_context_size": 4 * GROWTH}
    settings = {"repetition_penalty": 1.1, "presence_penalty": 0.5} | sizes
    for last in (0, 1, GROWTH - 1, GROWTH, 2 * GROWTH, 3 * GROWTH - 1):
        logits = mx.random.normal((1, 1, VOCAB), key=mx.random.key(last))
        got = Penalties(**settings).apply(logits, history, mx.array([[last]]))
        assert mx.array_equal(got[0, 0], theirs(settings, text[: last + 1], logits[0, 0]))


def rounds(target, drafter, chooser, prompt, n, block_size, history):
    """``n`` tokens after ``prompt`` of a batch of one, a round queued ahead."""
    caches = target.make_cache()
    length = len(prompt) - 1
    if length:
        target.forward(mx.array([prompt[:-1]]), caches)
    offset = mx.array([length], mx.int32)
    ours = [adopt([c]) for c in caches]
    state = State(mx.array(prompt[-1:], mx.int32), offset, ours, history=history)
    queue, emitted, ahead = RoundQueue(target, drafter, chooser, state, [length]), [], 1
    if chooser.processors:
        ahead = 0
    while len(emitted) < n:
        while queue.in_flight <= ahead:
            state.committed = {0: mx.array(prompt + emitted)} if chooser.processors else {}
            queue.submit(block_size)
        emitted += queue.read().tokens[0]
    return emitted[:n]


@pytest.fixture(scope="module")
def target():
    target = Target(tiny_model("llama"))
    yield target
    target.release()


STRONG = {
    "repetition_penalty": 1.5,
    "presence_penalty": 0.8,
    "frequency_penalty": 0.4,
    "frequency_context_size": 40,
    "logit_bias": {5: 3.0, 96: -4.0},
}


@pytest.mark.parametrize("length", [1, 2, 30])
@pytest.mark.parametrize("block_size", [1, 2, 8, 16])
def test_greedy_text_equals_mlx_lm(target, block_size, length):
    prompt = (np.arange(length) * 7 % 97).tolist()
    processors = make_logits_processors(**STRONG)
    steps = generate_step(
        mx.array(prompt), target.model, max_tokens=60, logits_processors=processors
    )
    want = [int(token) for token, _ in steps]
    drafter = RandomDrafter.of(97, 16, 3.0) if block_size > 1 else None
    history = History([prompt], mx.zeros((1,), mx.int32))
    ours = Chooser(Sampling(), Penalties(**STRONG))
    assert rounds(target, drafter, ours, prompt, 60, block_size, history) == want
    # The user's own processors, called on the host's tokens, are another way to the same text.
    users = Chooser(Sampling(), processors=processors)
    assert rounds(target, drafter, users, prompt, 60, block_size, None) == want


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_sampled_text_is_that_of_the_same_processors(target, acceptance):
    prompt, drafter = [1, 2, 3], RandomDrafter.of(97, 16, 3.0)
    sampling = Sampling(temp=0.8, top_p=0.9, acceptance=acceptance, seed=3)
    if acceptance == "coupled":
        history = History([prompt], mx.zeros((1,), mx.int32))
        ours = Chooser(sampling, Penalties(**STRONG))
        texts = [
            rounds(target, d, ours, prompt, 50, b, history) for d, b in [(None, 1), (drafter, 7)]
        ]
        users = Chooser(sampling, processors=make_logits_processors(**STRONG))
        texts.append(rounds(target, drafter, users, prompt, 50, 7, None))
        assert texts[0] == texts[1] == texts[2]
    else:
        # Certain drafts draw no noise that the drafter's own penalties could change.
        certain = RandomDrafter(drafter.logits * 1e4)
        history = History([prompt], mx.zeros((1,), mx.int32))
        ours = Chooser(sampling, Penalties(**STRONG))
        users = Chooser(sampling, processors=make_logits_processors(**STRONG))
        assert rounds(target, certain, ours, prompt, 50, 7, history) == rounds(
            target, certain, users, prompt, 50, 7, None
        )


def test_rows_of_a_batch_see_their_own_history():
    # One prompt bans token 1 by its presence, the other token 2; the target likes both.
    target = MarkovTarget(mx.broadcast_to(mx.array([0.0, 3.0, 2.0, 1.0]), (4, 4)))
    state = trials(2, anchor=0, offset=1)
    state.history = History([[1, 0], [2, 0]], mx.zeros((2,), mx.int32))
    chooser = Chooser(Sampling(), Penalties(presence_penalty=9.0), batch=2)
    drafter = RandomDrafter.of(4, 4, 1.0)
    tokens = collect(target, drafter, chooser, state, lambda _: 4, 2)
    assert tokens.tolist() == [[2, 3], [1, 3]]


def test_drafts_see_the_anchor_of_their_round():
    # The anchor is a bonus that no block has held. Two tokens take turns; whoever knows that the
    # last one was the anchor guesses the next.
    target = MarkovTarget(mx.broadcast_to(mx.array([2.0, 3.0, 0.0]), (3, 3)))
    drafter = RandomDrafter(target.logits[:, None])
    state = trials(1, anchor=1, offset=0)
    state.history = History([[1]], mx.zeros((1,), mx.int32))
    chooser = Chooser(Sampling(), Penalties(presence_penalty=9.0, presence_context_size=1))
    for _ in range(10):
        anchor = state.anchor.item()
        state.reserve(state.offset.item() + 2)
        verdict = run_round(target, drafter, chooser, state, 2)
        assert verdict.accepted.tolist() == [1]
        assert verdict.tokens.tolist() == [[1 - anchor, anchor]]


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": -1.0},
        {"repetition_penalty": float("nan")},
        {"presence_penalty": float("inf")},
        {"frequency_penalty": float("nan")},
        {"logit_bias": {1: float("inf")}},
        {"logit_bias": {1: float("nan")}},
        {"repetition_context_size": 0},
        {"presence_context_size": -3},
        {"frequency_context_size": 2.5},
    ],
)
def test_settings_out_of_range(settings):
    with pytest.raises(UserError):
        Penalties(**settings)
