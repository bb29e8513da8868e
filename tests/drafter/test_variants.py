"""Whole pairs of every kind of drafter: the text stays the target's."""

import functools

import mlx.core as mx
import mlx.nn as nn
import pytest
from support.batch import run
from support.pairs import respond, tokens_of
from support.plain import clear_case
from support.tiny import VOCAB, shared_model, tiny_model
from support.tokenizer import byte_tokenizer
from support.variants import (
    DFLASH2,
    OWN,
    PASSES,
    REDUCED,
    SLIDING,
    Spied,
    context_of,
    draft_of,
    drafter_of,
    quantized,
)

from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.loading.loader import make_pair

VARIANTS = {
    "plain": {},
    "causal": {"causal_layers": (True, True)},
    "sliding": {"layer_types": SLIDING, "sliding_window": 6},
    "sliding by the anchor, causal": {
        "layer_types": SLIDING,
        "sliding_window": 6,
        "window_rule": "anchor",
        "causal_layers": (True, True),
    },
    "last hidden state": {"target_layer_ids": ()},
    "last layer": {"target_layer_ids": (0, 1, 2)},
    "scaled and capped": {
        "embed_scale": "raw",
        "input_embedding_scale": 2.0,
        "output_multiplier": 0.3,
        "final_logit_softcapping": 4.0,
    },
    "own tables": OWN,
    "reduced vocabulary": REDUCED,
    "adapter": OWN | REDUCED | {"hidden_size": 64, "has_hidden_dim_adapter": True},
    "own tables of a smaller vocabulary": OWN | {"vocab_size": 90},
    "sample from anchor": {"sample_from_anchor": True},
    "two passes": PASSES,
    "two passes of DFlash 2": PASSES | DFLASH2,
    "selector alone": {"selector_rank": 32, "selector_top_k": 4},
    "DFlash 2": DFLASH2 | {"layer_types": SLIDING, "sliding_window": 6},
    "all at once": DFLASH2
    | OWN
    | {
        "vocab_size": 90,
        "sample_from_anchor": True,
        "has_hidden_dim_adapter": True,
        "hidden_size": 64,
        "final_logit_softcapping": 4.0,
        "has_mask_embedding": True,
    },
}
each_variant = pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
SAMPLINGS = {
    "greedy": {},
    "coupled": {"temp": 0.9, "top_p": 0.95, "seed": 11},
}
N = 40


@functools.cache
def case(sampling: str):
    return clear_case(shared_model(), 20, N, Sampling(**SAMPLINGS[sampling]))


@each_variant
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_text_is_the_targets(changes, sampling):
    prompt, truth = case(sampling)
    with make_pair(shared_model(), drafter_of(**changes)) as pair:
        for block_size in (None, 2, 5):
            options = SAMPLINGS[sampling] | {"block_size": block_size}
            assert tokens_of(respond(pair, byte_tokenizer(), prompt, N, **options)) == truth


@each_variant
@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_text_is_the_targets(changes, bits):
    prompt, truth = case("greedy")
    drafter = quantized(drafter_of(**{"intermediate_size": 64} | changes), bits, 32)
    assert isinstance(drafter.layers[0].self_attn.k_proj, nn.QuantizedLinear)
    with make_pair(shared_model(), drafter) as pair:
        assert tokens_of(respond(pair, byte_tokenizer(), prompt, N)) == truth
        proposal = draft_of(pair)
        assert proposal.vocab == VOCAB
        assert not mx.isnan(proposal.logits).any()


@each_variant
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_ragged_batch(changes, sampling):
    sampling = Sampling(**SAMPLINGS[sampling])
    cases = [
        clear_case(shared_model(), k, N, sampling, row, row) for row, k in enumerate((3, 70, 20))
    ]
    prompts, truth = zip(*cases, strict=True)
    with make_pair(shared_model(), drafter_of(**changes)) as pair:
        emitted, _, _ = run(pair.target, pair.drafter, prompts, N, 8, sampling)
        assert [row[:N] for row in emitted] == list(truth)


@each_variant
def test_rejection_runs(changes):
    options = {"temp": 0.9, "top_k": 20, "seed": 1, "acceptance": "rejection"}
    with make_pair(shared_model(), drafter_of(**changes)) as pair:
        assert len(tokens_of(respond(pair, byte_tokenizer(), [1, 2, 3], N, **options))) == N


@each_variant
def test_half_precision_stays_so(changes):
    target, drafter = tiny_model(), drafter_of(**changes)
    target.set_dtype(mx.bfloat16)
    drafter.set_dtype(mx.bfloat16)
    with make_pair(target, drafter) as pair:
        spy = Spied.of(pair)
        context, proposal = context_of(pair), draft_of(pair)
        assert spy.hidden[0].dtype == mx.bfloat16
        assert all(a.dtype == mx.bfloat16 for cache in context for a in cache.arrays())
        assert mx.isfinite(mx.max(proposal.logits, axis=-1)).all()
        assert len(tokens_of(respond(pair, byte_tokenizer(), [1, 2, 3], 20))) == 20
