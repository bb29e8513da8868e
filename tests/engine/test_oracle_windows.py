"""Losslessness on targets with sliding windows that wrap many times."""

import functools

import pytest
from support.batch import run
from support.oracle import OracleDrafter
from support.plain import clear_case
from support.tiny import VOCAB, tiny_model

from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.target.target import Target

TAPS = (0, 2)
N = 200
GREEDY = Sampling()
COUPLED = Sampling(temp=0.9, top_p=0.95, seed=11)
SLIDING = {
    "gemma3_text": {},
    "gpt_oss": {},
    "llama": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 8,
    },
}
every_family = pytest.mark.parametrize("family", SLIDING)


@functools.cache
def model_of(family):
    return tiny_model(family, **SLIDING[family])


@functools.cache
def case(family, length, sampling, row=0):
    return clear_case(model_of(family), length, N + 20, sampling, row, row)


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 8, 13, 16])
@every_family
def test_every_acceptance_length(family, block_size, sampling):
    prompt, truth = case(family, 20, sampling)
    target = Target(model_of(family), TAPS)
    try:
        for right in sorted({0, 1, block_size // 2, block_size - 1}):
            drafter = OracleDrafter([prompt + truth], lambda _, a=right: a, VOCAB)
            emitted, _, _ = run(target, drafter, [prompt], N, block_size, sampling)
            assert emitted[0][:N] == truth[:N]
    finally:
        target.release()


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 16, 100])
@every_family
def test_prompts_shorter_and_longer_than_the_window(family, length):
    prompt, truth = case(family, length, GREEDY)
    target = Target(model_of(family), TAPS)
    try:
        drafter = OracleDrafter([prompt + truth], lambda r: r * 5 % 16, VOCAB)
        emitted, _, _ = run(target, drafter, [prompt], N, 16, GREEDY)
        assert emitted[0][:N] == truth[:N]
    finally:
        target.release()


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@every_family
def test_ragged_batch_of_three(family, sampling):
    cases = [case(family, k, sampling, row) for row, k in enumerate((3, 70, 11))]
    prompts, truth = zip(*cases, strict=True)
    target = Target(model_of(family), TAPS)
    try:
        full = [p + t for p, t in zip(prompts, truth, strict=True)]
        drafter = OracleDrafter(full, lambda r: r * 3 % 8, VOCAB)
        emitted, _, _ = run(target, drafter, prompts, N - 80, 8, sampling)
        for row in range(3):
            assert emitted[row][: N - 80] == truth[row][: N - 80]
    finally:
        target.release()
