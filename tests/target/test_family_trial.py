"""Families that nobody has looked at: tried once at load, and run or refused by name."""

import importlib

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models import llama
from support.lossless import COUPLED, GREEDY, Kind
from support.outside import OUTSIDE, RECURRENT
from support.pairs import random_pair, respond, tokens_of
from support.plain import clear_case
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import UserError
from dflash_mlx.loading.loader import make_pair
from dflash_mlx.target.swap import subclass
from dflash_mlx.target.target import Target

IDS = mx.array([[5, 9, 2, 60, 33]])
KINDS = {family: Kind(family, changes) for family, changes in OUTSIDE.items()}


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("family", OUTSIDE)
def test_family_outside_the_table_is_lossless(family, sampling):
    KINDS[family].check(8, lambda r: r * 3 % 8, [12], sampling=sampling)


@pytest.mark.parametrize("family", ["cohere2", "olmo2", *RECURRENT])
def test_ragged_batch_is_lossless(family):
    KINDS[family].check_batch(5, (1, 30, 9))


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize("family", ["granite", "minicpm", "olmo_hybrid", "nemotron_h"])
def test_trial_allows_for_16_bits(family, dtype):
    model = tiny_model(family, **OUTSIDE[family])
    model.set_dtype(dtype)
    target = Target(model)
    assert target.dtype == dtype
    assert target.family.batched


def test_trial_comes_once_and_not_for_known_families(monkeypatch):
    calls = []

    def count(family):
        cls = importlib.import_module(f"mlx_lm.models.{family}").Model
        forward = cls.__call__
        monkeypatch.setattr(
            cls, "__call__", lambda *a, **k: calls.append(family) or forward(*a, **k)
        )

    count("olmo2")
    count("qwen3_next")
    model = KINDS["olmo2"].model
    with random_pair(model):
        # A plain forward, its head, and two rounds.
        assert calls == ["olmo2"] * 4
    with random_pair(tiny_model("qwen3_next"), num_target_layers=None):
        assert len(calls) == 4


def test_whole_generation_of_a_family_outside_the_table():
    model = KINDS["lfm2"].model
    prompt, truth = clear_case(model, 9, 30, GREEDY)
    with random_pair(model, num_target_layers=None) as pair:
        assert tokens_of(respond(pair, byte_tokenizer(), prompt, 30)) == truth


UNFIT = {
    "jamba": (
        {
            "attn_layer_offset": 1,
            "attn_layer_period": 2,
            "expert_layer_offset": 1,
            "expert_layer_period": 2,
            "mamba_d_conv": 4,
            "mamba_d_state": 8,
            "mamba_expand": 2,
            "mamba_dt_rank": 4,
            "mamba_proj_bias": False,
            "num_experts": 2,
            "num_experts_per_tok": 1,
        },
        "no convolution or recurrence that is known",
    ),
    "mamba2": (
        {
            "num_heads": 4,
            "head_dim": 8,
            "state_size": 8,
            "conv_kernel": 4,
            "n_groups": 2,
            "use_bias": False,
            "use_conv_bias": True,
            "time_step_limit": (0.0, 100.0),
            "time_step_rank": 4,
            "layer_norm_epsilon": 1e-5,
        },
        "recurrent in every layer",
    ),
    "gpt2": (
        {
            "n_ctx": 64,
            "n_embd": 32,
            "n_head": 4,
            "n_layer": 3,
            "n_positions": 64,
            "layer_norm_epsilon": 1e-5,
        },
        "does not keep its decoder layers in a list",
    ),
}


@pytest.mark.parametrize("family", UNFIT)
def test_unfit_family_is_refused_by_name(family):
    config, message = UNFIT[family]
    model = tiny_model(family, **config)
    classes = [type(m) for m in model.modules()]
    for attempt in (lambda: Target(model, (0,)), lambda: make_pair(model)):
        with pytest.raises(UserError, match=message) as refused:
            attempt()
        assert repr(family) in str(refused.value)
    assert [type(m) for m in model.modules()] == classes


def odd_model(part, call):
    """A llama of a family that no one knows, one part of which has another forward."""
    model = tiny_model()
    forward = type(part(model)).__call__
    changed = subclass(
        type(part(model)), __call__=lambda module, *a, **k: call(forward, module, *a, **k)
    )
    part(model).__class__ = changed
    model.__class__ = type("Model", (type(model),), {"__module__": "mlx_lm.models.odd"})
    return model


ODD = {
    # Their attention believes that its keys are those of the cache and no more.
    "differs from its own": (
        lambda m: m.layers[1].self_attn,
        lambda f, a, x, mask, cache: f(a, x, "causal", cache),
    ),
    # It counts positions from the start of each forward.
    "partly accepted round": (
        lambda m: m.layers[0],
        lambda f, layer, x, mask, cache: f(
            layer, x + 0.3 * mx.arange(x.shape[1])[:, None], mask, cache
        ),
    ),
    "more than a function of the last hidden state": (
        lambda m: m,
        lambda f, m, ids, cache=None: f(m, ids, cache) + ids[..., None],
    ),
    "more than its scaled embeddings": (
        lambda m: m.model,
        lambda f, stack, ids, cache, _: f(stack, ids, cache, stack.embed_tokens(ids) + 1.0),
    ),
    "each run once": (
        lambda m: m.model,
        lambda f, stack, ids, cache, _: f(stack, ids, cache) + f(stack, ids),
    ),
}


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("message", ODD)
def test_odd_model_is_refused_with_the_reason(message, dtype):
    model = odd_model(*ODD[message])
    model.set_dtype(dtype)
    with pytest.raises(UserError, match=message) as refused:
        Target(model)
    assert "'odd'" in str(refused.value)


def test_odd_model_without_oddities_runs():
    model = odd_model(lambda m: m, lambda f, m, *a, **k: f(m, *a, **k))
    prompt, truth = clear_case(model, 9, 20, GREEDY)
    with random_pair(model) as pair:
        assert tokens_of(respond(pair, byte_tokenizer(), prompt, 20)) == truth


def test_attention_without_a_mask_a_row_takes_one_sequence():
    def grouped(forward, attention, x, mask, cache):
        if mask is not None and not isinstance(mask, str) and mask.shape[0] > 1:
            raise ValueError("no mask a row")
        return forward(attention, x, mask, cache)

    target = Target(odd_model(lambda m: m.layers[0].self_attn, grouped))
    assert not target.family.batched
    with pytest.raises(UserError, match="single sequence"):
        target.forward(mx.concatenate([IDS, IDS]), target.make_cache())


def test_pipeline_is_refused():
    model = tiny_model("qwen3_next")
    model.model.layers[0] = None
    with pytest.raises(UserError, match="pipeline"):
        Target(model)


def test_unknown_kind_of_cache_is_refused():
    model = tiny_model()

    class Layer(nn.Module):
        pass

    model.make_cache = lambda: [Layer() for _ in model.layers]
    with pytest.raises(UserError, match="'llama' keeps a cache of kind Layer"):
        Target(model)
    assert all(type(layer) is llama.TransformerBlock for layer in model.layers)
