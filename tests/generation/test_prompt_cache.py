"""A prompt cache holds exactly the prompt and what was emitted, however a generation ends."""

import functools

import mlx.core as mx
import pytest
from support.caches import MAKERS, assert_continues, assert_holds
from support.pairs import oracle_pair, respond, tokens_of
from support.plain import clear_case
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import stream_generate
from dflash_mlx.engine.sampling import Sampling

COUNTS = {"all": [3], "mixed": [2, 0, 3, 1]}
B = 4
TOKENIZER = byte_tokenizer()
model = functools.cache(tiny_model)


@functools.cache
def case(length=9):
    return clear_case(model(), length, 60, Sampling())


both_makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
all_counts = pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)


@both_makers
@all_counts
@pytest.mark.parametrize("n", range(2 * B + 2))
def test_ending_at_max_tokens(n, counts, make):
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth, counts, B) as pair:
        cache = make(pair)
        assert tokens_of(respond(pair, TOKENIZER, prompt, n, prompt_cache=cache)) == truth[:n]
        assert_continues(pair, cache, prompt + truth[:n], truth[n : n + 10])


@all_counts
@pytest.mark.parametrize("j", range(2 * B + 1))
def test_ending_at_the_eos(j, counts):
    prompt, truth = case()
    j = truth.index(truth[j])
    with oracle_pair(model(), prompt + truth, counts, B) as pair:
        cache = pair.make_prompt_cache()
        respond(pair, byte_tokenizer([truth[j]]), prompt, 40, prompt_cache=cache)
        assert_continues(pair, cache, prompt + truth[: j + 1], truth[j + 1 : j + 11])


@both_makers
@all_counts
@pytest.mark.parametrize("k", range(1, 2 * B + 2))
def test_closing_early(k, counts, make):
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth, counts, B) as pair:
        cache = make(pair)
        stream = stream_generate(pair, TOKENIZER, prompt, max_tokens=40, prompt_cache=cache)
        assert [next(stream).token for _ in range(k)] == truth[:k]
        stream.close()
        assert_continues(pair, cache, prompt + truth[:k], truth[k : k + 10])


def test_closing_before_the_first_token():
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth) as pair:
        cache = pair.make_prompt_cache()
        stream_generate(pair, TOKENIZER, prompt, prompt_cache=cache).close()
        assert all(c.empty() for c in cache)


@pytest.mark.parametrize("k", range(1, B + 2))
def test_plain_decoding_leaves_a_complete_cache(k):
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth) as pair:
        cache = pair.make_prompt_cache()
        stream = stream_generate(pair, TOKENIZER, prompt, draft=False, prompt_cache=cache)
        assert [next(stream).token for _ in range(k)] == truth[:k]
        stream.close()
        assert_continues(pair, cache, prompt + truth[:k], truth[k : k + 10])


@pytest.mark.parametrize("length", [1, 2, 255, 256, 257])
def test_prompt_lengths_around_the_buffer_step(length):
    prompt, truth = case(length)
    with oracle_pair(model(), prompt + truth) as pair:
        for n in (0, 1, 7):
            cache = pair.make_prompt_cache()
            respond(pair, TOKENIZER, prompt, n, prompt_cache=cache)
            assert_continues(pair, cache, prompt + truth[:n], truth[n : n + 10])


class Boom(Exception):
    pass


@pytest.mark.parametrize("kind", ["processor", "sampler"])
@pytest.mark.parametrize("k", range(B + 2))
def test_exception_in_a_callback(k, kind):
    prompt, truth = case()
    calls = []

    def call(*args):
        calls.append(args)
        if len(calls) > B * k:
            raise Boom
        return args[-1]

    option = {
        "processor": {"logits_processors": [call]},
        "sampler": {"sampler": lambda logprobs: mx.argmax(call(logprobs), axis=-1)},
    }[kind]
    with oracle_pair(model(), prompt + truth, [1], B) as pair:
        cache, emitted = pair.make_prompt_cache(), []
        stream = stream_generate(pair, TOKENIZER, prompt, prompt_cache=cache, **option)
        with pytest.raises(Boom):
            for response in stream:
                emitted.append(response.token)
        assert emitted == truth[: len(emitted)]
        assert len(emitted) >= 2 * (k - 1)
        assert_continues(pair, cache, prompt + emitted, truth[len(emitted) :][:10])


@pytest.mark.parametrize("at", range(6))
def test_exception_in_the_progress_callback(at):
    prompt, truth = case()
    calls = []

    def progress(done, total):
        calls.append(done)
        if len(calls) > at:
            raise Boom

    with oracle_pair(model(), prompt + truth) as pair:
        cache = pair.make_prompt_cache()
        with pytest.raises(Boom):
            respond(
                pair,
                TOKENIZER,
                prompt,
                20,
                prompt_cache=cache,
                prefill_step_size=2,
                prompt_progress_callback=progress,
            )
        # What was prefilled is there, and nothing else.
        held = calls[-1]
        if held:
            assert_holds(model(), cache, prompt[:held])
        rest = prompt[held:] if held < len(prompt) else truth[:1]
        expected = truth[:10] if held < len(prompt) else truth[1:11]
        assert tokens_of(respond(pair, TOKENIZER, rest, 10, prompt_cache=cache)) == expected
