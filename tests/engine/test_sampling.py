"""The sampled distribution is mlx-lm's, filter by filter."""

import itertools
import math

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, apply_xtc
from support.chance import exact

from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.errors import UserError

SETTINGS = [
    {"temp": temp, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    for temp, top_p, top_k, min_p in itertools.product(
        (0.5, 1.0, 1.7), (0.0, 0.3, 0.9, 1.0), (0, 1, 5, 64, 999), (0.0, 0.02, 1.0)
    )
]


def random_logits(shape, seed=0, scale=3.0):
    return mx.random.normal(shape, key=mx.random.key(seed)) * scale


def theirs(logits, temp, top_p, top_k, min_p):
    """The chain of ``mlx_lm.sample_utils.make_sampler``, up to the draw."""
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    if 0 < top_p < 1.0:
        logprobs = apply_top_p(logprobs, top_p)
    if min_p != 0.0:
        logprobs = apply_min_p(logprobs, min_p)
    # Where mlx-lm refuses a top_k beyond the vocabulary, keeping all tokens is what it means.
    if 0 < top_k < logits.shape[-1]:
        logprobs = apply_top_k(logprobs, top_k)
    return logprobs * (1.0 / temp)


def same(a, b):
    return mx.array_equal(a, b, equal_nan=False)


@pytest.mark.parametrize("vocab", [1, 2, 64])
def test_equals_the_chain_of_mlx_lm(vocab):
    logits = random_logits((3, 4, vocab))
    for settings in SETTINGS:
        got, rows = Sampling(**settings).scores(logits), []
        for row in logits.reshape(-1, vocab):
            rows.append(theirs(row[None], **settings))
        assert same(got.reshape(-1, vocab), mx.concatenate(rows)), settings


@pytest.mark.parametrize("vocab", [1, 2, 64])
@pytest.mark.parametrize("special", [(), (0, 1)])
def test_xtc_and_the_least_to_keep_are_mlx_lms(vocab, special):
    logits = random_logits((5, vocab))
    few = {"top_p": 0.9, "min_p": 0.2, "min_tokens_to_keep": 3, "top_k": 5}
    xtc = {"xtc_probability": 0.4, "xtc_threshold": 0.05, "xtc_special_tokens": special}
    got = Sampling(temp=0.7, **few, **xtc)
    spared = mx.array([i in special for i in range(vocab)])
    for luck, applied in ((0.3, True), (0.5, False)):
        rows = []
        for row in logits:
            logprobs = row[None] - mx.logsumexp(row)
            logprobs = apply_min_p(apply_top_p(logprobs, 0.9), 0.2, min(3, vocab))
            if applied:
                logprobs = apply_xtc(logprobs, 1.0, 0.05, [i for i in special if i < vocab])
            rows.append((apply_top_k(logprobs, 5) if vocab > 5 else logprobs) * (1 / 0.7))
        assert same(got.scores(logits, mx.array(luck), spared), mx.concatenate(rows))


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_logits_with_their_ties(dtype):
    # Callers cast first. Values of 8 bits tie often, and every filter must break ties alike.
    logits = random_logits((2, 6, 300)).astype(dtype).astype(mx.float32)
    for settings in SETTINGS[:: 1 if dtype == mx.bfloat16 else 7]:
        got = Sampling(**settings).scores(logits)
        rows = [theirs(row[None], **settings) for row in logits.reshape(-1, 300)]
        assert got.dtype == mx.float32
        assert same(got.reshape(-1, 300), mx.concatenate(rows)), settings


def test_equals_the_definition():
    logits = random_logits((5, 40), seed=1)
    for settings in SETTINGS:
        sampling = Sampling(**settings)
        scores = sampling.scores(logits)
        want = exact(np.array(logits), sampling)
        got = np.array(mx.softmax(scores, axis=-1))
        assert np.allclose(got, want, rtol=1e-4, atol=1e-7), settings
        # Filtered means impossible: no noise, however large, may bring a token back.
        assert np.array_equal(np.array(scores) == -np.inf, want == 0), settings


def test_banned_tokens_stay_banned():
    banned = mx.arange(40) % 3 == 0
    logits = mx.where(banned, -mx.inf, random_logits((5, 40), seed=2))
    for settings in SETTINGS:
        scores = Sampling(**settings).scores(logits)
        assert not mx.isnan(scores).any()
        assert (mx.where(banned, scores, -mx.inf) == -mx.inf).all()
        assert (scores.max(axis=-1) > -mx.inf).all()
    one = mx.where(mx.arange(40) == 7, 2.5, -mx.inf)[None]
    for settings in SETTINGS:
        scores = Sampling(**settings).scores(one)[0]
        assert scores[7] == 0 and (scores == -mx.inf).sum() == 39


def test_the_filters_come_before_the_temperature():
    # At temperature 1 two tokens fill the nucleus; at 3 it would take three, at 0.2 one.
    logits = mx.log(mx.array([[0.5, 0.3, 0.15, 0.05]]))
    for temp in (0.2, 1.0, 3.0):
        for settings in ({"top_p": 0.7}, {"min_p": 0.55}):
            scores = Sampling(temp=temp, **settings).scores(logits)[0]
            assert (scores > -mx.inf).tolist() == [True, True, False, False]


def test_ties():
    logits = mx.zeros((2, 10))
    assert (Sampling(temp=1.0, top_k=3).scores(logits) > -mx.inf).sum(axis=-1).tolist() == [3, 3]
    # A tie at the edge of the nucleus is kept whole, as mlx-lm keeps it.
    assert (Sampling(temp=1.0, top_p=0.25).scores(logits) > -mx.inf).sum() == 20


@pytest.mark.parametrize("top_p", [1e-3, 1e-30, 1e-40, 1e-300])
def test_a_nucleus_of_one(top_p):
    logits = random_logits((4, 9, 50), seed=3)
    scores = Sampling(temp=1.3, top_p=top_p).scores(logits)
    assert ((scores > -mx.inf).sum(axis=-1) == 1).all()
    assert mx.array_equal(scores.argmax(axis=-1), logits.argmax(axis=-1))


@pytest.mark.parametrize("temp", [1e-30, 1e-6, 1e-3, 1e3, 1e6, 1e30])
def test_extreme_temperatures(temp):
    logits = mx.where(mx.arange(50) == 3, -mx.inf, random_logits((6, 50), seed=4))
    for settings in ({}, {"top_k": 5}, {"top_p": 0.6}):
        scores = Sampling(temp=temp, **settings).scores(logits)
        p = mx.softmax(scores, axis=-1)
        assert mx.allclose(p.sum(axis=-1), mx.array(1.0)) and (p[:, 3] == 0).all()
        if temp <= 1e-3:
            assert mx.array_equal(scores.argmax(axis=-1), logits.argmax(axis=-1))
        if temp >= 1e3:
            kept = p > 0
            even = kept / kept.sum(axis=-1, keepdims=True)
            assert mx.allclose(p, even, atol=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {"temp": -1},
        {"temp": math.nan},
        {"temp": math.inf},
        # Their reciprocals are not float32 numbers, and would turn every score into NaN.
        {"temp": 1e-40},
        {"temp": 1e40},
        {"top_p": 1.5},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"top_k": -1},
        {"top_k": 2.5},
        {"seed": -1},
        {"seed": 2**64},
        {"seed": 0.5},
        {"acceptance": "typical"},
        {"temp": 1.0, "sampler": lambda x: x},
        {"acceptance": "rejection", "sampler": lambda x: x},
    ],
)
def test_settings_out_of_range(settings):
    with pytest.raises(UserError):
        Sampling(**settings)
