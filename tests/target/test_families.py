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
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.target.families import FAMILIES
from dflash_mlx.target.target import Target

GREEDY, COUPLED = Sampling(), Sampling(temp=0.9, top_p=0.95, seed=11)
IDS = mx.array([[5, 9, 2, 60, 33]])
model_of = functools.cache(tiny_model)
every_family = pytest.mark.parametrize("family", sorted(TINY))


def language_of(model):
    """The language model of a multimodal one."""
    return model.language_model if "language_model" in model else model


def test_every_family_has_a_tiny_form():
    modules = {type(language_of(model_of(f))).__module__.rpartition(".")[2] for f in TINY}
    assert modules == set(FAMILIES)


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
    language = language_of(model)
    if family in ("gemma3", "gemma3_text") and tied:
        # It is tied when its file brings no head.
        language.sanitize({})
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
    assert mx.allclose(target.head(language.model.norm(stream)), logits, rtol=1e-5, atol=1e-5)
    # mlx-lm ties the first Gemmas and never these others, whatever the config says.
    never = ("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "gpt_oss", "kimi_k25")
    tied = ({"gemma": True, "gemma2": True} | dict.fromkeys(never, False)).get(family, tied)
    assert ("lm_head" in language) is not tied


@every_family
def test_raw_rows_and_logits_are_before_the_targets_own_scale_and_cap(family):
    target = Target(model_of(family))
    language = language_of(target.model)
    table = language.model.embed_tokens.weight
    assert mx.array_equal(target.embed_raw(mx.array([3])), table[3:4])
    hidden = 100 * mx.random.normal((1, 1, 32), key=mx.random.key(0))
    weight = language.lm_head.weight if "lm_head" in language else table
    assert mx.allclose(target.head_raw(hidden), hidden @ weight.T, rtol=1e-4, atol=1e-3)


def test_gemmas_scale_their_embeddings_and_some_cap_their_logits():
    hidden = 100 * mx.random.normal((1, 1, 32), key=mx.random.key(0))
    for family, cap in {"gemma": None, "gemma2": 30, "gemma3": None, "gemma4": 30}.items():
        target = Target(model_of(family))
        table = language_of(target.model).model.embed_tokens.weight
        # Gemma 3 rounds the factor to bfloat16.
        assert mx.allclose(target.embed(mx.array([3])), table[3:4] * 32**0.5, rtol=1e-2)
        largest = mx.abs(target.head(hidden)).max().item()
        assert largest > 40 if cap is None else 29 < largest <= cap


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
    if not Target(model).family.batched:
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
