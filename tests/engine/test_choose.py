"""The coupled rule, user's samplers, and what they accept."""

import functools

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import make_sampler
from support.chance import (
    LIMIT,
    MarkovTarget,
    RandomDrafter,
    collect,
    count,
    exact,
    misfit,
    trials,
)
from support.plain import clear_case
from support.tiny import VOCAB, tiny_model

from dflash_mlx.cache.adopt import adopt
from dflash_mlx.engine.choose import Chooser
from dflash_mlx.engine.queue import RoundQueue
from dflash_mlx.engine.round import run_round
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.engine.state import State
from dflash_mlx.target.target import Target

FILTERS = [
    {"temp": 1.0},
    {"temp": 0.3},
    {"temp": 1.7, "top_k": 7},
    {"temp": 0.9, "top_p": 0.6},
    {"temp": 1.2, "min_p": 0.1},
    {"temp": 1.5, "top_p": 0.9, "min_p": 0.02, "top_k": 12},
    {"temp": 1.0, "top_k": 1},
    {"temp": 1.2, "min_p": 0.9, "min_tokens_to_keep": 4},
    {"temp": 1.2, "xtc_probability": 0.5, "xtc_threshold": 0.02, "xtc_special_tokens": (3, 40)},
    {"temp": 1e-6},
]
named = functools.partial(
    pytest.mark.parametrize, "settings", ids=lambda f: " ".join(f"{k}={v}" for k, v in f.items())
)
model_of = functools.cache(tiny_model)
case = functools.cache(
    lambda length, n, sampling, row: clear_case(model(), length, n, sampling, row, row)
)


def model():
    return model_of("qwen3")


def generate(prompts, drafter, sampling, n, block_size):
    """``n`` tokens of each prompt, as rows of one batch, a round queued ahead."""
    target, rows = Target(model()), []
    try:
        for prompt in prompts:
            caches = target.make_cache()
            if len(prompt) > 1:
                target.forward(mx.array([prompt[:-1]]), caches)
            rows.append(caches)
        lengths = [len(p) - 1 for p in prompts]
        state = State(
            anchor=mx.array([p[-1] for p in prompts], mx.int32),
            offset=mx.array(lengths, mx.int32),
            caches=[adopt(layer) for layer in zip(*rows, strict=True)],
        )
        chooser = Chooser(sampling, batch=len(prompts))
        queue = RoundQueue(target, drafter, chooser, state, lengths)
        emitted, accepted = [[] for _ in prompts], 0
        queue.submit(block_size)
        while min(map(len, emitted)) < n:
            queue.submit(block_size)
            news = queue.read()
            accepted += sum(news.accepted)
            for row, tokens in zip(emitted, news.tokens, strict=True):
                row += tokens
        return [row[:n] for row in emitted], accepted
    finally:
        target.release()


@named(argvalues=FILTERS)
@pytest.mark.parametrize("lengths", [(9,), (1, 70, 20)], ids=["one", "three"])
def test_coupled_text_is_plain_text_whatever_the_drafter(settings, lengths):
    n, sampling = 24, Sampling(**settings, seed=2**40 + 1)
    cases = [case(length, n, sampling, row) for row, length in enumerate(lengths)]
    prompts, texts = map(list, zip(*cases, strict=True))
    for block_size in (2, 5, 16):
        # Scale 0 leaves the choice to the noise, which the target shares; 8 is a stubborn stranger.
        for scale in (0.0, 8.0):
            drafter = RandomDrafter.of(VOCAB, 16, scale, seed=block_size)
            emitted, _ = generate(prompts, drafter, sampling, n, block_size)
            assert emitted == texts
    broken = RandomDrafter(mx.full((VOCAB, 15, VOCAB), mx.nan))
    for drafter, block_size in ((None, 1), (broken, 4)):
        assert generate(prompts, drafter, sampling, n, block_size)[0] == texts


def test_shared_noise_accepts_drafts():
    # With flat logits on both sides the noise decides alone, and every draft is accepted.
    sampling, batch = Sampling(temp=1.0), 50
    target, drafter = MarkovTarget(mx.zeros((20, 20))), RandomDrafter(mx.zeros((20, 7, 20)))
    verdict = run_round(target, drafter, Chooser(sampling, batch=batch), trials(batch), 8)
    assert (verdict.accepted == 7).all()


def coupling(p, q):
    """How often Gumbel noise shared by two distributions chooses the same token."""
    with np.errstate(divide="ignore", invalid="ignore"):
        worst = np.maximum(p[None] / p[:, None], q[None] / q[:, None]).sum(axis=-1)
    return (1 / worst[(p > 0) & (q > 0)]).sum()


def first_round(target, drafts, sampling, rows=20000):
    """Emitted tokens and accepted drafts of one two-row block per trial."""
    drafter = RandomDrafter(mx.broadcast_to(drafts, (len(target), 1, len(target))))
    chooser = Chooser(sampling, batch=rows)
    verdict = run_round(MarkovTarget(target), drafter, chooser, trials(rows), 2)
    return np.array(verdict.tokens), np.array(verdict.accepted)


