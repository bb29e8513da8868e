"""Losslessness: oracle drafters over every acceptance length, block size and batch."""

import functools

import mlx.core as mx
import pytest
from support.batch import run
from support.oracle import OracleDrafter
from support.plain import clear_case
from support.tiny import VOCAB, tiny_model

from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.target.target import Target

TAPS = (0, 2)
PROOF_FAMILIES = ("llama", "qwen3", "qwen3_moe")
GREEDY = Sampling()
COUPLED = Sampling(temp=0.9, top_p=0.95, seed=11)
model_of = functools.cache(tiny_model)


@functools.cache
def case(family, length, n, sampling, row=0, seed=0):
    return clear_case(model_of(family), length, n, sampling, row, seed)


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("family", PROOF_FAMILIES)
@pytest.mark.parametrize("block_size", range(1, 17))
def test_every_acceptance_length(family, block_size, sampling):
    model, n = model_of(family), 60
    prompt, truth = case(family, 20, n + 40, sampling)
    target = Target(model, TAPS)
    try:
        for right in range(block_size):
            drafter = OracleDrafter([prompt + truth], lambda _, a=right: a, VOCAB)
            emitted, accepted, _ = run(target, drafter, [prompt], n, block_size, sampling)
            assert emitted[0][:n] == truth[:n]
            assert all(a == [right] for a in accepted[: n // (right + 1) - 1])
    finally:
        target.release()


@pytest.mark.parametrize("family", PROOF_FAMILIES)
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200, 255, 256, 257, 300])
def test_prompt_lengths_across_buffer_growth(family, length):
    model, n = model_of(family), 80
    for sampling in (GREEDY, COUPLED):
        prompt, truth = case(family, length, n + 16, sampling)
        target = Target(model, TAPS)
        try:
            drafter = OracleDrafter([prompt + truth], lambda r: r % 8, VOCAB)
            emitted, _, _ = run(target, drafter, [prompt], n, 8, sampling)
            assert emitted[0][:n] == truth[:n]
        finally:
            target.release()


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("family", PROOF_FAMILIES)
def test_ragged_batch_of_three(family, sampling):
    model, n = model_of(family), 70
    cases = [case(family, k, n + 80, sampling, row, row) for row, k in enumerate((3, 250, 40))]
    prompts, truth = zip(*cases, strict=True)
    target = Target(model, TAPS)
    try:
        for block_size in (1, 2, 5, 16):
            full = [p + t for p, t in zip(prompts, truth, strict=True)]
            # Rows disagree at different places: row 0's truth is shifted in every third round.
            drafter = OracleDrafter(full, lambda r, b=block_size: r * 3 % b, VOCAB)
            emitted, _, _ = run(target, drafter, prompts, n, block_size, sampling)
            for row in range(3):
                assert emitted[row][:n] == truth[row][:n]
    finally:
        target.release()


def test_rows_accept_independently():
    model, n = model_of("llama"), 60
    cases = [case("llama", k, n + 300, GREEDY, row, row) for row, k in enumerate((5, 30, 12))]
    prompts, truth = zip(*cases, strict=True)
    target = Target(model, TAPS)
    try:
        # Row 1 is handed another row's truth, so it accepts by chance only.
        full = [prompts[0] + truth[0], prompts[1] + truth[0], prompts[2] + truth[2]]
        drafter = OracleDrafter(full, lambda _: 15, VOCAB)
        emitted, accepted, _ = run(target, drafter, prompts, n, 8, GREEDY)
        assert [row[:n] for row in emitted] == [t[:n] for t in truth]
        assert all(a[0] == 7 and a[2] == 7 for a in accepted[:5])
        assert sum(a[1] for a in accepted) < 7 * len(accepted) / 2
    finally:
        target.release()


@pytest.mark.parametrize("right", range(4))
def test_context_holds_exactly_the_committed_features(right):
    model, n = model_of("llama"), 30
    prompt, truth = case("llama", 10, n + 20, GREEDY)
    target = Target(model, TAPS)
    try:
        drafter = OracleDrafter([prompt + truth], lambda _: right, VOCAB)
        emitted, _, queue = run(target, drafter, [prompt], n, 4, GREEDY)
        committed = queue.lengths[0]
        assert committed == len(prompt) - 1 + len(emitted[0])
        _, features = target.forward(
            mx.array([(prompt + emitted[0])[:committed]]), target.make_cache()
        )
        written = queue.state.context[0].keys[0, 0, :committed]
        assert mx.allclose(written, features[0], rtol=1e-4, atol=1e-4)
    finally:
        target.release()
