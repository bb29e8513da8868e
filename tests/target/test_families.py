"""Every supported family: the target's small face agrees with mlx-lm's own model."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import make_prompt_cache
from support.lossless import COUPLED, GREEDY
from support.outside import OUTSIDE
from support.pairs import oracle_pair, random_pair, respond, tokens_of
from support.plain import clear_case
from support.tiny import FAMILIES as TINY
from support.tiny import VOCAB, language_of, shared_model, tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import UserError
from dflash_mlx.target.families import FAMILIES
from dflash_mlx.target.target import Target

IDS = mx.array([[5, 9, 2, 60, 33]])
every_family = pytest.mark.parametrize("family", sorted(TINY))


def test_every_family_has_a_tiny_form():
    found = {type(language_of(shared_model(f))).__module__.rpartition(".")[2] for f in TINY}
    assert found == set(FAMILIES)


@every_family
def test_forward_equals_the_models_own(family):
    model = shared_model(family)
    target = Target(model, (0, 2))
    logits, features = target.forward(IDS, target.make_cache())
    target.release()
    assert mx.array_equal(logits, model(IDS))
    assert features.shape == (1, 5, 2 * target.hidden_size)
    assert (target.vocab_size, target.hidden_size, target.dtype) == (VOCAB, 32, mx.float32)


@pytest.mark.parametrize(
    ("family", "tied"),
    [*((f, tied) for f in sorted(TINY) for tied in (True, False)), *((f, None) for f in OUTSIDE)],
)
def test_embed_and_head_are_the_models_own(family, tied):
    changes = OUTSIDE.get(family, {}) if tied is None else {"tie_word_embeddings": tied}
    model = tiny_model(family, **changes)
    language = language_of(model)
    if family in ("gemma3", "gemma3_text") and tied:
        # It is tied when its file brings no head.
        language.sanitize({})
    last = len(model.layers) - 1
    target = Target(model, (last + 1,))
    inputs = []

    # What the first layer receives, seen from outside.
    class Seen(type(target.layers[0])):
        def __call__(self, x, *args, **kwargs):
            inputs.append(x)
            return super().__call__(x, *args, **kwargs)

    target.layers[0].__class__ = Seen
    logits, normed = target.forward(IDS, target.make_cache())
    assert mx.allclose(target.embed(IDS), inputs[0], rtol=1e-5, atol=1e-5)
    assert mx.allclose(target.head(normed), logits, rtol=1e-5, atol=1e-5)
    assert (target.hidden_size, target.vocab_size) == (32, VOCAB)
    if tied is not None:
        # mlx-lm ties the first Gemmas and never these others, whatever the config says.
        never = ("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "gpt_oss", "kimi_k25")
        tied = ({"gemma": True, "gemma2": True} | dict.fromkeys(never, False)).get(family, tied)
        assert ("lm_head" in language) is not tied


@every_family
def test_raw_embeddings_and_logits_are_before_the_targets_own_scale_and_cap(family):
    target = Target(shared_model(family))
    language = language_of(target.model)
    table = language.model.embed_tokens.weight
    assert mx.array_equal(target.embedding(mx.array([3])), table[3:4])
    hidden = 100 * mx.random.normal((1, 1, 32), key=mx.random.key(0))
    weight = language.lm_head.weight if "lm_head" in language else table
    assert mx.allclose(target.head_raw(hidden), hidden @ weight.T, rtol=1e-4, atol=1e-3)


def test_gemmas_scale_their_embeddings_and_some_cap_their_logits():
    hidden = 100 * mx.random.normal((1, 1, 32), key=mx.random.key(0))
    for family, cap in {"gemma": None, "gemma2": 30, "gemma3": None, "gemma4": 30}.items():
        target = Target(shared_model(family))
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
    assert (target.vocab_size, target.hidden_size, target.dtype) == (VOCAB, 64, mx.float32)
    assert mx.allclose(target.embed(IDS), model.model.embed_tokens(IDS))
    assert mx.allclose(target.head(model.model.norm(features)), logits, rtol=1e-5, atol=1e-5)


@every_family
@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_whole_generations_are_lossless(family, sampling):
    model, n = shared_model(family), 24
    prompt, truth = clear_case(model, 9, n, sampling)
    options = {} if sampling.greedy else {"temp": 0.9, "top_p": 0.95, "seed": 11}
    with oracle_pair(model, prompt + truth, (2, 0, 7, 1, 3), 8) as pair:
        responses = respond(pair, byte_tokenizer(), prompt, n, **options)
        assert tokens_of(responses) == truth
        assert responses[-1].tau > 1.3
    with random_pair(model, num_target_layers=None) as pair:
        assert tokens_of(respond(pair, byte_tokenizer(), prompt, n, **options)) == truth


@every_family
def test_features_and_logits_of_a_whole_text_are_those_of_a_forward(family):
    model = shared_model(family)
    target = Target(model, (0, len(model.layers) - 1))
    ids = mx.random.randint(0, 97, (1, 12), key=mx.random.key(0))
    logits, expected = target.forward(ids, target.make_cache())
    hidden, features = target.encode(ids)
    target.release()
    assert mx.allclose(features, expected, rtol=1e-3, atol=1e-3)
    assert mx.allclose(target.head(hidden), logits, rtol=1e-3, atol=1e-3)


def test_a_family_without_a_mask_a_batch_row_takes_one_sequence():
    model = shared_model("gemma2")
    with pytest.raises(UserError, match="single sequence"):
        Target(model).forward(mx.concatenate([IDS, IDS]), make_prompt_cache(model))