@named(argvalues=[FILTERS[0], FILTERS[2], FILTERS[3]])
@pytest.mark.parametrize("blur", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("vocab", [8, 400])
def test_acceptance_of_shared_noise(vocab, blur, settings):
    rows = 20000 if vocab == 8 else 1500
    logits, other = (mx.random.normal((vocab,), key=mx.random.key(k)) * 2 for k in (1, 2))
    drafts = logits + blur * other
    target = mx.broadcast_to(logits, (vocab, vocab))
    rate, p, q = {}, *(exact(np.array(x), Sampling(**settings)) for x in (logits, drafts))
    optimum = np.minimum(p, q).sum()
    for acceptance in ("coupled", "rejection"):
        sampling = Sampling(**settings, acceptance=acceptance, seed=5)
        rate[acceptance] = first_round(target, drafts, sampling, rows)[1].mean()
    spread = LIMIT * 0.5 / rows**0.5
    assert abs(rate["coupled"] - coupling(p, q)) < spread
    assert abs(rate["rejection"] - optimum) < spread
    # What the coupling is worth: more than half of the optimum, and far beyond independent draws.
    assert coupling(p, q) >= optimum / (2 - optimum) - 1e-9
    if optimum > 0.2:
        assert rate["coupled"] > 0.55 * optimum
        if vocab == 400:
            assert rate["coupled"] > 1.5 * (p * q).sum() + spread


@pytest.mark.parametrize("drafter", ["stranger", "certain", "target"])
@named(argvalues=[{"temp": 1.0, "top_k": 4}, {"temp": 0.7, "top_p": 0.8}, {"temp": 1.5}])
def test_a_user_sampler_keeps_its_distribution(drafter, settings):
    vocab, rows = 8, 20000
    logits = mx.random.normal((vocab, vocab), key=mx.random.key(3)) * 1.5
    drafts = RandomDrafter.of(vocab, 4, 3.0, seed=4)
    if drafter == "certain":
        drafts = RandomDrafter(drafts.logits * 1e4)
    if drafter == "target":
        drafts = RandomDrafter(mx.broadcast_to(logits[:, None], (vocab, 3, vocab)))
    p = exact(np.array(logits), Sampling(**settings))

    mx.random.seed(6)
    chooser = Chooser(Sampling(sampler=make_sampler(**settings)), batch=rows)
    verdict = run_round(MarkovTarget(logits), drafts, chooser, trials(rows), 4)
    tokens, accepted = np.array(verdict.tokens), np.array(verdict.accepted)
    assert misfit(np.bincount(tokens[:, 0], minlength=vocab), p[0]) < LIMIT
    for j in range(1, 4):
        kept = tokens[accepted >= j]
        assert misfit(count(kept[:, j - 1], kept[:, j], vocab), p) < LIMIT
    # The draft is the drafter's best guess, and is kept as often as the target draws it.
    rate = p[0][np.array(drafts.logits)[0, 0].argmax()]
    assert abs((accepted > 0).mean() - rate) < LIMIT * 0.5 / rows**0.5

    text = collect(MarkovTarget(logits), drafts, chooser, trials(rows), lambda r: 4 - r % 3, 3)
    assert misfit(count(text[:, 0], text[:, 1], vocab), p) < LIMIT
    assert misfit(count(text[:, 1], text[:, 2], vocab), p) < LIMIT
    # Consecutive tokens given the first: tokens drawn anew are not those that were thrown away.
    for first in range(vocab):
        some = text[text[:, 0] == first]
        assert misfit(count(some[:, 1], some[:, 2], vocab), p) < LIMIT


def test_a_sampler_sees_normalized_rows_one_at_a_time():
    seen = []

    def sampler(logprobs):
        seen.append(logprobs)
        return mx.argmax(logprobs, axis=-1)

    logits = (mx.random.normal((6, 6), key=mx.random.key(3)) * 4).astype(mx.bfloat16)
    chooser = Chooser(Sampling(sampler=sampler), batch=1, keep_logprobs=True)
    state = trials(1)
    verdict = run_round(MarkovTarget(logits), RandomDrafter.of(6, 5, 1.0), chooser, state, 5)
    assert [x.shape for x in seen] == [(1, 6)] * 5
    for j, row in enumerate(seen):
        assert row.dtype == mx.float32
        assert mx.allclose(mx.exp(row).sum(), mx.array(1.0))
        assert mx.array_equal(row, verdict.logprobs[:, j])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_greedy_sampler_is_greedy(tied, dtype):
    logits = mx.random.normal((30, 30), key=mx.random.key(3)) * 2
    if tied:
        # Most rows have several best tokens: whichever mlx-lm's sampler takes is the right one.
        logits = mx.minimum(mx.round(logits), 2)
    logits, texts = logits.astype(dtype), []
    for sampling in (Sampling(), Sampling(sampler=make_sampler(temp=0))):
        for drafter in (None, RandomDrafter.of(30, 6, 2.0)):
            chooser = Chooser(sampling, batch=4)
            size = 6 if drafter else 1
            texts.append(
                collect(MarkovTarget(logits), drafter, chooser, trials(4), lambda _, n=size: n, 20)
            )
    assert all((text == texts[0]).all() for text in texts)


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_half_precision_logits_are_cast_before_they_are_filtered(acceptance):
    # In bfloat16 one draw in some hundreds would fall on another token.
    logits = (mx.random.normal((50, 50), key=mx.random.key(8)) * 2).astype(mx.bfloat16)
    drafts = RandomDrafter.of(50, 5, 1.0, seed=1).logits.astype(mx.bfloat16)
    sampling = Sampling(temp=0.7, top_p=0.95, acceptance=acceptance, seed=1)
    texts = []
    for dtype in (mx.bfloat16, mx.float32):
        target, drafter = MarkovTarget(logits.astype(dtype)), RandomDrafter(drafts.astype(dtype))
        chooser = Chooser(sampling, batch=500)
        texts.append(collect(target, drafter, chooser, trials(500), lambda _: 5, 10))
    assert (texts[0] == texts[1]).all()
