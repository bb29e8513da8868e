"""Losslessness: oracle drafters over acceptance lengths, block sizes, batches, kinds of caches."""

import mlx.core as mx
import pytest
from support.batch import run
from support.lossless import COUPLED, GREEDY, SAMPLINGS, TAPS, Kind, turns
from support.oracle import OracleDrafter
from support.tiny import VOCAB

from dflash_mlx.cache.quantized import KVQuantization
from dflash_mlx.cache.recurrent import Convolved, Recurrence
from dflash_mlx.target.target import Target

HYBRIDS = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
WINDOWS = ("gemma3_text", "gemma4", "gpt_oss")
# Other models around caches that the others have in all sizes.
LIKE_LLAMA = ("gemma", "minimax", "qwen2", "qwen3_moe", "smollm3")
LIKE_WINDOWS = ("gemma3", "gemma4_text", "muse_glimmer")
SLIDING_LLAMA = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 8,
}
WIDE = {"head_dim": 32}
# Buffers grow at 64 and 256 positions, and so do the views of them; an indexer chooses from 9 on;
# windows are of 8, in rings of 72, which texts after 60 tokens wrap.
GROWTH = (1, 2, 63, 64, 65, 250, 255, 256, 257)
AROUND_8 = (1, 2, 7, 8, 9, 16, 100)
KINDS = {
    "llama": Kind("llama", lengths=GROWTH),
    "qwen3": Kind("qwen3"),
    **{f: Kind(f) for f in LIKE_LLAMA},
    **{f: Kind(f, lengths=AROUND_8) for f in HYBRIDS},
    **{f: Kind(f, prompt=60, lengths=AROUND_8) for f in WINDOWS},
    **{f: Kind(f, prompt=60) for f in LIKE_WINDOWS},
    "sliding llama": Kind("llama", SLIDING_LLAMA, 60, lengths=AROUND_8),
    "deepseek_v3": Kind("deepseek_v3", lengths=(1, 63, 250)),
    "deepseek_v32": Kind("deepseek_v32", n=60, lengths=(1, 2, 8, 9, 63, 250)),
    "glm_moe_dsa": Kind("glm_moe_dsa", n=60, lengths=(1, 8, 9, 250)),
    "kimi_k25": Kind("kimi_k25"),
    "qwen3, kept": Kind("qwen3", {}, 60, 40, (1, 2, 4, 5, 8, 9, 65, 150), max_kv_size=8),
    "smollm3, kept": Kind("smollm3", {}, 60, 40, (2, 70), max_kv_size=8),
    "qwen3, 5 kept": Kind("qwen3", {}, 60, 40, (1, 4, 5, 9, 150), max_kv_size=5),
    "qwen3, 100 kept": Kind("qwen3", {}, 150, 40, (1, 5, 65), max_kv_size=100),
    "quantized": Kind("qwen3", WIDE, 20, 40, (1, 65), quantization=KVQuantization(8, 32, 0)),
    "quantized at 45": Kind("llama", WIDE, 20, 60, (1, 63), quantization=KVQuantization(8, 32, 45)),
    "quantized at 64": Kind(
        "llama", WIDE, 40, 60, (1, 2, 62, 63, 64, 65, 66), quantization=KVQuantization(8, 32, 64)
    ),
}
EDGES = [(name, length) for name, kind in KINDS.items() for length in kind.lengths]
# Caches that forget or round have no sampled reference.
SAMPLED = [name for name, kind in KINDS.items() if not (kind.max_kv_size or kind.quantization)]
SIZES = (1, 2, 3, 8, 16)
LIKE_OTHERS = (*LIKE_LLAMA, *LIKE_WINDOWS, "kimi_k25", "qwen3_5_moe")
FULLY_SAMPLED = ("llama", "qwen3", "gemma3_text", "gpt_oss", "sliding llama", "qwen3_next")
GRID = [
    *((name, size, "greedy") for name in KINDS if name not in LIKE_OTHERS for size in SIZES),
    *((name, 8, "greedy") for name in LIKE_OTHERS),
    *((name, size, "coupled") for name in FULLY_SAMPLED for size in SIZES),
    *((name, 8, "coupled") for name in SAMPLED if name not in FULLY_SAMPLED),
]
BATCHES = [*((name, "greedy") for name in KINDS), *((name, "coupled") for name in SAMPLED)]


