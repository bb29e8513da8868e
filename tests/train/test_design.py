"""New drafters: defaults from the target, the published spacing of taps, mask tokens."""

from dataclasses import make_dataclass
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from support.tiny import FAMILIES, SIZES, tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx.errors import UserError
from dflash_mlx.loading.pairing import check_pair
from dflash_mlx.target.target import Target
from dflash_mlx.train.design import choose_mask_token, default_taps, design, new_drafter
from dflash_mlx.train.recipe import Recipe

# As z-lab's and SpecForge's checkpoints have them.
PUBLISHED = {
    24: (1, 6, 11, 16, 21),
    28: (1, 7, 13, 19, 25),
    30: (1, 8, 14, 20, 27),
    36: (1, 9, 17, 25, 33),
    64: (1, 16, 31, 46, 61),
}
CAPPED = ("gemma2", "gemma4", "gemma4_text", "muse_glimmer")


def target_of(vocab_size=260, family="llama"):
    return Target(tiny_model(family, vocab_size=vocab_size))


def designed(target, tokenizer=None, context_length=None, **options):
    recipe = Recipe(output=Path(), **options)
    return design(target, tokenizer or byte_tokenizer(), context_length, recipe)


@pytest.mark.parametrize("depth", range(1, 65))
def test_taps_exist_ascend_and_are_the_published_ones(depth):
    for count in (1, 3, 5):
        taps = default_taps(depth, count)
        assert len(taps) == min(count, depth) and sorted(set(taps)) == list(taps)
        assert taps[0] >= 0 and taps[-1] < depth
    assert taps == PUBLISHED.get(depth, taps)


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_fit_every_family(family):
    target = target_of(family=family)
    config = designed(target, context_length=4096)
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
    sizes = {"layers": 2, "taps": (0, 2), "block_size": 8, "intermediate_size": 40, "window": 24}
    config = designed(target_of(), causal=True, dflash2=True, mask_token=7, **sizes)
    assert (config.num_hidden_layers, config.target_layer_ids) == (2, (0, 2))
    assert (config.block_size, config.intermediate_size, config.mask_token_id) == (8, 40, 7)
    assert config.sliding_window == 24 and config.sliding == config.causal == (True, True)
    assert (config.conv_kernel_size, config.selector_top_k) == (2, 16)


def test_a_target_that_does_not_say_its_sizes():
    silent = SimpleNamespace(args=make_dataclass("Args", [])(), num_layers=3)
    with pytest.raises(UserError, match=r"num_attention_heads.*--init-from"):
        designed(silent, mask_token=7)


def test_the_seed_makes_the_weights():
    target = target_of()
    config = designed(target)
    a, b, c = (new_drafter(config, target, seed).fc.weight for seed in (1, 1, 2))
    assert mx.array_equal(a, b) and not mx.array_equal(a, c)


def test_new_convolutions_are_the_identity():
    target = target_of()
    layer = new_drafter(designed(target, dflash2=True), target, seed=0).layers[0]
    x = mx.random.normal((1, 8, 32))
    for convolution in (layer.attention_conv, layer.mlp_conv):
        assert mx.allclose(convolution(lambda h: 2 * h, x), 2 * x)


def test_mask_tokens():
    padded, full, small = map(target_of, (272, 262, 257))
    words = ["<a>", "<b>", "<c>", "<d>", "<e>"]
    assert choose_mask_token(byte_tokenizer(words=words), padded) == 262
    # Words are not special, and the only special token ends a text.
    assert choose_mask_token(byte_tokenizer(words=words), full) is None
    assert choose_mask_token(byte_tokenizer(), small) is None
    for template, expected in ((None, 259), ("<c>{{ messages[0].content }}", 258)):
        tokenizer = byte_tokenizer(words=words, template=template)
        tokenizer._tokenizer.add_special_tokens({"additional_special_tokens": ["<b>", "<c>"]})
        assert choose_mask_token(tokenizer, full) == expected


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no system message') }}", "{{ missing.name }}", "{% if %}"]
)
def test_a_template_that_fails_is_a_sentence(template):
    words, target = byte_tokenizer(words=["<a>", "<b>"], template=template), target_of(259)
    with pytest.raises(UserError, match=r"chat template cannot be applied.*Give --mask-token"):
        designed(target, words)
    assert designed(target, words, mask_token=7).mask_token_id == 7


def test_a_mask_embedding_begins_as_the_mean():
    target = target_of(257)
    config = designed(target)
    assert config.has_mask_embedding
    table = target.model.model.embed_tokens.weight
    found = new_drafter(config, target, 0).mask_embedding
    assert mx.allclose(found, table.mean(axis=0), atol=1e-6)
