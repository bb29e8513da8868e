"""Every supported family: the target's small face agrees with mlx-lm's own model."""

import functools

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import make_prompt_cache
from support.batch import run
from support.oracle import OracleDrafter
from support.pairs import oracle_pair, random_pair, respond, tokens_of
from support.plain import clear_case
from support.tiny import FAMILIES as TINY
from support.tiny import VOCAB, tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import UserError
from dflash_mlx.decode.sampling import Sampling
from dflash_mlx.loading import make_pair
from dflash_mlx.target.families import FAMILIES
from dflash_mlx.target.target import Target

GREEDY, COUPLED = Sampling(), Sampling(temp=0.9, top_p=0.95, seed=11)
IDS = mx.array([[5, 9, 2, 60, 33]])
model_of = functools.cache(tiny_model)
every_family = pytest.mark.parametrize("family", sorted(FAMILIES))


def test_every_family_has_a_tiny_form():
    assert set(TINY) == set(FAMILIES)


@every_family
def test_forward_equals_the_models_own(family):
    model = model_of(family)
    target = Target(model, (0, 2))
    logits, features = target.forward(IDS, target.make_cache())
    target.release()
    assert mx.array_equal(logits, model(IDS))
    assert features.shape == (1, 5, 2 * target.hidden_size)
    assert target.vocab_size == VOCAB
    assert target.dtype == mx.float32


@every_family
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_embed_and_head_are_the_models_own(family, tied):
    model = tiny_model(family, tie_word_embeddings=tied)
    if family == "gemma3_text" and tied:
        # It is tied when its file brings no head.
        model.sanitize({})
    last = len(model.layers) - 1
    target = Target(model, range(last + 1))
    inputs = []

    # What the first layer receives, seen from outside.
    class Seen(type(model.layers[0])):
        def __call__(self, x, *args, **kwargs):
            inputs.append(x)
            return super().__call__(x, *args, **kwargs)

    model.layers[0].__class__ = Seen
    logits, features = target.forward(IDS, target.make_cache())
    assert mx.array_equal(target.embed(IDS), inputs[0])
    stream = mx.split(features, last + 1, axis=-1)[last]
    assert mx.allclose(target.head(model.model.norm(stream)), logits, rtol=1e-5, atol=1e-5)
    # mlx-lm ties the first Gemmas and never gpt-oss, whatever the config says.
    tied = {"gemma": True, "gemma2": True, "gpt_oss": False}.get(family, tied)
    assert ("lm_head" in model) is not tied


def test_gemma_scales_its_embeddings_and_gemma2_caps_its_logits():
    gemma, gemma2 = Target(model_of("gemma")), Target(model_of("gemma2"))
    table = gemma.model.model.embed_tokens.weight
    assert mx.allclose(gemma.embed(mx.array([3])), table[3:4] * 32**0.5)
    hidden = 100 * mx.random.normal((1, 1, 32), key=mx.random.key(0))
    cap = gemma2.model.args.final_logit_softcapping
    assert mx.abs(gemma2.head(hidden)).max() <= cap
    assert mx.abs(gemma.head(hidden)).max() > cap


def test_raw_rows_and_logits_are_before_the_targets_own_scale_and_cap():
    gemma2 = Target(model_of("gemma2"))
    table = gemma2.model.model.embed_tokens.weight
    assert mx.array_equal(gemma2.embed_raw(mx.array([3])), table[3:4])
    hidden = 100 * mx.random.normal((1, 1, 32), key=mx.random.key(0))
    assert mx.allclose(gemma2.head_raw(hidden), hidden @ table.T, rtol=1e-4)


def test_quantized_target_embeds_and_heads_as_the_model_does():
    model = tiny_model(hidden_size=64, intermediate_size=64)
    nn.quantize(model, group_size=32, bits=4)
    assert isinstance(model.model.embed_tokens, nn.QuantizedEmbedding)
    target = Target(model, (2,))
    logits, features = target.forward(IDS, target.make_cache())
    assert (target.vocab_size, target.dtype) == (VOCAB, mx.float32)
    assert mx.allclose(target.embed(IDS), model.model.embed_tokens(IDS))
    assert mx.allclose(target.head(model.model.norm(features)), logits, rtol=1e-5, atol=1e-5)


@every_family
@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_drafting_is_lossless(family, sampling):
    model, n = model_of(family), 24
    prompt, truth = clear_case(model, 9, n + 8, sampling)
    options = {} if sampling.greedy else {"temp": 0.9, "top_p": 0.95, "seed": 11}
    with oracle_pair(model, prompt + truth, (2, 0, 7, 1, 3), 8) as pair:
        for block_size in (2, 8):
            responses = respond(pair, byte_tokenizer(), prompt, n, block_size=block_size, **options)
            assert tokens_of(responses) == truth[:n]
            assert responses[-1].tau > 1.3
    with random_pair(model, num_target_layers=None) as pair:
        assert tokens_of(respond(pair, byte_tokenizer(), prompt, n, **options)) == truth[:n]


@every_family
@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_ragged_batch_is_lossless(family, sampling):
    model, n = model_of(family), 24
    if not FAMILIES[family].batched:
        with pytest.raises(UserError, match="single sequence"):
            Target(model).forward(mx.concatenate([IDS, IDS]), make_prompt_cache(model))
        return
    cases = [clear_case(model, k, 2 * n + 40, sampling, row) for row, k in enumerate((3, 70, 20))]
    prompts, truth = zip(*cases, strict=True)
    target = Target(model, (0, 2))
    # Row 1 is handed another row's truth, so the rows accept differently.
    full = [prompts[0] + truth[0], prompts[1] + truth[0], prompts[2] + truth[2]]
    drafter = OracleDrafter(full, lambda r: r * 3 % 5, VOCAB)
    emitted, accepted, _ = run(target, drafter, prompts, n, 5, sampling)
    target.release()
    assert [row[:n] for row in emitted] == [list(t[:n]) for t in truth]
    assert any(len(set(row)) > 1 for row in accepted)


UNSUPPORTED = {
    "qwen3_next": (
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "shared_expert_intermediate_size": 16,
            "mlp_only_layers": [],
            "moe_intermediate_size": 16,
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_conv_kernel_dim": 4,
            "partial_rotary_factor": 0.5,
            "full_attention_interval": 2,
        },
        "ArraysCache",
    ),
    # All its caches are KVCache, and nobody has looked at the rest of it.
    "olmo2": ({}, "not among those"),
}


@pytest.mark.parametrize("family", UNSUPPORTED)
def test_unsupported_family_is_refused_by_its_cache_kind(family):
    changes, message = UNSUPPORTED[family]
    model = tiny_model(family, **changes)
    classes = [type(layer) for layer in model.layers]
    for attempt in (lambda: Target(model, (0,)), lambda: make_pair(model)):
        with pytest.raises(UserError) as refused:
            attempt()
        assert repr(family) in str(refused.value)
        assert message in str(refused.value)
        assert "qwen3_moe" in str(refused.value)
    assert [type(layer) for layer in model.layers] == classes
