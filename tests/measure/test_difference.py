"""Where two texts part, and what the target's own logits say there."""

import mlx.core as mx
import pytest
from support.pairs import oracle_pair
from support.plain import plain, plain_greedy, random_prompt
from support.tiny import VOCAB, tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.measure.arms import mlx_lm_arms, our_arms
from dflash_mlx.measure.difference import (
    Difference,
    Pass,
    chosen_by,
    explain,
    logits_after,
)
from dflash_mlx.measure.lossless import Check, emit, lossless_report
from dflash_mlx.target.target import Target

PROMPT = random_prompt(9, VOCAB)


def whole(model, tokens):
    return model(mx.array([tokens]))[0, -1]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temp=0.7, seed=5)])
def test_best_token_at_every_index_is_plains(sampling):
    """So that the logits, the noise and its position are those that plain decoding used."""
    model = tiny_model()
    text = plain(model, PROMPT, 12, sampling)
    for index, token in enumerate(text):
        logits = logits_after(Target(model), PROMPT, text[:index])
        best = mx.argmax(chosen_by(sampling, logits, len(PROMPT) + index))
        assert best.item() == token


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize(("begin", "rows"), [(0, 8), (3, 4), (6, 8), (6, 2)])
def test_the_same_logits_in_a_block(family, begin, rows):
    model = tiny_model(family)
    text = plain_greedy(model, PROMPT, 6 if begin < 6 else 7)
    shared = text[: min(begin + 3, begin + rows - 1, 6)]
    by_row = logits_after(Target(model), PROMPT, shared)
    in_block = logits_after(Target(model), PROMPT, shared, Pass(begin, rows))
    assert mx.abs(by_row - whole(model, PROMPT + shared)).max().item() < 1e-3
    assert mx.abs(by_row - in_block).max().item() < 1e-3


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temp=0.5, seed=2)])
def test_gap_and_distance_of_a_difference(sampling):
    model = tiny_model()
    text = plain(model, PROMPT, 8, sampling)
    scores = chosen_by(sampling, whole(model, PROMPT + text[:5]), len(PROMPT) + 5)
    *_, third, second, best = mx.argsort(scores).tolist()
    assert best == text[5]
    other = [*text[:5], third, 0]
    found = explain(Target(model), sampling, PROMPT, text, other, 5, Pass(4, 3))
    assert (found.index, found.expected, found.found) == (5, best, third)
    assert found.gap == pytest.approx((scores[best] - scores[second]).item(), abs=1e-3)
    assert found.behind == pytest.approx((scores[best] - scores[third]).item(), abs=1e-3)
    assert found.block_size == 3 and found.preferred == best and found.moved < 1e-3
    assert found.dtype == "float32" and 0 < found.tolerance < 1e-3 < found.gap
    assert not found.near_tie


def test_tolerance_follows_the_dtype():
    tolerances = {}
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        model = tiny_model()
        model.set_dtype(dtype)
        found = explain(Target(model), Sampling(), PROMPT, [1], [2], 0)
        logits = whole(model, PROMPT)
        largest = mx.abs(logits).max().item()
        tolerances[dtype] = found.tolerance / largest
        assert found.block_size is None and found.moved is None
    assert tolerances[mx.float16] == pytest.approx(4 * 2**-10, rel=0.02)
    assert tolerances[mx.bfloat16] == pytest.approx(4 * 2**-7, rel=0.1)
    assert tolerances[mx.float32] == pytest.approx(64 * 2**-23, rel=0.01)


def test_what_counts_as_a_near_tie():
    near = {"behind": 0.1, "tolerance": 0.2}
    far = {"behind": 0.3, "tolerance": 0.2}
    assert Difference(0, 1, 2, **near).near_tie
    assert not Difference(0, 1, 2, **far).near_tie
    assert not Difference(0, 1, 2, **far, preferred=1).near_tie
    assert Difference(0, 1, 2, **far, preferred=2).near_tie
    # A text that ends early is never explained by rounding.
    for texts, tokens in (([1, 2], [1]), (2, None)), (([1], [1, 2]), (None, 2)):
        found = explain(Target(tiny_model()), Sampling(), PROMPT, *texts, 1)
        assert (found.expected, found.found) == tokens and not found.near_tie
        end = "this one has ended" if found.found is None else "this one goes on"
        assert end in lossless_report([Check("a", 1, None, found)], str)


def test_blocks_of_emitted_tokens():
    model, tokenizer = tiny_model(), byte_tokenizer()
    truth = PROMPT + plain_greedy(model, PROMPT, 30)
    with oracle_pair(model, truth, counts=(2, 0, 3)) as pair:
        plain_arm, block_arm = our_arms(pair, tokenizer, Sampling(), [4])
        (theirs,) = mlx_lm_arms(pair.model, tokenizer, Sampling())
        found = emit(block_arm, PROMPT, 10)
        assert [block.begin for block in found.passes] == [0, 0, 0, 3, 4, 4, 4, 4, 8, 8]
        assert {block.block_size for block in found.passes} == {4} and found.tau > 1
        blocks = emit(plain_arm, PROMPT, 3).passes
        assert [(block.begin, block.block_size) for block in blocks] == [(0, 1), (1, 1), (2, 1)]
        text = emit(theirs, PROMPT, 3)
        assert text.passes == [None] * 3 and text.tau is None
