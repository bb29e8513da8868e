"""The recorder hears our own forwards and leaves nothing behind."""

import sys

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, make_prompt_cache
from support.pairs import oracle_pair, random_pair, respond, tiny_drafter, tokens_of
from support.plain import clear_case, plain_greedy
from support.tiny import shared_model, tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import UserError
from dflash_mlx.cache.adopt import adopt
from dflash_mlx.cache.recurrent import RecurrentCache
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.loading.loader import make_pair
from dflash_mlx.target.recorder import RECURRENCES, Recorder
from dflash_mlx.target.target import Target

HYBRIDS = ("qwen3_5", "qwen3_next")
IDS = mx.array([[5, 9, 2, 60, 33]])
every_hybrid = pytest.mark.parametrize("family", HYBRIDS)


def buffers(model, rows=1):
    caches = [adopt([c] * rows) for c in make_prompt_cache(model)]
    for cache in caches:
        cache.reserve(16)
    return caches


def classes(model):
    """Every module's class, and what the module of the family calls the recurrence."""
    module = sys.modules["mlx_lm.models." + type(model).__module__.rpartition(".")[2]]
    return [type(m) for m in model.modules()], [
        getattr(module, name) for name in RECURRENCES if name in vars(module)
    ]


def mixers(model):
    return [m for m in model.modules() if "conv1d" in m]


@every_hybrid
def test_forward_through_buffers_leaves_no_trace(family):
    model = shared_model(family)
    before, source = classes(model), dict(vars(type(mixers(model)[0])))
    target, caches = Target(model), buffers(model)
    logits, _ = target.forward(IDS, caches)
    assert classes(model) == before
    assert dict(vars(type(mixers(model)[0]))) == source
    assert mx.allclose(logits, model(IDS), rtol=1e-5, atol=1e-5)
    # The forward was heard, and none of it counts yet.
    recurrent = [c for c in caches if isinstance(c, RecurrentCache)]
    assert recurrent
    for cache in recurrent:
        assert cache.states == [None, None]
        cache.commit(mx.array([3]), mx.array([2]))
        assert all(x is not None for x in cache.states)


@every_hybrid
def test_an_error_in_a_forward_leaves_no_trace(family):
    model = tiny_model(family)
    before = classes(model)
    norm = model.layers[-1].post_attention_layernorm
    weight = norm.weight
    norm.weight = mx.zeros((7,))
    target, caches = Target(model), buffers(model)
    with pytest.raises(ValueError, match="rms_norm"):
        target.forward(IDS, caches)
    assert classes(model) == before
    norm.weight = weight
    prompt, truth = clear_case(model, 9, 20, Sampling())
    with random_pair(model, num_target_layers=None) as pair:
        assert tokens_of(respond(pair, byte_tokenizer(), prompt, 20)) == truth
    assert classes(model) == before


@every_hybrid
def test_stock_caches_are_not_recorded(family):
    model = shared_model(family)
    target = Target(model)
    ours, theirs = target.make_cache(), target.make_cache()
    logits, _ = target.forward(IDS, ours)
    assert mx.array_equal(logits, model(IDS, cache=theirs))
    for a, b in zip(ours, theirs, strict=True):
        if type(a) is ArraysCache:
            assert all(map(mx.array_equal, a.cache, b.cache))


@pytest.mark.parametrize("family", ["llama", *HYBRIDS])
def test_bystander_of_the_same_class_is_unaffected(family):
    model, bystander = tiny_model(family), tiny_model(family, seed=5)
    prompt, truth = clear_case(bystander, 9, 10, Sampling())
    kinds = {type(m): dict(vars(type(m))) for m in bystander.modules()}
    before = classes(bystander)
    batch = mx.array([prompt, prompt[::-1]])

    def batched(model):
        """As mlx-lm's server batches: rows merged, the shorter one padded."""
        cache = make_prompt_cache(model)
        cache = [type(c).merge([c, c]) for c in cache]
        for c in cache:
            c.prepare(lengths=[9, 5], right_padding=[0, 4])
        first = model(batch, cache=cache)
        for c in cache:
            c.finalize()
        return [first, model(batch[:, :1], cache=cache)]

    expected, own = batched(bystander), batched(model)
    with Recorder(model.layers).recording():
        # Even in the middle of our own forward.
        assert all(map(mx.array_equal, batched(bystander), expected))
        assert classes(bystander) == before
    with make_pair(model, tiny_drafter(num_target_layers=None)) as pair:
        respond(pair, byte_tokenizer(), prompt, 9)
        assert all(map(mx.array_equal, batched(bystander), expected))
        assert all(map(mx.array_equal, batched(model), own))
        with pytest.raises(UserError):
            make_pair(bystander, tiny_drafter(hidden_size=64, target_hidden_size=64))
        assert classes(bystander) == before
    assert all(map(mx.array_equal, batched(bystander), expected))
    assert plain_greedy(bystander, prompt, 10) == truth
    assert all(dict(vars(kind)) == attributes for kind, attributes in kinds.items())


@pytest.mark.parametrize("family", ["llama", *HYBRIDS])
def test_released_and_failed_pairs_leave_the_model_as_it_was(family):
    model = tiny_model(family)
    before, logits = classes(model), model(IDS)
    with pytest.raises(UserError):
        make_pair(model, tiny_drafter(target_layer_ids=(0, 9), num_target_layers=None))
    assert classes(model) == before
    pair = make_pair(model, tiny_drafter(num_target_layers=None))
    respond(pair, byte_tokenizer(), [1, 2, 3], 9)
    pair.release()
    assert classes(model) == before
    assert mx.array_equal(model(IDS), logits)


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_two_targets_of_one_model_take_turns(family):
    model = shared_model(family)
    prompt, truth = clear_case(model, 9, 30, Sampling())
    with oracle_pair(model, prompt + truth) as pair:
        plain = make_pair(model)
        for each in (pair, plain, pair):
            assert tokens_of(respond(each, byte_tokenizer(), prompt, 24)) == truth[:24]
        plain.release()
        assert tokens_of(respond(pair, byte_tokenizer(), prompt, 24)) == truth[:24]


def test_a_model_without_recurrence_has_nothing_to_hear():
    assert Recorder(shared_model("llama").layers)._classes == []
