"""Users' samplers, which are lossless in distribution, and seeds."""

import functools

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import make_sampler
from support.chance import LIMIT, count, misfit
from support.pairs import random_pair, respond, tokens_of
from support.plain import plain_greedy, random_prompt
from support.tiny import VOCAB, tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx.engine.sampling import Sampling

TOKENIZER = byte_tokenizer()
SMALL = 8
XTC = {"temp": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.1}
SAMPLERS = {
    "temp": {"temp": 1.0},
    "top_p": {"temp": 0.8, "top_p": 0.7},
    "top_k": {"temp": 1.2, "top_k": 3},
    "min_p": {"temp": 1.0, "min_p": 0.2},
    "xtc": XTC,
}
model = functools.cache(tiny_model)


@functools.cache
def memoryless():
    """A target of 8 tokens whose next token depends on the last one only."""
    target = tiny_model(vocab_size=SMALL, seed=3)
    for layer in target.layers:
        layer.self_attn.o_proj.weight = mx.zeros_like(layer.self_attn.o_proj.weight)
    # Flatter than random weights make it, so that every token has several successors.
    target.model.norm.weight = 0.3 * target.model.norm.weight
    return target


def probabilities(name):
    """``[8, 8]``, from a token to the next, exact."""
    logits = memoryless()(mx.arange(SMALL)[:, None])[:, 0]
    if name != "xtc":
        return np.array(mx.softmax(Sampling(**SAMPLERS[name]).scores(logits), axis=-1))
    p = mx.softmax(logits, axis=-1)
    likely = mx.where(p > XTC["xtc_threshold"], p, mx.inf).min(axis=-1, keepdims=True)
    excluded = mx.softmax(mx.where(p > likely, -mx.inf, logits), axis=-1)
    return np.array(0.5 * p + 0.5 * excluded)


@pytest.mark.parametrize("name", SAMPLERS)
def test_sampler_keeps_its_distribution(name):
    n = 400
    mx.random.seed(5)
    with random_pair(memoryless(), vocab_size=SMALL, block_size=4) as pair:
        sampler = make_sampler(**SAMPLERS[name])
        responses = respond(pair, TOKENIZER, [1], n, sampler=sampler)
    tokens = np.array([1, *tokens_of(responses)])
    # Both kinds of tokens are there, or the test would show nothing.
    drafted = sum(r.from_draft for r in responses)
    assert n / 20 < drafted < n * 0.75
    assert misfit(count(tokens[:-1], tokens[1:], SMALL), probabilities(name)) < LIMIT


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_xtc_of_ours_keeps_its_distribution(acceptance):
    with random_pair(memoryless(), vocab_size=SMALL, block_size=4) as pair:
        responses = respond(pair, TOKENIZER, [1], 400, seed=5, acceptance=acceptance, **XTC)
    tokens = np.array([1, *tokens_of(responses)])
    assert 20 < sum(r.from_draft for r in responses) < 300
    assert misfit(count(tokens[:-1], tokens[1:], SMALL), probabilities("xtc")) < LIMIT


def test_greedy_sampler_equals_greedy():
    prompt = random_prompt(9, VOCAB)
    truth = plain_greedy(model(), prompt, 30)
    with random_pair(model()) as pair:
        for sampler in (make_sampler(temp=0.0), lambda x: mx.argmax(x, axis=-1)):
            assert tokens_of(respond(pair, TOKENIZER, prompt, 30, sampler=sampler)) == truth


def test_sampler_gets_the_log_probabilities_of_one_row():
    def sampler(logprobs):
        assert logprobs.shape == (1, VOCAB)
        assert abs(mx.exp(logprobs).sum().item() - 1) < 1e-4
        return mx.argmax(logprobs, axis=-1)

    with random_pair(model()) as pair:
        respond(pair, TOKENIZER, random_prompt(9, VOCAB), 9, sampler=sampler, logit_bias={3: 2.0})


def test_sampler_and_processors_together():
    prompt = random_prompt(9, VOCAB)

    def only_digits(_, logits):
        mask = mx.full(logits.shape, -mx.inf)
        mask[:, 48:58] = 0
        return logits + mask

    with random_pair(model()) as pair:
        responses = respond(
            pair,
            TOKENIZER,
            prompt,
            40,
            sampler=make_sampler(temp=2.0),
            logits_processors=[only_digits],
        )
    assert set(tokens_of(responses)) <= set(range(48, 58))
    assert len(set(tokens_of(responses))) > 2


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_seeds(acceptance):
    prompt = random_prompt(9, VOCAB)
    with random_pair(model()) as pair:

        def text(**options):
            options = {"temp": 1.5, "acceptance": acceptance} | options
            return tokens_of(respond(pair, TOKENIZER, prompt, 20, **options))

        assert text(seed=1) == text(seed=1)
        assert len({tuple(text(seed=seed)) for seed in range(5)}) == 5
        assert text(seed=0) != plain_greedy(model(), prompt, 20)
        # Without a seed, mx.random decides.
        mx.random.seed(7)
        first, second = text(), text()
        assert first != second
        mx.random.seed(7)
        assert (text(), text()) == (first, second)


@pytest.mark.parametrize("option", [{"top_p": 0.5}, {"top_k": 2}, {"min_p": 0.5}])
def test_filters_are_honoured(option):
    prompt = random_prompt(9, VOCAB)
    settings = {"temp": 3.0} | option
    with random_pair(model()) as pair:
        for acceptance in ("coupled", "rejection"):
            tokens = tokens_of(
                respond(pair, TOKENIZER, prompt, 60, seed=4, acceptance=acceptance, **settings)
            )
            logits = model()(mx.array([prompt + tokens]))[0, len(prompt) - 1 : -1]
            scores = Sampling(**settings).scores(logits)
            chosen = mx.take_along_axis(scores, mx.array(tokens)[:, None], axis=-1)
            assert mx.isfinite(chosen).all()


def test_global_random_state_is_left_alone():
    mx.random.seed(7)
    expected = mx.random.uniform().item()
    with random_pair(model()) as pair:
        mx.random.seed(7)
        respond(pair, TOKENIZER, [1, 2, 3], 9)
        respond(pair, TOKENIZER, [1, 2, 3], 9, temp=0.8, seed=3)
    assert mx.random.uniform().item() == expected
