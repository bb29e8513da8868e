"""Where a generation ends: end-of-sequence tokens, ``max_tokens`` and the target's context."""

import functools
import itertools

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from support.pairs import oracle_pair, respond, text_of, tokens_of
from support.plain import clear_case
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import UserError, stream_generate
from dflash_mlx.engine.sampling import Sampling

B = 4
COUNTS = {"none": [0], "all": [B - 1], "one": [1], "mixed": [2, 0, 3, 1]}
model = functools.cache(tiny_model)


@functools.cache
def case():
    """A prompt whose first ``3 * B`` greedy tokens all differ, so that each can be the EOS."""
    for seed in range(50):
        prompt, truth = clear_case(model(), 7, 8 * B, Sampling(), seed=seed)
        if len(set(truth[: 3 * B])) == 3 * B:
            return prompt, truth
    raise AssertionError("No prompt with a varied continuation was found.")


def run(n, eos=(), counts=(2, 0, 3, 1), context_length=None, **options):
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth, counts, B, context_length) as pair:
        return respond(pair, byte_tokenizer(eos), prompt, n, **options)


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("j", range(2 * B + 1))
def test_eos_at_every_index(j, counts):
    truth = case()[1]
    responses = run(8 * B, [truth[j]], counts)
    assert tokens_of(responses) == truth[: j + 1]
    assert [r.finish_reason for r in responses] == [None] * j + ["stop"]
    # The end-of-sequence token is reported, and is no text.
    assert text_of(responses).encode() == bytes(truth[:j])


@pytest.mark.parametrize("j", range(2 * B + 1))
def test_eos_in_plain_decoding(j):
    truth = case()[1]
    responses = run(8 * B, [truth[j]], draft=False)
    assert tokens_of(responses) == truth[: j + 1]
    assert responses[-1].finish_reason == "stop"


def test_first_of_several_eos_tokens_ends():
    truth = case()[1]
    responses = run(8 * B, [truth[9], truth[6], truth[11]])
    assert tokens_of(responses) == truth[:7]
    assert responses[-1].finish_reason == "stop"


def test_eos_added_after_loading():
    prompt, truth = case()
    tokenizer = byte_tokenizer()
    tokenizer.add_eos_token(str(truth[5]))
    with oracle_pair(model(), prompt + truth) as pair:
        assert tokens_of(respond(pair, tokenizer, prompt, 20)) == truth[:6]


def test_eos_as_the_last_token_allowed():
    truth = case()[1]
    responses = run(6, [truth[5]])
    assert tokens_of(responses) == truth[:6]
    assert responses[-1].finish_reason == "stop"


def test_nothing_ends_a_text_when_the_tokenizer_knows_no_eos():
    prompt, truth = case()
    tokenizer = byte_tokenizer()
    tokenizer.eos_token_ids = None
    with oracle_pair(model(), prompt + truth) as pair:
        for n in (0, 5):
            responses = respond(pair, tokenizer, prompt, n)
            assert tokens_of(responses) == truth[:n]
            assert responses[-1].finish_reason == "length"


@pytest.mark.parametrize("draft", [True, False], ids=["draft", "plain"])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("n", [0, 1, 2, B - 1, B, B + 1, 2 * B + 1])
def test_max_tokens_is_exact(n, counts, draft):
    prompt, truth = case()
    responses = run(n, counts=counts, draft=draft)
    assert tokens_of(responses) == truth[:n]
    assert len(responses) == max(n, 1)
    assert [r.generation_tokens for r in responses] == (list(range(1, n + 1)) or [0])
    assert [r.finish_reason for r in responses[:-1]] == [None] * (len(responses) - 1)
    assert responses[-1].finish_reason == "length"
    assert responses[-1].prompt_tokens == len(prompt)


def test_no_round_is_queued_in_vain():
    # Each round emits a token at least, so n tokens never need more than n rounds.
    prompt, truth = case()
    for n in (1, 2, 3):
        with oracle_pair(model(), prompt + truth, [0], B) as pair:
            respond(pair, byte_tokenizer(), prompt, n)
            assert pair.drafter.rounds == n


def test_no_limit_runs_to_the_eos():
    truth = case()[1]
    responses = run(-1, [truth[10]])
    assert tokens_of(responses) == truth[:11]
    assert responses[-1].finish_reason == "stop"


def test_no_limit_at_all_goes_on():
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth) as pair:
        stream = stream_generate(pair, byte_tokenizer(), prompt, max_tokens=-1)
        responses = list(itertools.islice(stream, 8 * B))
        stream.close()
    assert tokens_of(responses) == truth
    assert responses[-1].finish_reason is None


@pytest.mark.parametrize("room", [1, 2, B, B + 1, 2 * B + 1])
@pytest.mark.parametrize("n", [-1, 100])
def test_context_length_limits_the_text(n, room):
    prompt, truth = case()
    responses = run(n, context_length=len(prompt) + room)
    assert tokens_of(responses) == truth[:room]
    assert responses[-1].finish_reason == "length"


@pytest.mark.parametrize("shorter", [0, 1, 5])
def test_prompt_that_fills_the_context(shorter):
    prompt = case()[0]
    length = len(prompt) - shorter
    with pytest.raises(UserError, match=f"{len(prompt)} tokens.*context is {length}"):
        run(5, context_length=length)


def test_prompt_cache_counts_towards_the_context():
    prompt, truth = case()
    cache = make_prompt_cache(model())
    model()(mx.array([prompt]), cache=cache)
    context = len(prompt) + 3
    with oracle_pair(model(), prompt + truth, context_length=context) as pair:
        responses = respond(pair, byte_tokenizer(), truth[:1], -1, prompt_cache=cache)
        assert tokens_of(responses) == truth[1:3]
        with pytest.raises(UserError, match="prompt cache included"):
            respond(pair, byte_tokenizer(), truth[3:4], -1, prompt_cache=cache)


def test_max_kv_size_fits_or_is_refused():
    prompt, truth = case()
    assert tokens_of(run(5, max_kv_size=len(prompt) + 5)) == truth[:5]
    with pytest.raises(UserError, match="max_kv_size"):
        run(6, max_kv_size=len(prompt) + 5)
    with pytest.raises(UserError, match="max_kv_size"):
        run(-1, max_kv_size=1000)
