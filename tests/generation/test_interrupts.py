"""Ctrl-C at any moment: the prompt cache holds a prefix of what came out, and goes on."""

import functools
import linecache
import signal
import sys
from types import FrameType

import pytest
from support.pairs import oracle_pair
from support.plain import plain_greedy, random_prompt, vocab_of
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import stream_generate
from dflash_mlx.cache.adopt import kv_caches

TOKENIZER = byte_tokenizer()
N = 14
model = functools.cache(tiny_model)


@pytest.fixture(autouse=True)
def python_raises_interrupts():
    """Under nohup, or as a shell's background job, Python would ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@functools.cache
def case(family: str) -> tuple[list[int], list[int]]:
    prompt = random_prompt(21, vocab_of(model(family)), 1)
    return prompt, plain_greedy(model(family), prompt, 2 * N)


def place(frame: FrameType) -> tuple[str, int]:
    return frame.f_code.co_filename, frame.f_lineno


class InterruptAt:
    """Sends the process SIGINT at the n-th line that runs in this package."""

    def __init__(self, line: int):
        self.left = line

    def __call__(self, frame: FrameType, event: str, arg: object) -> object:
        if "dflash_mlx" not in frame.f_code.co_filename:
            return None
        # Python looks for signals at calls and jumps: none comes between a try and its yield.
        if event == "line" and linecache.getline(*place(frame)).strip() != "yield step":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self


def run(pair, prompt, cache, tracing: InterruptAt, block_size: int) -> tuple[list[int], bool]:
    """What came out before the interrupt, and whether there was one."""
    found = []
    sys.settrace(tracing)
    try:
        options = {"block_size": block_size, "prompt_cache": cache, "prefill_step_size": 8}
        responses = stream_generate(pair, TOKENIZER, prompt, N, **options)
        try:
            for response in responses:
                found.append(response.token)
        finally:
            responses.close()
    except KeyboardInterrupt:
        return found, True
    finally:
        sys.settrace(None)
    return found, False


def lines_of(pair, prompt, block_size: int) -> int:
    """How many lines a generation without an interrupt takes."""
    many = 10**9
    tracing = InterruptAt(many)
    run(pair, prompt, pair.make_prompt_cache(), tracing, block_size)
    return many - tracing.left


# For all lines, once: EVERY = 1.
EVERY = 40


@pytest.mark.parametrize(
    ("family", "block_size"),
    [("llama", 4), ("gemma3_text", 4), ("qwen3_next", 4), ("qwen3_next", 1)],
)
def test_the_cache_goes_on_after_an_interrupt_at_any_line(family, block_size):
    prompt, truth = case(family)
    whole = [*prompt, *truth]
    with oracle_pair(model(family), whole, (1, 0, 3)) as pair:
        total = lines_of(pair, prompt, block_size)
        step = max(total // EVERY, 1) if EVERY > 1 else 1
        interrupts = 0
        # The last lines hand the caches back.
        for line in sorted({*range(1, total, step), *range(total - 120, total, 3)}):
            cache = pair.make_prompt_cache()
            found, happened = run(pair, prompt, cache, InterruptAt(line), block_size)
            assert found == truth[: len(found)]
            interrupts += happened
            held = kv_caches(cache)[0].offset
            # Of a prompt that was not finished there are whole chunks. The last token counts as
            # taken when the cache is complete, just before it is seen.
            if happened:
                assert held <= len(prompt) + len(found) + (len(found) == N - 1)
            assert not found or held >= len(prompt) + len(found) - 1
            options = {"block_size": block_size, "prompt_cache": cache}
            rest = whole[held : max(len(prompt), held + 1)]
            after = [r.token for r in stream_generate(pair, TOKENIZER, rest, 6, **options)]
            assert after == whole[held + len(rest) :][:6]
    # The oracle counts its rounds from text to text, so one may end before the last lines.
    assert interrupts > 30
