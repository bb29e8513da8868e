"""Losslessness on every family of targets: hybrids, latents, shared keys, windows of eight."""

import functools

import pytest
from support.batch import run
from support.oracle import OracleDrafter
from support.plain import clear_case
from support.tiny import VOCAB, tiny_model

from dflash_mlx.cache.recurrent import Recurrence, Window
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.target.target import Target

TAPS = (0, 2)
GREEDY = Sampling()
COUPLED = Sampling(temp=0.9, top_p=0.95, seed=11)
HYBRIDS = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
WINDOWS = ("gemma3", "gemma3_text", "gemma4", "gemma4_text", "gpt_oss", "muse_glimmer")
LATENTS = ("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_k25")
# llama, qwen3 and qwen3_moe are in test_oracle.
OTHERS = ("minimax", "qwen2", "smollm3")
model_of = functools.cache(tiny_model)


@functools.cache
def case(family, length=20, n=240, sampling=GREEDY, row=0):
    return clear_case(model_of(family), length, n, sampling, row, row)


def emit(family, prompt, truth, n, block_size, accept, sampling=GREEDY):
    target = Target(model_of(family), TAPS)
    try:
        drafter = OracleDrafter([prompt + truth], accept, VOCAB)
        return run(target, drafter, [prompt], n, block_size, sampling)
    finally:
        target.release()


@pytest.mark.parametrize("block_size", range(1, 17))
@pytest.mark.parametrize("family", [*HYBRIDS, *WINDOWS, *LATENTS, *OTHERS])
def test_every_acceptance_length(family, block_size):
    # All lengths in turn, with a stride that puts long ones after short ones and the reverse.
    stride = next(s for s in (5, 3, 7) if block_size % s)
    n = 200 if block_size == 16 else block_size * (block_size + 1) // 2 + 16
    prompt, truth = case(family)
    emitted, accepted, _ = emit(
        family, prompt, truth, n, block_size, lambda r: r * stride % block_size
    )
    assert emitted[0][:n] == truth[:n]
    assert {a[0] for a in accepted} == set(range(block_size))


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe"])
def test_long_text(family):
    prompt, truth = case(family)
    emitted, _, _ = emit(family, prompt, truth, 200, 16, lambda r: r * 5 % 16)
    assert emitted[0][:200] == truth[:200]


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 100])
@pytest.mark.parametrize("family", [*HYBRIDS, *WINDOWS])
def test_prompts_shorter_and_longer_than_the_window(family, length):
    n = 60
    prompt, truth = case(family, length, n + 20)
    emitted, _, _ = emit(family, prompt, truth, n, 16, lambda r: r * 5 % 16)
    assert emitted[0][:n] == truth[:n]


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("family", ["gemma4", "kimi_k25", "qwen3_5"])
def test_ragged_batch_of_three(family, sampling):
    n = 100
    cases = [case(family, k, 240, sampling, row) for row, k in enumerate((1, 70, 11))]
    prompts, truth = zip(*cases, strict=True)
    target = Target(model_of(family), TAPS)
    try:
        # Row 1 is handed another row's truth, so the rows accept differently.
        full = [prompts[0] + truth[0], prompts[1] + truth[0], prompts[2] + truth[2]]
        drafter = OracleDrafter(full, lambda r: r * 3 % 8, VOCAB)
        emitted, accepted, _ = run(target, drafter, prompts, n, 8, sampling)
        assert [row[:n] for row in emitted] == [t[:n] for t in truth]
        assert any(len(set(row)) > 1 for row in accepted)
    finally:
        target.release()


@pytest.mark.parametrize("family", HYBRIDS)
def test_sampled_text_of_a_hybrid_is_plain_sampling(family):
    n = 60
    prompt, truth = case(family, 20, n + 20, COUPLED)
    emitted, _, _ = emit(family, prompt, truth, n, 8, lambda r: r * 3 % 8, COUPLED)
    assert emitted[0][:n] == truth[:n]


@pytest.mark.parametrize("kind", [Recurrence, Window])
@pytest.mark.parametrize("family", HYBRIDS)
def test_one_row_too_few_in_the_replay_shows_in_the_text(family, kind, monkeypatch):
    prompt, truth = case(family)
    replay = kind.after
    monkeypatch.setattr(kind, "after", lambda step, state, n: replay(step, state, n - 1))
    emitted, _, _ = emit(family, prompt, truth, 60, 8, lambda _: 3)
    assert emitted[0][:60] != truth[:60]
