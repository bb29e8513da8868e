"""The prompts that the embedded drafter is trained with are none of those it is measured with."""

from collections import Counter

import training_prompts

from dflash_mlx.measure.prompts import read_prompts

MEASURED = [prompt.messages[-1]["content"] for prompt in read_prompts()]


def test_prompts_are_different_of_every_kind_and_repeatable():
    rows = training_prompts.make_prompts(500, seed=0)
    assert Counter(row["kind"] for row in rows) == dict.fromkeys(
        ("code", "math", "structured", "chat", "prose"), 100
    )
    assert len({row["prompt"] for row in rows}) == 500
    assert rows == training_prompts.make_prompts(500, seed=0)
    assert rows != training_prompts.make_prompts(500, seed=1)


def test_no_measured_prompt_or_close_variant_is_among_them():
    rows = training_prompts.make_prompts(10_000, seed=0)
    for measured in MEASURED:
        words = training_prompts.content_words(measured)
        assert training_prompts.is_close(measured, words)
        assert not any(training_prompts.is_close(row["prompt"], words) for row in rows)


def test_close_variants_are_told():
    for variant in (
        "Write a Python function that tests whether a word is a palindrome.",
        "Why is the evening sky blue?",
        "Describe a winter morning in a small village.",
        "A car travels 90 miles in 1.5 hours. What is its average speed?",
    ):
        assert any(
            training_prompts.is_close(variant, training_prompts.content_words(measured))
            for measured in MEASURED
        )