@pytest.mark.parametrize(("name", "block_size", "sampling"), GRID)
def test_every_acceptance_length(name, block_size, sampling):
    kind, cycle = KINDS[name], turns(block_size)
    # A whole cycle of the largest block is 112 tokens.
    n = kind.n if block_size < 8 else max(kind.n, 112)
    kind.check(block_size, lambda r: cycle[r % len(cycle)], n=n, sampling=SAMPLINGS[sampling])


@pytest.mark.parametrize(("name", "length"), EDGES)
def test_prompt_lengths(name, length):
    KINDS[name].check(16, lambda r: r * 5 % 16, [length])


@pytest.mark.parametrize(("name", "sampling"), BATCHES)
def test_ragged_batch_of_three(name, sampling):
    # Quantization begins in the middle of every row, or in none.
    lengths = (20, 40, 31) if KINDS[name].quantization else (3, 70, 11)
    KINDS[name].check_batch(8, lengths, sampling=SAMPLINGS[sampling])


@pytest.mark.parametrize("block_size", [1, 2, 16])
@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "qwen3_5", "quantized at 64"])
def test_ragged_batch_in_other_blocks(name, block_size):
    KINDS[name].check_batch(block_size, (3, 55, 40))


@pytest.mark.parametrize(
    ("name", "block_size"),
    [("llama", 16), ("qwen3_next", 16), ("deepseek_v32", 8), ("qwen3, kept", 32), ("gpt_oss", 32)],
)
def test_long_text(name, block_size):
    KINDS[name].check(block_size, lambda r: r * 7 % block_size, n=250)


def test_prompts_of_sampled_texts_across_buffer_growth():
    for length in GROWTH:
        KINDS["llama"].check(8, lambda r: r % 8, [length], sampling=COUPLED)


def test_rows_that_accept_by_chance_hold_no_other_up():
    kind, n = KINDS["llama"], 60
    (a, truth), (b, other), (c, third) = (kind.case(k, n, row=i) for i, k in enumerate((5, 30, 12)))
    target = Target(kind.model, TAPS)
    try:
        # Row 1 is handed another row's truth.
        drafter = OracleDrafter([a + truth, b + truth, c + third], lambda _: 15, VOCAB)
        emitted, accepted, _ = run(target, drafter, [a, b, c], n, 8, GREEDY)
    finally:
        target.release()
    assert [row[:n] for row in emitted] == [truth, other, third]
    assert all(counts[0] == 7 and counts[2] == 7 for counts in accepted[:5])
    assert sum(counts[1] for counts in accepted) < 7 * len(accepted) / 2


@pytest.mark.parametrize("right", range(4))
def test_context_holds_exactly_the_committed_features(right):
    kind = KINDS["llama"]
    (emitted,), _, queue = kind.check(4, lambda _: right, [10])
    committed = kind.case(10, kind.n)[0] + emitted[:-1]
    assert queue.lengths == [len(committed)]
    target = Target(kind.model, TAPS)
    _, features = target.forward(mx.array([committed]), target.make_cache())
    target.release()
    written = queue.state.context[0].keys[0, 0, : len(committed)]
    assert mx.allclose(written, features[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("start", range(30, 47))
def test_every_place_in_a_block_where_quantization_starts(start):
    kind = Kind("llama", WIDE, quantization=KVQuantization(8, 32, start))
    kind.check(16, lambda r: 9)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_every_width_of_codes(bits):
    kind = Kind("llama", WIDE, quantization=KVQuantization(bits, 32, 40))
    kind.check(16, lambda r: r * 5 % 16)


def test_what_caches_forget_and_round_matters():
    texts = [KINDS[name].case(20, 60)[1] for name in ("qwen3", "qwen3, kept", "qwen3, 5 kept")]
    for start in (0, 40, 10_000):
        kind = Kind("llama", WIDE, quantization=KVQuantization(4, 32, start))
        texts.append(kind.case(20, 60)[1])
    for topk in (8, 10_000):
        texts.append(Kind("deepseek_v32", {"index_topk": topk}).case(20, 60)[1])
    assert len(set(map(tuple, texts))) == len(texts)


@pytest.mark.parametrize("kind", [Recurrence, Convolved])
@pytest.mark.parametrize("family", HYBRIDS)
def test_one_token_too_few_in_the_replay_shows_in_the_text(family, kind, monkeypatch):
    replay = kind.after
    monkeypatch.setattr(kind, "after", lambda step, state, n: replay(step, state, n - 1))
    with pytest.raises(AssertionError):
        KINDS[family].check(8, lambda _: 3, n=60)
