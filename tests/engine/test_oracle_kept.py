"""Losslessness on rotating caches that keep their first rows, as ``max_kv_size`` makes them."""

import functools

import pytest
from mlx_lm.models.cache import make_prompt_cache
from support.batch import STEP, run
from support.oracle import OracleDrafter
from support.plain import clear_steps
from support.tiny import VOCAB, tiny_model

from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.target.target import Target

TAPS = (0, 2)
N = 120
GREEDY = Sampling()
model_of = functools.cache(tiny_model)


def kept(size):
    return functools.partial(make_prompt_cache, max_kv_size=size)


@functools.cache
def case(family, length, size, row=0):
    return clear_steps(model_of(family), length, N + 40, row, kept(size), prefill_step_size=STEP)


def emitted(family, cases, accept, block_size, size):
    target = Target(model_of(family), TAPS)
    try:
        drafter = OracleDrafter([p + t for p, t in cases], accept, VOCAB)
        prompts = [prompt for prompt, _ in cases]
        return run(target, drafter, prompts, N, block_size, GREEDY, max_kv_size=size)[0]
    finally:
        target.release()


@pytest.mark.parametrize(
    ("family", "block_size"), [("smollm3", 5), *(("qwen3", b) for b in (1, 2, 3, 5, 8, 13, 16))]
)
def test_every_acceptance_length(family, block_size):
    prompt, truth = case(family, 20, 8)
    for right in sorted({0, 1, block_size // 2, block_size - 1}):
        rows = emitted(family, [(prompt, truth)], lambda _, a=right: a, block_size, 8)
        assert rows[0][:N] == truth[:N]


@pytest.mark.parametrize("length", [1, 2, 4, 5, 8, 9, 65, 150])
@pytest.mark.parametrize("size", [5, 8, 100])
def test_prompts_shorter_and_longer_than_the_cache(length, size):
    prompt, truth = case("qwen3", length, size)
    rows = emitted("qwen3", [(prompt, truth)], lambda r: r * 5 % 16, 16, size)
    assert rows[0][:N] == truth[:N]


def test_the_size_matters():
    assert case("qwen3", 20, 8)[1] != clear_steps(model_of("qwen3"), 20, N)[1]


@pytest.mark.parametrize("family", ["qwen3", "smollm3"])
def test_ragged_batch_of_three(family):
    cases = [case(family, length, 8, row) for row, length in enumerate((2, 70, 11))]
    rows = emitted(family, cases, lambda r: r * 3 % 8, 8, 8)
    for row, (_, truth) in zip(rows, cases, strict=True):
        assert row[:N] == truth[:N]


@pytest.mark.parametrize(("length", "size"), [(20, 8), (2, 20)])
def test_long_text_in_the_largest_rounds(length, size):
    n = 250
    prompt, truth = clear_steps(model_of("qwen3"), length, n + 80, 0, kept(size))
    target = Target(model_of("qwen3"), TAPS)
    try:
        for accept in (lambda _: 31, lambda r: r * 7 % 32):
            drafter = OracleDrafter([prompt + truth], accept, VOCAB, 32)
            rows = run(target, drafter, [prompt], n, 32, GREEDY, max_kv_size=size)[0]
            assert rows[0][:n] == truth[:n]
    finally:
        target.release()
