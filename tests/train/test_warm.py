"""New drafters that begin with the target's last layers, where those compute the same."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from support.tiny import FAMILIES, tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx.drafter.model import Drafter
from dflash_mlx.errors import UserError
from dflash_mlx.target.target import Target
from dflash_mlx.train.design import Shape, design, new_drafter
from dflash_mlx.train.warm import warm_start

ALIKE = {"qwen3": "whole", "llama": "queries and keys", "smollm3": "queries and keys"}


def begun(target: Target, **shape: object) -> tuple[Drafter, str]:
    """A drafter with the target's last layers, and what is said of it."""
    config = design(target, byte_tokenizer(), None, Shape(**({"layers": 2} | shape)))
    drafter = new_drafter(config, target, 0)
    return drafter, warm_start(drafter, target)


@pytest.mark.parametrize("quantized", [False, True])
def test_the_last_layers_are_copied(quantized):
    model = tiny_model("qwen3", vocab_size=260, intermediate_size=64)
    target = Target(model)
    if quantized:
        nn.quantize(model, group_size=32, bits=8)
    before = [type(m) for m in model.modules()]
    drafter, said = begun(target)
    assert [type(m) for m in model.modules()] == before and "last 2 layers, whole" in said
    for i in range(2):
        ours, theirs = drafter.layers[i].mlp.up_proj.weight, model.layers[1 + i].mlp.up_proj
        weight = theirs.weight
        if quantized:
            weight = mx.dequantize(weight, theirs.scales, theirs.biases, 32, 8)
        assert mx.allclose(ours, weight, atol=1e-6)
        norm = model.layers[1 + i].self_attn.q_norm.weight
        assert mx.array_equal(drafter.layers[i].self_attn.q_norm.weight, norm)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_that_compute_something_else_are_refused(family):
    target = Target(tiny_model(family, vocab_size=260))
    if family in ALIKE:
        assert ALIKE[family] in begun(target)[1]
    else:
        with pytest.raises(UserError, match="leave --warm-start out"):
            begun(target)


def test_biases_are_not_dropped_in_silence():
    with pytest.raises(UserError, match=r"self_attn\.k_proj\.bias"):
        begun(Target(tiny_model("qwen2", vocab_size=260)))


def test_a_norm_of_one_plus_its_weight_is_told_by_its_numbers():
    with pytest.raises(UserError, match="norm, scale or activate otherwise"):
        begun(Target(tiny_model("gemma", vocab_size=260)))


def test_other_sizes_are_refused():
    target = Target(tiny_model("qwen3", vocab_size=260))
    with pytest.raises(UserError, match=r"mlp\.up_proj\.weight"):
        begun(target, intermediate_size=40)
    with pytest.raises(UserError, match="fewer --layers"):
        begun(target, layers=4)


def test_convolutions_are_no_obstacle():
    assert "whole" in begun(Target(tiny_model("qwen3", vocab_size=260)), dflash2=True)[1]
