"""Losslessness on latent caches, and on lists of a latent cache and an indexer's."""

import functools

import pytest
from support.batch import run
from support.oracle import OracleDrafter
from support.plain import clear_case
from support.tiny import VOCAB, tiny_model

from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.target.target import Target

TAPS = (0, 2)
GREEDY = Sampling()
COUPLED = Sampling(temp=0.9, top_p=0.95, seed=11)
FAMILIES = ("deepseek_v3", "deepseek_v32", "glm_moe_dsa")
every_family = pytest.mark.parametrize("family", FAMILIES)
model_of = functools.cache(tiny_model)


@functools.cache
def case(family, length, sampling, n, row=0):
    return clear_case(model_of(family), length, n + 30, sampling, row, row)


def emitted(family, cases, accept, block_size, sampling, n):
    target = Target(model_of(family), TAPS)
    try:
        drafter = OracleDrafter([p + t for p, t in cases], accept, VOCAB)
        return run(target, drafter, [p for p, _ in cases], n, block_size, sampling)[0]
    finally:
        target.release()


# glm_moe_dsa is deepseek_v32 under another name.
@pytest.mark.parametrize(
    ("block_size", "sampling"), [*((b, GREEDY) for b in (1, 2, 3, 5, 8, 13, 16)), (6, COUPLED)]
)
@pytest.mark.parametrize("family", ["deepseek_v3", "deepseek_v32"])
def test_every_acceptance_length(family, block_size, sampling):
    n = 60
    prompt, truth = case(family, 20, sampling, n)
    for right in sorted({0, 1, block_size // 2, block_size - 1}):
        rows = emitted(family, [(prompt, truth)], lambda _, a=right: a, block_size, sampling, n)
        assert rows[0][:n] == truth[:n]


# The indexer chooses from 9 rows on; buffers grow at 64 and 256.
@pytest.mark.parametrize("length", [1, 2, 8, 9, 63, 250])
@every_family
def test_prompt_lengths(family, length):
    n = 60
    prompt, truth = case(family, length, GREEDY, n)
    rows = emitted(family, [(prompt, truth)], lambda r: r * 5 % 16, 16, GREEDY, n)
    assert rows[0][:n] == truth[:n]


@every_family
def test_long_text(family):
    n = 220
    prompt, truth = case(family, 20, GREEDY, n)
    rows = emitted(family, [(prompt, truth)], lambda r: r * 3 % 8, 8, GREEDY, n)
    assert rows[0][:n] == truth[:n]


@every_family
def test_ragged_batch_of_three(family):
    n = 60
    cases = [case(family, k, GREEDY, n + 60, row) for row, k in enumerate((3, 70, 11))]
    rows = emitted(family, cases, lambda r: r * 3 % 8, 8, GREEDY, n)
    for row, (_, truth) in zip(rows, cases, strict=True):
        assert row[:n] == truth[:n]


@pytest.mark.parametrize("family", ["deepseek_v32", "glm_moe_dsa"])
def test_the_indexer_matters(family):
    dense = tiny_model(family, index_topk=10_000)
    assert case(family, 20, GREEDY, 60)[1] != clear_case(dense, 20, 90, GREEDY)[1]
