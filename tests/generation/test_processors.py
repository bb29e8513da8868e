"""Penalties, logit bias and users' logits processors, against plain mlx-lm."""

import functools

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors
from support.pairs import oracle_pair, random_pair, respond, tokens_of
from support.plain import MARGIN, plain_greedy, random_prompt
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

TOKENIZER = byte_tokenizer()
model = functools.cache(tiny_model)

PENALTIES = {
    "repetition": {"repetition_penalty": 1.3},
    "repetition_reward": {"repetition_penalty": 0.7},
    "repetition_window": {"repetition_penalty": 1.5, "repetition_context_size": 3},
    "repetition_long": {"repetition_penalty": 1.3, "repetition_context_size": 100},
    "presence": {"presence_penalty": 1.5},
    "presence_window": {"presence_penalty": 2.0, "presence_context_size": 5},
    "frequency": {"frequency_penalty": 0.8},
    "frequency_reward": {"frequency_penalty": -1.0, "frequency_context_size": 7},
    "bias": {"logit_bias": {3: 4.0, 50: -100.0, 96: 2.5}},
    "all": {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "presence_context_size": 9,
        "frequency_penalty": 0.3,
        "frequency_context_size": 30,
        "logit_bias": {1: 2.0, 2: 2.0},
    },
}


@functools.cache
def case(name, length, n=25):
    """A prompt and mlx-lm's text under penalties: not the plain one, and without near-ties."""
    for seed in range(200):
        prompt = random_prompt(length, model().args.vocab_size, 500 + seed)
        steps = generate_step(
            mx.array(prompt),
            model(),
            max_tokens=n,
            logits_processors=make_logits_processors(**PENALTIES[name]),
        )
        tokens, logprobs = zip(*((int(t), x) for t, x in steps), strict=True)
        top = mx.sort(mx.stack(logprobs), axis=-1)[:, -2:]
        clear = (top[:, 1] - top[:, 0]).min().item() > MARGIN
        if clear and list(tokens) != plain_greedy(model(), prompt, n):
            return prompt, list(tokens)
    raise AssertionError("No prompt without near-ties was found.")


@pytest.mark.parametrize("how", ["keywords", "processors"])
@pytest.mark.parametrize("length", [1, 30])
@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_equal_mlx_lms(name, length, how):
    prompt, truth = case(name, length)
    options = PENALTIES[name]
    if how == "processors":
        options = {"logits_processors": make_logits_processors(**options)}
    with oracle_pair(model(), prompt + truth, (2, 0, 3, 1, 7), 8) as pair:
        for block_size in (2, 8) if how == "keywords" else (3,):
            responses = respond(pair, TOKENIZER, prompt, 25, block_size=block_size, **options)
            assert tokens_of(responses) == truth
        assert tokens_of(respond(pair, TOKENIZER, prompt, 25, draft=False, **options)) == truth


@pytest.mark.parametrize("block_size", range(1, 17))
def test_repetition_penalty_at_every_block_size(block_size):
    prompt, truth = case("repetition", 12)
    processors = make_logits_processors(**PENALTIES["repetition"])
    with random_pair(model(), block_size=16) as pair:
        for options in (PENALTIES["repetition"], {"logits_processors": processors}):
            responses = respond(pair, TOKENIZER, prompt, 25, block_size=block_size, **options)
            assert tokens_of(responses) == truth


def test_penalties_do_not_end_acceptance():
    prompt, truth = case("all", 12, 300)
    with oracle_pair(model(), prompt + truth, [7], 8) as pair:
        responses = respond(pair, TOKENIZER, prompt, 288, **PENALTIES["all"])
    assert tokens_of(responses) == truth[:288]
    assert responses[-1].tau == 8.0


def test_penalties_see_the_new_prompt_only():
    # As in mlx-lm, which is not told what tokens a prompt cache holds.
    before, turn = random_prompt(9, 97, 1), random_prompt(5, 97, 2)
    penalty = {"repetition_penalty": 1.5}
    cache = make_prompt_cache(model())
    model()(mx.array([before]), cache=cache)
    processors = make_logits_processors(**penalty)
    truth = plain_greedy(model(), turn, 20, prompt_cache=cache, logits_processors=processors)
    for options in (penalty, {"logits_processors": make_logits_processors(**penalty)}):
        cache = make_prompt_cache(model())
        model()(mx.array([before]), cache=cache)
        with oracle_pair(model(), before + turn + truth) as pair:
            responses = respond(pair, TOKENIZER, turn, 20, prompt_cache=cache, **options)
        assert tokens_of(responses) == truth


NEWLINE, DIGITS = 10, range(48, 58)


def digits_then_newline(tokens, logits):
    """Three digits, a newline, and again: everything else is forbidden."""
    done = tokens.tolist()[PROMPT_LENGTH:]
    allowed = [NEWLINE] if len(done) % 4 == 3 else list(DIGITS)
    mask = mx.full(logits.shape, -mx.inf)
    mask[:, allowed] = 0
    return logits + mask


PROMPT_LENGTH = 6


@pytest.mark.parametrize("options", [{}, {"temp": 1.5, "seed": 2}], ids=["greedy", "sampled"])
def test_automaton_never_emits_an_illegal_token(options):
    prompt = random_prompt(PROMPT_LENGTH, 97, 4)
    processors = {"logits_processors": [digits_then_newline]}
    with random_pair(model(), block_size=16) as pair:
        texts = {
            tuple(tokens_of(respond(pair, TOKENIZER, prompt, 30, **processors, **options, **how)))
            for how in ({"draft": False}, *({"block_size": b} for b in (1, 2, 3, 5, 16)))
        }
    (text,) = texts
    for i, token in enumerate(text):
        assert token == NEWLINE if i % 4 == 3 else token in DIGITS
    if not options:
        assert list(text) == plain_greedy(model(), prompt, 30, **processors)


def test_processors_see_exactly_the_tokens_before_each_row():
    prompt, truth = case("repetition", 12)
    seen = set()

    def processor(tokens, logits):
        assert tokens.ndim == 1
        assert logits.shape == (1, 97)
        seen.add(tuple(tokens.tolist()))
        return logits

    truth = plain_greedy(model(), prompt, 20)
    with oracle_pair(model(), prompt + truth) as pair:
        responses = respond(pair, TOKENIZER, prompt, 20, logits_processors=[processor])
    assert tokens_of(responses) == truth
    everything = tuple(prompt + truth)
    for i in range(20):
        assert everything[: len(prompt) + i] in seen


def test_processors_run_in_order():
    def only(token):
        def processor(_, logits):
            logits[:, token] += 1e6
            return logits

        return processor

    def halve(_, logits):
        return logits / 2

    with random_pair(model()) as pair:
        for processors, winner in (
            ([only(5), halve, only(6)], 6),
            ([only(5), only(6), only(5)], 5),
        ):
            responses = respond(pair, TOKENIZER, [1, 2, 3], 9, logits_processors=processors)
            assert tokens_of(responses) == [winner] * 9
