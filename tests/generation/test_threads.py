"""One pair in several threads: loaded in one, used in another, by many at once, or by turns."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from support.folders import save_drafter, save_target
from support.pairs import oracle_pair, random_pair
from support.plain import plain_greedy, random_prompt, vocab_of
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import Pair, generate, load, stream_generate

TOKENIZER = byte_tokenizer()
N = 24
FAMILIES = ("llama", "gemma3_text", "qwen3_next")
T = TypeVar("T")


def in_a_thread(call: Callable[[], T]) -> T:
    """What ``call`` returns or raises, run in a thread that ends before this returns."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()


def tokens(pair: Pair, prompt: list[int], **options: object) -> list[int]:
    options = {"block_size": 4, "max_tokens": N, **options}
    return [r.token for r in stream_generate(pair, TOKENIZER, prompt, **options)]


@pytest.mark.parametrize("changes", [{}, {"has_mask_embedding": True}, {"selector_rank": 4}])
def test_loaded_in_one_thread_and_used_in_another(changes, tmp_path):
    if "selector_rank" in changes:
        changes |= {"selector_top_k": 4}
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "drafter", **changes)
    pair, tokenizer = in_a_thread(lambda: load(tmp_path / "target", tmp_path / "drafter"))
    drafted = generate(pair, tokenizer, "hello", block_size=4, max_tokens=N)
    assert drafted == generate(pair, tokenizer, "hello", draft=False, max_tokens=N)


@pytest.mark.parametrize("block_size", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_cache_goes_on_in_another_thread(family, block_size):
    model = tiny_model(family)
    first, second = (random_prompt(9, vocab_of(model), seed) for seed in (1, 2))
    with random_pair(model, num_target_layers=None) as pair:
        cache = pair.make_prompt_cache()
        options = {"prompt_cache": cache, "block_size": block_size}
        begun = in_a_thread(lambda: tokens(pair, first, **options))
        continued = tokens(pair, second, **options)
        back = in_a_thread(lambda: tokens(pair, first, **options))
    assert begun == plain_greedy(model, first, N)
    assert continued == plain_greedy(model, first + begun + second, N)
    assert back == plain_greedy(model, first + begun + second + continued + first, N)


def cases(model, count: int) -> list[tuple[list[int], list[int]]]:
    """Prompts and their plain texts."""
    prompts = [random_prompt(5 + i, vocab_of(model), i) for i in range(count)]
    return [(prompt, plain_greedy(model, prompt, N)) for prompt in prompts]


@pytest.mark.parametrize("options", [{"block_size": 4}, {"block_size": 1}, {"draft": False}])
@pytest.mark.parametrize("family", FAMILIES)
def test_many_threads_on_one_pair(family, options):
    model = tiny_model(family)
    given = cases(model, 12)
    with random_pair(model, num_target_layers=None) as pair, ThreadPoolExecutor(6) as threads:
        options = {"block_size": None, **options}
        texts = list(threads.map(lambda case: tokens(pair, case[0], **options), given))
    assert texts == [text for _, text in given]


def test_many_threads_with_costs_to_be_measured():
    model = tiny_model("qwen3_next")
    given = cases(model, 4)
    with random_pair(model, num_target_layers=None) as pair, ThreadPoolExecutor(4) as threads:
        texts = list(threads.map(lambda case: tokens(pair, case[0], block_size="auto"), given))
    assert texts == [text for _, text in given]


def test_asyncio():
    model = tiny_model("qwen3_next")
    given = cases(model, 6)

    async def all_of_them(pair: Pair) -> list[list[int]]:
        calls = [asyncio.to_thread(tokens, pair, prompt) for prompt, _ in given]
        return await asyncio.gather(*calls)

    with random_pair(model, num_target_layers=None) as pair:
        assert asyncio.run(all_of_them(pair)) == [text for _, text in given]


@pytest.mark.parametrize("family", FAMILIES)
def test_generators_take_turns_in_several_threads(family):
    model = tiny_model(family)
    (one, text), (other, another) = cases(model, 2)
    with oracle_pair(model, one + text) as pair:
        begun = [stream_generate(pair, TOKENIZER, p, N, block_size=4) for p in (one, other)]
        found: list[list[int]] = [[], []]
        for step in range(N):
            for tokens_of, responses in zip(found, begun, strict=True):
                # By turns in this thread and in a new one.
                take = lambda responses=responses: next(responses).token  # noqa: E731
                tokens_of.append(in_a_thread(take) if step % 2 else take())
    assert found == [text, another]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_generator_is_closed_or_dropped_in_another_thread(family):
    model = tiny_model(family)
    prompt, text = cases(model, 1)[0]

    def begin(cache: list) -> Iterator:
        options = {"block_size": 4, "prompt_cache": cache}
        responses = stream_generate(pair, TOKENIZER, prompt, N, **options)
        for _ in range(5):
            next(responses)
        return responses

    with random_pair(model, num_target_layers=None) as pair:
        closed, dropped = pair.make_prompt_cache(), pair.make_prompt_cache()
        begin(closed).close()
        held = [in_a_thread(lambda: begin(dropped))]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        for cache in (closed, dropped):
            rest = tokens(pair, text[5:6], prompt_cache=cache, max_tokens=N - 6)
            assert rest == text[6:]
