"""The engine: many generations from many threads, each as it would be alone."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import pytest
from support.pairs import random_pair
from support.plain import random_prompt
from support.tiny import VOCAB, shared_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import Engine, EngineError, UserError, batch_generate, stream_generate

TOKENIZER = byte_tokenizer()
OPTIONS = (
    {"block_size": 4},
    {"block_size": 8, "temp": 0.9, "seed": 3},
    {"draft": False},
    {"block_size": 4, "repetition_penalty": 1.3},
    {"block_size": 4, "temp": 0.8, "seed": 9, "top_k": 20, "frequency_penalty": 0.5},
    {"block_size": 2, "logits_processors": [lambda tokens, logits: logits * 0.5]},
    {"block_size": 4, "stop": ["A", "B", "C"]},
    {"block_size": 4, "logprobs": True, "logit_bias": {7: 5.0}},
    # Drawn together with another one, from a seed of its own.
    {"block_size": 8, "temp": 0.9, "seed": 4},
)
PROMPTS = [random_prompt(3 + 11 * i, VOCAB, i) for i in range(len(OPTIONS))]


@pytest.fixture(scope="module")
def pair():
    with random_pair(shared_model("llama")) as pair:
        yield pair


def alone(pair, prompt, options, n=30):
    return list(stream_generate(pair, TOKENIZER, prompt, max_tokens=n, **options))


def same(ours, theirs):
    assert [r.token for r in ours] == [r.token for r in theirs]
    assert "".join(r.text for r in ours) == "".join(r.text for r in theirs)
    assert ours[-1].finish_reason == theirs[-1].finish_reason
    for a, b in zip(ours, theirs, strict=True):
        assert (a.logprobs is None) == (b.logprobs is None)
        assert a.logprobs is None or mx.allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_texts_of_every_option_in_one_company(pair):
    truths = [alone(pair, p, o) for p, o in zip(PROMPTS, OPTIONS, strict=True)]
    with Engine(pair, TOKENIZER, max_batch=len(OPTIONS)) as engine:
        handles = [
            engine.submit(prompt, max_tokens=30, **options)
            for prompt, options in zip(PROMPTS, OPTIONS, strict=True)
        ]
        for handle, truth in zip(handles, truths, strict=True):
            same(list(handle), truth)


def test_from_many_threads_more_than_slots(pair):
    work = [(PROMPTS[i % 8], OPTIONS[i % 8]) for i in range(16)]
    truths = [alone(pair, *job, n=12) for job in work[:8]] * 2
    with Engine(pair, TOKENIZER, max_batch=3) as engine, ThreadPoolExecutor(6) as pool:
        results = pool.map(lambda job: list(engine.submit(job[0], max_tokens=12, **job[1])), work)
        for result, truth in zip(results, truths, strict=True):
            same(result, truth)


def test_batch_generate(pair):
    texts = batch_generate(pair, TOKENIZER, PROMPTS, max_tokens=[5] * len(PROMPTS), options=OPTIONS)
    for text, prompt, options in zip(texts, PROMPTS, OPTIONS, strict=True):
        assert text == "".join(r.text for r in alone(pair, prompt, options, n=5))
    with pytest.raises(UserError, match="max_tokens"):
        batch_generate(pair, TOKENIZER, PROMPTS, max_tokens=[5])
    assert batch_generate(pair, TOKENIZER, []) == []


def test_prompt_caches_hold_what_was_taken(pair):
    with Engine(pair, TOKENIZER) as engine:
        caches = [pair.make_prompt_cache() for _ in range(3)]
        for cache, prompt in zip(caches, PROMPTS, strict=False):
            for _ in engine.submit(prompt, max_tokens=9, block_size=4, prompt_cache=cache):
                pass
        handles = [
            engine.submit(PROMPTS[5], max_tokens=20, block_size=4, prompt_cache=cache)
            for cache in caches
        ]
        second = [list(handle) for handle in handles]
    for prompt, got in zip(PROMPTS, second, strict=False):
        first = [r.token for r in alone(pair, prompt, {"block_size": 4}, n=9)]
        whole = alone(pair, prompt + first + PROMPTS[5], {"block_size": 4}, n=20)
        assert [r.token for r in got] == [r.token for r in whole]


def test_a_cancelled_one_ends_and_the_others_go_on(pair):
    truth = alone(pair, PROMPTS[1], OPTIONS[0], n=60)
    with Engine(pair, TOKENIZER) as engine:
        long = engine.submit(PROMPTS[0], max_tokens=3000, block_size=4)
        other = engine.submit(PROMPTS[1], max_tokens=60, block_size=4)
        seen = 0
        for _ in long:
            seen += 1
            if seen == 5:
                long.cancel()
                long.cancel()
        assert 5 <= seen < 3000
        same(list(other), truth)
        # Before anything of it was computed.
        waiting = engine.submit(PROMPTS[0], max_tokens=3000, block_size=4)
        waiting.cancel()
        assert len(list(waiting)) < 3000
        assert list(waiting) == []


def test_what_a_processor_raises_is_told_to_its_owner_alone(pair):
    calls = []

    def breaks(tokens, logits):
        calls.append(len(tokens))
        if len(calls) > 4:
            raise ValueError("no more")
        return logits

    truth = alone(pair, PROMPTS[1], OPTIONS[1])
    with Engine(pair, TOKENIZER) as engine:
        other = engine.submit(PROMPTS[1], max_tokens=30, **OPTIONS[1])
        broken = engine.submit(PROMPTS[0], max_tokens=30, block_size=2, logits_processors=[breaks])
        with pytest.raises(ValueError, match="no more"):
            list(broken)
        with pytest.raises(ValueError, match="no more"):
            list(broken)
        same(list(other), truth)
        # Alone in the engine, too.
        broken = engine.submit(PROMPTS[0], max_tokens=30, block_size=2, logits_processors=[breaks])
        with pytest.raises(ValueError, match="no more"):
            list(broken)
        same(list(engine.submit(PROMPTS[1], max_tokens=30, **OPTIONS[1])), truth)


def test_what_cannot_be_honoured_is_refused_at_once(pair):
    with Engine(pair, TOKENIZER) as engine:
        with pytest.raises(UserError, match="`max_tokens`"):
            engine.submit(PROMPTS[0], max_tokens=-5)
        with pytest.raises(UserError, match="did you mean temp"):
            engine.submit(PROMPTS[0], temperature=1)
        with pytest.raises(UserError, match="empty"):
            engine.submit([])


def test_closed(pair):
    engine = Engine(pair, TOKENIZER)
    handle = engine.submit(PROMPTS[0], max_tokens=3000, block_size=4)
    next(iter(handle))
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        list(handle)
    with pytest.raises(EngineError, match="closed"):
        engine.submit(PROMPTS[0])
    assert not [t for t in threading.enumerate() if "dflash" in t.name]


def test_a_dead_thread_is_told_to_everybody(pair, monkeypatch):
    engine = Engine(pair, TOKENIZER)
    handle = engine.submit(PROMPTS[0], max_tokens=3000, block_size=4)

    def dies():
        raise MemoryError("gone")

    next(iter(handle))
    monkeypatch.setattr(engine._scheduler, "step", dies)
    with pytest.raises(EngineError, match="gone"):
        list(handle)
    with pytest.raises(EngineError, match="gone"):
        engine.submit(PROMPTS[0])
    engine.close()


def test_the_queue_is_bounded(pair):
    with Engine(pair, TOKENIZER, max_batch=1, max_waiting=2) as engine:
        first = engine.submit(PROMPTS[0], max_tokens=100000, block_size=4)
        next(iter(first))
        time.sleep(0.05)
        kept = [engine.submit(PROMPTS[1], max_tokens=3, block_size=4) for _ in range(2)]
        with pytest.raises(EngineError, match="2 generations wait"):
            engine.submit(PROMPTS[2])
        first.cancel()
        assert all(list(handle)[-1].finish_reason for handle in kept)
