"""Families that nobody has looked at: tried once at load, and run or refused by name."""

import importlib

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models import llama
from support.lossless import COUPLED, GREEDY, Kind
from support.outside import OUTSIDE, RECURRENT, UNFIT
from support.pairs import random_pair, respond, tiny_config, tokens_of
from support.plain import clear_case
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import UserError
from dflash_mlx.drafter.model import Drafter
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


@pytest.mark.parametrize("family", UNFIT)
def test_unfit_family_is_refused_by_name(family):
    config, message = UNFIT[family]
    model = tiny_model(family, **config)
    classes = [type(m) for m in model.modules()]
    drafter = Drafter(tiny_config())
    for attempt in (lambda: Target(model, (0,)), lambda: make_pair(model, drafter)):
        with pytest.raises(UserError, match=message) as refused:
            attempt()
        assert repr(family) in str(refused.value)
    assert "--no-draft" in str(refused.value)
    assert [type(m) for m in model.modules()] == classes


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("family", UNFIT)
def test_unfit_family_decodes_plainly(family, sampling):
    model = tiny_model(family, **UNFIT[family][0])
    prompt, truth = clear_case(model, 9, 20, sampling)
    options = {} if sampling.greedy else {"temp": 0.9, "top_p": 0.95, "seed": 11}
    pair = make_pair(model)
    responses = respond(pair, byte_tokenizer(), prompt, 20, prefill_step_size=4, **options)
    assert tokens_of(responses) == truth
    assert responses[-1].tau == 1


def test_caches_of_an_unfit_family_are_mlx_lms():
    model = tiny_model("gpt2", **UNFIT["gpt2"][0] | {"n_head": 1})
    pair = make_pair(model)
    prompt = list(range(5, 11))
    quantized = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 8}
    for options in (quantized, {"max_kv_size": 9}):
        expected = [t for t, _ in generate_step(mx.array(prompt), model, max_tokens=14, **options)]
        found = respond(pair, byte_tokenizer(), prompt, 14, **options)
        assert tokens_of(found) == expected
    with pytest.raises(UserError, match=r"prompt cache cannot be continued .* 'gpt2'"):
        respond(pair, byte_tokenizer(), [5], 3, prompt_cache=pair.make_prompt_cache())


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
