"""One pair, many generations: nothing of one leaks into another."""

import functools
from contextlib import contextmanager

import mlx.core as mx
import pytest
from mlx_lm.generate import stream_generate as mlx_lm_stream_generate
from mlx_lm.models.cache import trim_prompt_cache
from support.pairs import oracle_pair, random_pair, respond, tokens_of
from support.plain import clear_case, plain_greedy
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import stream_generate
from dflash_mlx.engine.sampling import Sampling

TOKENIZER = byte_tokenizer()
COUPLED = Sampling(temp=0.9, top_p=0.95, seed=11)
SAMPLED = {"temp": 0.9, "top_p": 0.95, "seed": 11}
model = functools.cache(tiny_model)


@functools.cache
def case(length, sampling=None, seed=0):
    return clear_case(model(), length, 40, sampling or Sampling(), seed=seed)


@pytest.mark.parametrize(
    ("family", "block_sizes"),
    [("llama", range(1, 17)), ("qwen3", (1, 2, 5, 16)), ("qwen3_moe", (1, 3, 16))],
)
@pytest.mark.parametrize("sampling", [Sampling(), COUPLED], ids=["greedy", "coupled"])
def test_random_drafter_changes_nothing(family, block_sizes, sampling):
    n, options = 24, {} if sampling.greedy else SAMPLED
    target = tiny_model(family)
    prompt, truth = clear_case(target, 11, n, sampling)
    with random_pair(target, block_size=16) as pair:
        assert tokens_of(respond(pair, TOKENIZER, prompt, n, draft=False, **options)) == truth
        for block_size in block_sizes:
            responses = respond(pair, TOKENIZER, prompt, n, block_size=block_size, **options)
            assert tokens_of(responses) == truth
            assert {r.block_size for r in responses} == {block_size}


@pytest.mark.parametrize("index", [0, 1, 6, 19])
def test_mask_token_in_the_text(index):
    prompt, truth = case(9)
    with random_pair(model(), mask_token_id=truth[index]) as pair:
        assert tokens_of(respond(pair, TOKENIZER, prompt, 20)) == truth[:20]
        # In the prompt, and as the anchor of the first block.
        longer = prompt + truth[: index + 1]
        rest = truth[index + 1 : index + 11]
        assert tokens_of(respond(pair, TOKENIZER, longer, 10)) == rest


def test_long_then_short_then_long():
    with random_pair(model()) as pair:
        for length in (300, 3, 300, 3, 40):
            prompt, truth = case(length)
            for block_size in (8, 3, 1):
                responses = respond(pair, TOKENIZER, prompt, 20, block_size=block_size)
                assert tokens_of(responses) == truth[:20]


@pytest.mark.parametrize("draft", [True, False], ids=["draft", "plain"])
def test_interleaved_generations(draft):
    cases = [case(9), case(30, seed=1), case(9, COUPLED)]
    options = [{}, {"prompt_cache": None}, SAMPLED]
    with random_pair(model()) as pair:
        options[1]["prompt_cache"] = pair.make_prompt_cache()
        streams = [
            stream_generate(pair, TOKENIZER, prompt, max_tokens=30, draft=draft, **option)
            for (prompt, _), option in zip(cases, options, strict=True)
        ]
        emitted = [[r.token for r in responses] for responses in zip(*streams, strict=True)]
    assert [list(row) for row in zip(*emitted, strict=True)] == [t[:30] for _, t in cases]


def test_mlx_lm_runs_on_the_tapped_model_in_between():
    prompt, truth = case(9)
    other, other_truth = case(30, seed=1)
    with random_pair(model()) as pair:
        stream = stream_generate(pair, TOKENIZER, prompt, max_tokens=20)
        emitted = [next(stream).token for _ in range(3)]
        assert plain_greedy(pair.model, other, 10) == other_truth[:10]
        emitted += [r.token for r in stream]
        assert emitted == truth[:20]


class Boom(Exception):
    pass


def raising(after):
    """A callable of any arguments that raises at its call number ``after``."""
    calls = []

    def call(*args):
        calls.append(args)
        if len(calls) > after:
            raise Boom
        return args[-1]

    return call


@pytest.mark.parametrize("after", [0, 1, 5])
@pytest.mark.parametrize("kind", ["progress", "processor", "sampler"])
def test_pair_works_after_an_exception(kind, after):
    prompt, truth = case(9)
    call = raising(after)
    option = {
        "progress": {"prompt_progress_callback": call, "prefill_step_size": 1},
        "processor": {"logits_processors": [call]},
        "sampler": {"sampler": lambda logprobs: mx.argmax(call(logprobs), axis=-1)},
    }[kind]
    with random_pair(model()) as pair:
        with pytest.raises(Boom):
            respond(pair, TOKENIZER, prompt, 30, **option)
        assert tokens_of(respond(pair, TOKENIZER, prompt, 30)) == truth[:30]
        assert plain_greedy(pair.model, prompt, 5) == truth[:5]


