"""New drafters: defaults from the target, the published spacing of taps, mask tokens."""

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from support.tiny import FAMILIES, SIZES, tiny_model
from support.tokenizer import EOS, byte_tokenizer

from dflash_mlx.errors import UserError
from dflash_mlx.loading.pairing import check_pair
from dflash_mlx.target.target import Target
from dflash_mlx.train.design import (
    Shape,
    choose_mask_token,
    default_taps,
    design,
    new_drafter,
)

# As z-lab's and SpecForge's checkpoints have them.
PUBLISHED = {
    24: (1, 6, 11, 16, 21),
    28: (1, 7, 13, 19, 25),
    30: (1, 8, 14, 20, 27),
    36: (1, 9, 17, 25, 33),
    64: (1, 16, 31, 46, 61),
}
CAPPED = ("gemma2", "gemma4", "gemma4_text", "muse_glimmer")


@pytest.mark.parametrize("depth", PUBLISHED)
def test_published_taps(depth):
    assert default_taps(depth, 5) == PUBLISHED[depth]


@pytest.mark.parametrize("depth", range(1, 30))
@pytest.mark.parametrize("count", [1, 3, 5])
def test_taps_exist_and_ascend(depth, count):
    taps = default_taps(depth, count)
    assert len(taps) == min(count, depth) and sorted(set(taps)) == list(taps)
    assert taps[0] >= 0 and taps[-1] < depth


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_fit_every_family(family):
    target = Target(tiny_model(family, vocab_size=260))
    config = design(target, byte_tokenizer(), 4096, Shape())
    check_pair(config, target)
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)
    # Gemma 4's full layers keep to their own base.
    theta = 1e6 if "gemma4" in family else SIZES["rope_theta"]
    assert config.block_size == 16 and config.rope.theta == theta
    assert config.max_position_embeddings == 4096 and not any(config.causal)
    assert (config.final_logit_softcapping is not None) is (family in CAPPED)
    assert config.output_multiplier == (0.5 if family == "muse_glimmer" else 1.0)
    parameters = tree_flatten(new_drafter(config, target, 0).parameters())
    assert all(mx.isfinite(w).all().item() for _, w in parameters)


def test_what_is_asked_for():
    target = Target(tiny_model(vocab_size=260))
    shape = Shape(2, (0, 2), 8, 40, 24, True, True, 7)
    config = design(target, byte_tokenizer(), None, shape)
    assert (config.num_hidden_layers, config.target_layer_ids) == (2, (0, 2))
    assert (config.block_size, config.intermediate_size, config.mask_token_id) == (8, 40, 7)
    assert config.sliding_window == 24 and config.sliding == config.causal == (True, True)
    assert (config.conv_kernel_size, config.selector_top_k) == (2, 16)


def test_the_seed_makes_the_weights():
    target = Target(tiny_model(vocab_size=260))
    config = design(target, byte_tokenizer(), None, Shape())
    a, b, c = (new_drafter(config, target, seed).fc.weight for seed in (1, 1, 2))
    assert mx.array_equal(a, b) and not mx.array_equal(a, c)


def test_new_convolutions_are_the_identity():
    target = Target(tiny_model(vocab_size=260))
    drafter = new_drafter(
        design(target, byte_tokenizer(), None, Shape(dflash2=True)), target, seed=0
    )
    x = mx.random.normal((1, 8, 32))
    for convolution in (drafter.layers[0].attention_conv, drafter.layers[0].mlp_conv):
        assert mx.allclose(convolution(lambda h: 2 * h, x), 2 * x)


def test_mask_tokens():
    padded, full, small = (Target(tiny_model(vocab_size=n)) for n in (272, 262, 257))
    words = byte_tokenizer(words=["<a>", "<b>", "<c>", "<d>", "<e>"])
    assert choose_mask_token(words, padded) == 262
    # Words are not special, and the only special token ends a text.
    assert choose_mask_token(words, full) is None
    assert choose_mask_token(byte_tokenizer(), small) is None
    words._tokenizer.add_special_tokens({"additional_special_tokens": ["<b>", "<c>"]})
    assert choose_mask_token(words, full) == 259
    words._tokenizer.chat_template = "{% for m in messages %}<c>{{ m.content }}{% endfor %}"
    words.has_chat_template = True
    assert choose_mask_token(words, full) == 258
    assert EOS not in (258, 259)


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no system message') }}", "{{ missing.name }}", "{% if %}"]
)
def test_a_template_that_fails_is_a_sentence(template):
    words = byte_tokenizer(words=["<a>", "<b>"])
    words._tokenizer.chat_template = template
    words.has_chat_template = True
    target = Target(tiny_model(vocab_size=259))
    with pytest.raises(UserError, match=r"chat template cannot be applied.*Give --mask-token"):
        design(target, words, None, Shape())
    assert design(target, words, None, Shape(mask_token=7)).mask_token_id == 7


def test_a_mask_embedding_begins_as_the_mean():
    target = Target(tiny_model(vocab_size=257))
    config = design(target, byte_tokenizer(), None, Shape())
    assert config.has_mask_embedding
    drafter = new_drafter(config, target, 0)
    table = target.model.model.embed_tokens.weight
    assert mx.allclose(drafter.mask_embedding, table.mean(axis=0), atol=1e-6)
