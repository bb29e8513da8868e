"""Sequences in one loop: whoever joins and leaves, each writes what it writes alone."""

import functools
import math
import random

import pytest
from support.company import Case, company, play
from support.lossless import COUPLED, GREEDY, Kind
from support.plain import clear_case
from support.tiny import shared_model

from dflash_mlx.cache.quantized import KVQuantization

FAMILIES = (
    "llama",
    "qwen3_moe",
    "gemma3_text",
    "gemma4",
    "gpt_oss",
    "qwen3_next",
    "qwen3_5",
    "deepseek_v3",
    "deepseek_v32",
)
# Other models around the same caches.
MORE_FAMILIES = ("gemma", "minimax", "muse_glimmer", "qwen2", "qwen3", "smollm3")
LENGTHS = (1, 2, 9, 17, 40, 63, 70)


@functools.cache
def case(family: str, length: int, n: int, temp: float, seed: int) -> tuple[list[int], list[int]]:
    sampling = GREEDY if not temp else COUPLED
    return clear_case(shared_model(family), length, n, sampling, 0, seed)


def cases_of(family: str, count: int, luck: random.Random) -> list[Case]:
    cases = []
    for number in range(count):
        sampled = number % 3 == 2
        length, n = LENGTHS[number % len(LENGTHS)], 40
        prompt, text = case(family, length, n, 0.9 if sampled else 0.0, number % 2)
        options = {"temp": 0.9, "top_p": 0.95, "seed": COUPLED.seed} if sampled else {}
        if number % 5 == 4:
            options["draft"] = False
        cases.append(Case(prompt, text, options, luck.choice((1, 7, 23, n, n))))
    return cases


@pytest.mark.parametrize(
    ("family", "largest_batch"),
    [
        *((family, size) for family in FAMILIES for size in (1, 3, 8)),
        *((family, 4) for family in MORE_FAMILIES),
    ],
)
def test_every_text_is_what_it_is_alone(family, largest_batch):
    with company(shared_model(family), largest_batch, largest_batch) as (pair, scheduler, luck):
        cases = cases_of(family, 14, luck)
        got, _ = play(pair, scheduler, luck, cases)
    assert got == [case.text[: case.wanted] for case in cases]


WIDE = {"head_dim": 32}
KEPT = Kind("qwen3", max_kv_size=8)
QUANTIZED = Kind("qwen3", WIDE, quantization=KVQuantization(8, 32, 0))
QUANTIZING = Kind("llama", WIDE, quantization=KVQuantization(8, 32, 45))


@pytest.mark.parametrize("kind", [KEPT, QUANTIZED, QUANTIZING], ids=["kept", "packed", "packing"])
def test_caches_that_forget_or_round(kind):
    options = {"prefill_step_size": 64, "max_kv_size": kind.max_kv_size}
    if (kv := kind.quantization) is not None:
        options |= {"kv_bits": kv.bits, "kv_group_size": kv.group_size}
        options |= {"quantized_kv_start": kv.start}
    with company(kind.model, 5, 3) as (pair, scheduler, luck):
        texts = [kind.case(length, 40, row=i) for i, length in enumerate((20, 3, 60, 31, 9))]
        cases = [
            Case(prompt, text, options, n)
            for (prompt, text), n in zip(texts * 2, [40, 40, 7, 40, 23] * 2, strict=True)
        ]
        got, _ = play(pair, scheduler, luck, cases)
    assert got == [case.text[: case.wanted] for case in cases]


def test_a_family_that_takes_one_sequence_takes_turns():
    model = shared_model("gemma2")
    texts = [clear_case(model, length, 30, GREEDY, 0, length) for length in (3, 20, 9)]
    with company(model, 6, 3) as (pair, scheduler, luck):
        cases = [Case(prompt, text, {}, 30) for prompt, text in texts]
        got, _ = play(pair, scheduler, luck, cases)
    assert got == [case.text for case in cases]


@pytest.mark.parametrize(("pace", "tokens"), [(0.5, 1), (0.01, 10), (0.003, 32), (0.0005, 192)])
def test_a_chunk_takes_no_longer_than_the_others_may_wait(pace, tokens):
    with company(shared_model("llama"), 0, 2) as (_, scheduler, _):
        assert scheduler._step_size() == math.inf
        scheduler._batches, scheduler._pace = [None], pace
        assert scheduler._step_size() == tokens