def test_exception_in_a_draft_leaves_the_pair_usable():
    prompt, truth = case(9)
    with oracle_pair(model(), prompt + truth) as pair:
        draft, count = pair.drafter.draft, raising(2)
        pair.drafter.draft = lambda *args: count(draft(*args))
        with pytest.raises(Boom):
            respond(pair, TOKENIZER, prompt, 30)
        pair.drafter.draft = draft
        assert tokens_of(respond(pair, TOKENIZER, prompt, 30)) == truth[:30]


def test_thrown_into_the_generator():
    prompt, truth = case(9)
    with random_pair(model()) as pair:
        cache = pair.make_prompt_cache()
        stream = stream_generate(pair, TOKENIZER, prompt, prompt_cache=cache)
        emitted = [next(stream).token for _ in range(3)]
        with pytest.raises(KeyboardInterrupt):
            stream.throw(KeyboardInterrupt)
        assert {c.offset for c in cache} == {len(prompt) + len(emitted)}
        assert tokens_of(respond(pair, TOKENIZER, truth[3:4], 5, prompt_cache=cache)) == truth[4:9]


def settled_memory():
    mx.synchronize()
    return mx.get_active_memory()


@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_what_was_stopped_holds_no_memory(tokens):
    # In prefill, or after some tokens.
    prompt, _ = case(300)
    with random_pair(model()) as pair:
        before, after = settled_memory(), []
        for _ in range(3):
            if tokens == 0:
                options = {"prompt_progress_callback": raising(2), "prefill_step_size": 100}
                with pytest.raises(Boom):
                    respond(pair, TOKENIZER, prompt, 20, **options)
            else:
                stream = stream_generate(pair, TOKENIZER, prompt, max_tokens=20, block_size=8)
                for _ in range(tokens):
                    next(stream)
                assert settled_memory() > before
                stream.close()
            after.append(settled_memory())
        # The device may still let go of what it used, so that any one number may be too high.
        assert min(after) <= before


def test_many_short_replies_on_a_shared_prefix():
    prompt, truth = case(9)
    with random_pair(model()) as pair:
        for i in range(60):
            n = i % 15 + 1
            assert tokens_of(respond(pair, TOKENIZER, prompt, n)) == truth[:n]


def test_many_short_replies_in_one_prompt_cache():
    prompt, truth = case(9)
    text, held = prompt + truth, 0
    with random_pair(model()) as pair:
        cache, memory = pair.make_prompt_cache(), []
        for i in range(45):
            # Each goes on from another token of the last one's prompt or reply.
            kept = min(held, 7 * i % 20)
            assert trim_prompt_cache(cache, held - kept) == held - kept
            begin, n = max(kept + 1, len(prompt)), i % 15 + 1
            responses = respond(pair, TOKENIZER, text[kept:begin], n, prompt_cache=cache)
            assert tokens_of(responses) == text[begin : begin + n]
            held = begin + n
            del responses
            memory.append(settled_memory())
    assert min(memory[30:]) <= max(memory[:15])


def test_released_pair_says_so():
    prompt, _ = case(9)
    with random_pair(model()) as pair:
        stream = stream_generate(pair, TOKENIZER, prompt, max_tokens=20)
        next(stream)
    with pytest.raises(ValueError, match="released"):
        list(stream)
    with pytest.raises(ValueError, match="released"):
        respond(pair, TOKENIZER, prompt, 5)


def test_text_equals_mlx_lms():
    prompt, truth = case(9)
    theirs = list(mlx_lm_stream_generate(model(), TOKENIZER, prompt, max_tokens=20))
    with random_pair(model()) as pair:
        ours = respond(pair, TOKENIZER, prompt, 20)
    assert tokens_of(ours) == truth[:20]
    # mlx-lm may yield its last token twice, once to say why it ended.
    fields = ("text", "token", "prompt_tokens", "generation_tokens", "finish_reason")
    for a, b in zip(ours[:-1], theirs, strict=False):
        assert [getattr(a, f) for f in fields] == [getattr(b, f) for f in fields]
    assert [getattr(ours[-1], f) for f in fields] == [getattr(theirs[-1], f) for f in fields]


def test_the_wired_limit_is_for_a_generation_by_itself(monkeypatch):
    entered = []

    @contextmanager
    def wired_limit(model):
        entered.append(model)
        yield

    monkeypatch.setattr("dflash_mlx.generation.stream.wired_limit", wired_limit)
    with random_pair(tiny_model()) as pair:
        one, other = (
            stream_generate(pair, byte_tokenizer(), [1, 2, 3], 9, block_size=4) for _ in range(2)
        )
        next(one), next(other)
        assert len(entered) == 1
        one.close(), other.close()
        respond(pair, byte_tokenizer(), [1, 2, 3], 9)
        assert len(entered) == 2
