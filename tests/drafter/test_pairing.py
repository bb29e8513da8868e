"""A drafter and a target that do not fit are told so at once; those that fit share tables."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.llama import TransformerBlock
from support.pairs import respond, tiny_config, tiny_drafter, tokens_of
from support.plain import clear_case
from support.tiny import VOCAB, shared_model, tiny_model
from support.tokenizer import byte_tokenizer
from support.variants import Spied, draft_of

from dflash_mlx import UserError
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.loading.loader import make_pair
from dflash_mlx.loading.pairing import check_pair
from dflash_mlx.target.target import Target

MISFITS = {
    "hidden size": ({"hidden_size": 64, "target_hidden_size": 64}, ("64", "32")),
    "drafter narrower than the tables it borrows": (
        {"hidden_size": 16},
        ("16", "32", "no embed_tokens and no lm_head"),
    ),
    "drafter wider than the table it borrows": (
        {"hidden_size": 64, "has_hidden_dim_adapter": True, "has_lm_head": True},
        ("64", "32", "no embed_tokens of"),
    ),
    "drafter wider than the head it borrows": (
        {"hidden_size": 64, "has_embed_tokens": True, "embed_scale": "raw"},
        ("64", "32", "no lm_head of"),
    ),
    "adapter from another width": (
        {"target_hidden_size": 48, "has_hidden_dim_adapter": True},
        ("taps", "48", "32"),
    ),
    "last hidden state of another width": (
        {"hidden_size": 48, "target_hidden_size": 48, "target_layer_ids": ()},
        ("features", "48", "32"),
    ),
    "own tables of more tokens": (
        {
            "vocab_size": 128,
            "has_embed_tokens": True,
            "embed_scale": "raw",
            "has_lm_head": True,
        },
        ("128", "97"),
    ),
    "depth": ({"num_target_layers": 36}, ("36", "3")),
    "taps": ({"target_layer_ids": (0, 2, 5), "num_target_layers": None}, ("[0, 2, 5]", "3")),
    "vocabulary": ({"vocab_size": 128}, ("128", "97")),
    "mask token": ({"vocab_size": 128, "mask_token_id": 120}, ("128", "97")),
}


@pytest.mark.parametrize(("changes", "values"), MISFITS.values(), ids=MISFITS)
def test_misfit_names_both_values_and_leaves_no_taps(changes, values):
    drafter = tiny_drafter(**changes)
    weights = sorted(k for layer in drafter.layers for k in layer.self_attn)
    with pytest.raises(UserError) as refused:
        make_pair(shared_model(), drafter)
    assert all(value in str(refused.value) for value in values)
    assert str(refused.value).count(".") <= 2, "one or two sentences"
    assert all(type(layer) is TransformerBlock for layer in shared_model().layers)
    # The drafter is as it was too, so it can be paired with its own target.
    assert sorted(k for layer in drafter.layers for k in layer.self_attn) == weights


def test_mask_token_without_a_row_is_refused():
    config = tiny_config(mask_token_id=VOCAB + 3, has_mask_embedding=True)
    check_pair(config, Target(shared_model()))
    # A config can only come to this through a target that is smaller than its own vocabulary.
    object.__setattr__(config, "has_mask_embedding", False)
    with pytest.raises(UserError, match=f"mask token {VOCAB + 3}.*{VOCAB} rows"):
        check_pair(config, Target(shared_model()))


def test_mask_embedding_of_the_checkpoint_is_used():
    drafter = tiny_drafter(has_mask_embedding=True, mask_token_id=VOCAB + 3)
    drafter.mask_embedding = mx.full((32,), 2.5)
    with make_pair(shared_model(), drafter) as pair:
        assert mx.array_equal(pair.drafter._mask_embedding, mx.full((32,), 2.5))
    with make_pair(shared_model(), tiny_drafter(mask_token_id=7)) as pair:
        assert mx.array_equal(
            pair.drafter._mask_embedding, shared_model().model.embed_tokens.weight[7]
        )


def test_fitting_pairs():
    drafter = tiny_drafter(num_target_layers=None, target_layer_ids=(0, 1, 2))
    with make_pair(shared_model(), drafter) as pair:
        assert pair.drafter.block_size == 8
        assert pair.context_length is None
    with make_pair(shared_model(), tiny_drafter(), context_length=77) as pair:
        assert pair.context_length == 77


TARGETS = {
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
}


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("changes", TARGETS.values(), ids=TARGETS)
def test_drafter_borrows_the_targets_table_and_head(changes, quantized):
    target = tiny_model(intermediate_size=64, **changes)
    if quantized:
        nn.quantize(target, group_size=32, bits=8)
    prompt, truth = clear_case(target, 9, 20, Sampling())
    with make_pair(target, tiny_drafter()) as pair:
        assert "embed_tokens" not in pair.drafter._drafter
        spy = Spied.of(pair)
        logits = draft_of(pair).logits
        assert mx.array_equal(spy.blocks[0][:, 0], target.model.embed_tokens(mx.array([4])))
        head = target.lm_head if "lm_head" in target else target.model.embed_tokens.as_linear
        assert mx.allclose(logits, head(spy.hidden[0][:, 1:]), rtol=1e-5, atol=1e-5)
        assert tokens_of(respond(pair, byte_tokenizer(), prompt, 20)) == truth


@pytest.mark.parametrize("sampled", [False, True])
def test_padding_of_the_targets_table_is_never_drafted(sampled):
    target = tiny_model()
    # The drafter's head prefers the padded rows by far: they are large.
    target.model.embed_tokens.weight[90:] *= 100
    with make_pair(target, tiny_drafter(vocab_size=90)) as pair:
        logits = draft_of(pair).logits
        assert logits.shape[-1] == VOCAB
        assert mx.all(logits[..., 90:] == -mx.inf)
        assert mx.isfinite(logits[..., :90]).all()
        drafted = []
        chosen = pair.drafter.draft
        pair.drafter.draft = lambda *args: drafted.append(chosen(*args)) or drafted[-1]
        options = {"temp": 1.5, "seed": 1, "acceptance": "rejection"} if sampled else {}
        responses = respond(pair, byte_tokenizer(), [1, 2, 3], 20, **options)
        # The target may emit such a token all the same, but no draft of it was accepted.
        assert any(r.token >= 90 for r in responses)
        assert not any(r.from_draft and r.token >= 90 for r in responses)
        assert all(mx.all(mx.argmax(x.logits, axis=-1) < 90) for x in drafted)


def test_half_precision_drafter_follows_a_float32_target():
    drafter = tiny_drafter()
    drafter.set_dtype(mx.bfloat16)
    with make_pair(shared_model(), drafter) as pair:
        assert draft_of(pair).logits.dtype == mx.float32
        assert drafter.dtype == mx.float32
