"""Parts of every kind of drafter: what is embedded, scaled, capped, quantized and drafted."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from support.chain import chain_model
from support.pairs import random_pair, respond, tiny_drafter, tokens_of
from support.tiny import VOCAB, shared_model, tiny_model
from support.tokenizer import byte_tokenizer
from support.variants import (
    DFLASH2,
    OWN,
    PASSES,
    REDUCED,
    Spied,
    context_of,
    draft_of,
    drafter_of,
    quantized,
)

from dflash_mlx.loading.loader import make_pair


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("drafters", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize("targets", [mx.bfloat16, mx.float16])
def test_drafts_of_16_bits_are_near_those_of_32(targets, drafters, bits):
    drafts = []
    for target_dtype, dtype in ((mx.float32, mx.float32), (targets, drafters)):
        target, drafter = tiny_model(), drafter_of(intermediate_size=64)
        target.set_dtype(target_dtype)
        drafter.set_dtype(dtype)
        drafter = quantized(drafter, bits, 32) if bits else drafter
        with make_pair(target, drafter) as pair:
            # Hidden states of real targets are as large, and their sums exceed float16.
            drafts.append(draft_of(pair, scale=1e4).logits.astype(mx.float32))
    exact, near = drafts
    assert mx.abs(near - exact).max() < 0.15 * mx.abs(exact).max()
    assert (mx.argmax(near, axis=-1) == mx.argmax(exact, axis=-1)).sum() >= 5


@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_every_quantized_part_is_near_its_dense_self(group_size):
    sizes = {
        "hidden_size": 128,
        "intermediate_size": 128,
        "head_dim": 32,
        "conv_kernel_size": 2,
        "conv_group_size": 2,
        "selector_rank": 128,
        "selector_top_k": 4,
        "has_hidden_dim_adapter": True,
        "target_hidden_size": 128,
    }
    target = tiny_model(hidden_size=128)
    changes = OWN | sizes
    with make_pair(target, drafter_of(**changes)) as pair:
        dense = draft_of(pair)
    drafter = quantized(drafter_of(**changes), 8, group_size)
    plain = {
        name
        for name, m in drafter.named_modules()
        if isinstance(m, (nn.Linear, nn.Embedding)) and "scales" not in m
    }
    assert not plain, "every linear layer and table is quantized"
    with make_pair(target, drafter) as pair:
        packed = draft_of(pair)
    # The candidates of the first row are nearly always the same, and their scores are near.
    scores = [scores_of(walk)[0, 0] for walk in (dense, packed)]
    both = mx.isfinite(scores[0]) & mx.isfinite(scores[1])
    assert both.sum() >= 3
    gap = mx.where(both, mx.abs(scores[0] - scores[1]), 0).max()
    spread = mx.where(both, mx.abs(scores[0]), 0).max()
    assert gap < 0.1 * spread


def scores_of(proposal):
    return proposal.follow(mx.argmax(proposal.logits, axis=-1), proposal.logits)[1]


def spied_draft(target, **changes):
    with make_pair(target, drafter_of(**changes)) as pair:
        spy = Spied.of(pair)
        logits = draft_of(pair).logits
        return spy, spy.blocks[0][0], spy.hidden[0], logits


@pytest.mark.parametrize("family", ["gemma", "llama"])
def test_embeddings_are_those_of_the_policy(family):
    target = tiny_model(family)
    table = target.model.embed_tokens.weight
    own = 32**0.5 if family == "gemma" else 1.0
    policies = [
        ({}, own, own),
        ({"embed_scale": "raw"}, 1.0, 1.0),
        ({"embed_scale": "raw", "input_embedding_scale": 1.5}, 1.5, 1.5),
        ({"input_embedding_scale": 0.5}, own / 2, own / 2),
    ]
    for changes, anchor, mask in policies:
        _, block, _, _ = spied_draft(target, mask_token_id=7, **changes)
        assert mx.allclose(block[0], table[4] * anchor)
        assert mx.allclose(block[1:], mx.broadcast_to(table[7] * mask, (7, 32)))
    _, block, _, _ = spied_draft(target, has_mask_embedding=True, input_embedding_scale=9.0)
    assert mx.allclose(block[0], table[4] * own * 9)
    assert (block[1:] == 0).all(), "a mask embedding is not scaled"


def test_own_tables_are_used():
    spy, block, hidden, logits = spied_draft(shared_model(), mask_token_id=7, **OWN)
    assert mx.array_equal(block[0], spy.embed_tokens.weight[4])
    assert mx.array_equal(block[1], spy.embed_tokens.weight[7])
    assert mx.allclose(logits, hidden[:, 1:] @ spy.lm_head.weight.T, atol=1e-4)


@pytest.mark.parametrize("cap", [None, 3.0])
def test_multiplier_comes_before_the_softcap_and_the_targets_own_is_left_out(cap):
    # Gemma 2 caps its own logits, far lower than the drafter's are here.
    target = tiny_model("gemma2", final_logit_softcapping=0.01)
    changes = {"output_multiplier": 0.5, "final_logit_softcapping": cap}
    _, _, hidden, logits = spied_draft(target, **changes)
    expected = np.array(hidden[:, 1:] @ target.model.embed_tokens.weight.T) * 0.5
    if cap is not None:
        expected = cap * np.tanh(expected / cap)
    assert np.abs(expected).max() > 1
    assert np.allclose(np.array(logits), expected, atol=1e-4)


@pytest.mark.parametrize("cap", [None, 3.0])
def test_reduced_vocabulary_is_drafted_at_the_targets_ids(cap):
    spy, _, hidden, logits = spied_draft(shared_model(), final_logit_softcapping=cap, **REDUCED)
    ids = spy.d2t.tolist()
    assert ids[:3] == [1, 3, 5]
    expected = hidden[:, 1:] @ spy.lm_head.weight.T
    if cap is not None:
        expected = mx.tanh(expected / cap) * cap
    assert mx.allclose(logits[..., spy.d2t], expected, atol=1e-4)
    others = mx.array([t for t in range(VOCAB) if t not in ids])
    assert (logits[..., others] == -mx.inf).all()


def test_reduced_vocabulary_in_any_order():
    drafter = drafter_of(**REDUCED)
    drafter.d2t = mx.array(np.random.RandomState(0).permutation(VOCAB)[:40].astype(np.int32))
    with make_pair(shared_model(), drafter) as pair:
        proposal = draft_of(pair)
        tokens = mx.argmax(proposal.logits, axis=-1)
        assert set(tokens.flatten().tolist()) <= set(drafter.d2t.tolist())
        # The tokens are those that the head's largest columns stand for.
        spy = Spied.of(pair)
        draft_of(pair)
        columns = mx.argmax(spy.hidden[0][:, 1:] @ drafter.lm_head.weight.T, axis=-1)
        assert mx.array_equal(drafter.d2t[columns], tokens)


def test_unknown_tokens_of_a_capped_selector_are_no_candidates():
    changes = DFLASH2 | {"vocab_size": 6, "final_logit_softcapping": 1.0, "selector_top_k": 6}
    with make_pair(shared_model(), drafter_of(**changes)) as pair:
        walk = draft_of(pair)
        assert set(walk.ids.flatten().tolist()) == set(range(6))
        walk = walk.penalized(lambda logits: logits + 10)
        assert set(walk.ids.flatten().tolist()) == set(range(6))


class Positional:
    """A drafter whose every row knows one thing: the token at its own position.

    Args:
        drafter: does the rest.
        text: the token at each position.
        ahead: how many positions further the row looks.
    """

    def __init__(self, drafter, text, ahead):
        self._drafter, self._text, self._ahead = drafter, mx.array(text), ahead
        self.rows = []

    def __getattr__(self, name):
        return getattr(self._drafter, name)

    def __call__(self, x, context):
        self.rows.append(x.shape[1])
        at = context[0].offset[:, None] + mx.arange(x.shape[1]) + self._ahead
        token = self._text[mx.minimum(at, self._text.size - 1)]
        # The chain's head moves every token to its successor.
        return mx.eye(VOCAB, x.shape[-1])[token]


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_slots_line_up(declared, trained):
    # A text where every token has one successor, and a drafter whose row at position p says what
    # comes at p (trained False) or at p + 1: only under the right name is everything accepted.
    chain = list(range(5, 95))
    target = chain_model(chain, VOCAB)
    width = target.args.hidden_size
    text = [chain[i % len(chain)] for i in range(200)]
    drafter = tiny_drafter(
        sample_from_anchor=declared,
        hidden_size=width,
        target_hidden_size=width,
        target_layer_ids=(0,),
        num_target_layers=1,
    )
    with make_pair(target, drafter) as pair:
        # The token whose successor the head says is one back.
        positional = Positional(drafter, text, 0 if trained else -1)
        pair.drafter._drafter = positional
        prompt, n = text[:9], 60
        responses = respond(pair, byte_tokenizer(), prompt, n)
        assert tokens_of(responses) == text[9 : 9 + n]
        assert set(positional.rows) == {7 if declared else 8}
        accepted = sum(r.from_draft for r in responses)
        assert accepted == (n - n // 8 if declared == trained else 0)


def test_last_hidden_state_is_the_feature():
    target = shared_model()
    ids = mx.array([[3, 1, 4, 1, 5]])
    with make_pair(target, drafter_of(target_layer_ids=())) as pair:
        _, features = pair.target.forward(ids, pair.target.make_cache())
        assert mx.allclose(features, target.model(ids), atol=1e-5)
        assert "fc" not in pair.drafter._drafter
    assert type(target.model.norm) is nn.RMSNorm


def test_rows_of_the_first_and_of_the_second_pass():
    with random_pair(shared_model(), seed=1) as pair:
        once, short = (draft_of(pair, block_size=size).logits for size in (8, 3))
        leading = mx.argmax(once, axis=-1)[0, :2].tolist()
        again, _ = pair.drafter._pass(mx.array([[4, *leading]]), 8, context_of(pair))
    with random_pair(shared_model(), seed=1, **PASSES) as pair:
        twice = draft_of(pair).logits
        # A block no longer than the prefix is drafted once.
        assert mx.array_equal(draft_of(pair, block_size=3).logits, short)
    assert mx.allclose(twice[:, :2], once[:, :2], atol=1e-5)
    assert mx.allclose(twice[:, 2:], again[:, 2:], atol=1e-5)
    assert not mx.allclose(twice[:, 2:], once[:, 2:], atol=1e-2)
