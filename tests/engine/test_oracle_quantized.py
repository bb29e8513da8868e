"""Losslessness on quantized caches, from the start, from the middle of the text, and in between."""

import functools

import pytest
from support.batch import STEP, run
from support.oracle import OracleDrafter
from support.plain import clear_steps
from support.tiny import VOCAB, tiny_model

from dflash_mlx.cache.quantized import KVQuantization
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.target.target import Target

TAPS = (0, 2)
N = 60
MARGIN = 1e-2
GROUP = 32
GREEDY = Sampling()


@functools.cache
def model_of(family):
    return tiny_model(family, head_dim=32)


@functools.cache
def case(family, length, bits, start, row=0):
    options = {"kv_bits": bits, "kv_group_size": GROUP, "quantized_kv_start": start}
    return clear_steps(
        model_of(family), length, N + 16, row, margin=MARGIN, prefill_step_size=STEP, **options
    )


def emitted(family, cases, accept, block_size, bits, start):
    target = Target(model_of(family), TAPS)
    try:
        drafter = OracleDrafter([p + t for p, t in cases], accept, VOCAB)
        prompts = [prompt for prompt, _ in cases]
        quantization = KVQuantization(bits, GROUP, start)
        return run(target, drafter, prompts, N, block_size, GREEDY, quantization=quantization)[0]
    finally:
        target.release()


@pytest.mark.parametrize(("family", "start"), [("llama", 45), ("qwen3", 0)])
@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 8, 13, 16])
def test_every_acceptance_length(family, block_size, start):
    prompt, truth = case(family, 20, 8, start)
    for right in sorted({0, 1, block_size // 2, block_size - 1}):
        rows = emitted(family, [(prompt, truth)], lambda _, a=right: a, block_size, 8, start)
        assert rows[0][:N] == truth[:N]


def test_long_text():
    n = 220
    options = {"kv_bits": 8, "kv_group_size": GROUP, "quantized_kv_start": 120}
    prompt, truth = clear_steps(model_of("llama"), 20, n, margin=2e-3, **options)
    target = Target(model_of("llama"), TAPS)
    try:
        drafter = OracleDrafter([prompt + truth], lambda r: r * 5 % 16, VOCAB)
        quantization = KVQuantization(8, GROUP, 120)
        rows = run(target, drafter, [prompt], n, 16, GREEDY, quantization=quantization)[0]
        assert rows[0][:n] == truth[:n]
    finally:
        target.release()


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_every_width(bits):
    prompt, truth = case("llama", 20, bits, 40)
    rows = emitted("llama", [(prompt, truth)], lambda r: r * 5 % 16, 16, bits, 40)
    assert rows[0][:N] == truth[:N]


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 66])
@pytest.mark.parametrize("start", [0, 64, 65])
def test_prompts_around_the_start(length, start):
    prompt, truth = case("llama", length, 8, start)
    rows = emitted("llama", [(prompt, truth)], lambda r: r * 5 % 16, 16, 8, start)
    assert rows[0][:N] == truth[:N]


@pytest.mark.parametrize("start", range(30, 47))
def test_every_place_of_the_start_in_a_block(start):
    prompt, truth = case("llama", 20, 8, start)
    rows = emitted("llama", [(prompt, truth)], lambda r: 9, 16, 8, start)
    assert rows[0][:N] == truth[:N]


@pytest.mark.parametrize(("family", "start"), [("llama", 70), ("qwen3", 0)])
def test_ragged_batch_of_three(family, start):
    cases = [case(family, length, 8, start, row) for row, length in enumerate((3, 60, 11))]
    rows = emitted(family, cases, lambda r: r * 3 % 8, 8, 8, start)
    for row, (_, truth) in zip(rows, cases, strict=True):
        assert row[:N] == truth[:N]


def test_the_quantization_and_its_start_matter():
    texts = [case("llama", 20, 4, start)[1] for start in (0, 40, 10_000)]
    assert len(set(map(tuple, texts))) == 3
