"""Taps: the output of a layer, read without leaving a trace."""

import gc
import weakref

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.llama import TransformerBlock
from mlx_lm.tuner.utils import linear_to_lora_layers
from support.pairs import oracle_pair, random_pair, respond, tiny_drafter, tokens_of
from support.plain import clear_case
from support.tiny import language_of, shared_model, tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import UserError
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.loading.loader import make_pair
from dflash_mlx.target.taps import Taps
from dflash_mlx.target.target import Target

IDS = mx.array([[5, 9, 2, 60, 33]])


def adding_model():
    """Layer ``i`` adds ``10 ** i`` to every element of the stream, and nothing else."""
    target = tiny_model(num_hidden_layers=4)
    hidden = target.args.hidden_size
    for i, layer in enumerate(target.layers):
        layer.self_attn.o_proj.weight = mx.zeros_like(layer.self_attn.o_proj.weight)
        down = nn.Linear(target.args.intermediate_size, hidden)
        down.weight = mx.zeros_like(layer.mlp.down_proj.weight)
        down.bias = mx.full((hidden,), 10.0**i)
        layer.mlp.down_proj = down
    return target


@pytest.mark.parametrize("taps", [(0,), (3,), (0, 3), (1, 2), (0, 1, 2, 3)])
def test_a_tap_is_the_output_of_its_layer(taps):
    target = Target(adding_model(), taps)
    _, features = target.forward(IDS, target.make_cache())
    embedded = target.embed(IDS)
    expected = [embedded + sum(10.0**k for k in range(i + 1)) for i in taps]
    assert mx.allclose(features, mx.concatenate(expected, axis=-1), rtol=1e-5, atol=1e-3)


def test_features_come_in_the_drafters_order():
    found = []
    for taps in ((0, 2), (2, 0)):
        target = Target(shared_model(), taps)
        found += mx.split(target.forward(IDS, target.make_cache())[1], 2, axis=-1)
        target.release()
    assert mx.array_equal(found[0], found[3]) and mx.array_equal(found[1], found[2])


def test_without_taps_there_are_no_features():
    target = Target(shared_model())
    logits, features = target.forward(IDS, target.make_cache())
    assert features is None
    assert mx.array_equal(logits, shared_model()(IDS))


def outline(module):
    """What a person can see of a model, but for the tapped layers' classes themselves."""
    return {
        "parameters": [(name, w.shape) for name, w in tree_flatten(module.parameters())],
        "modules": [(name, type(m).__name__) for name, m in module.named_modules()],
        "layers": [sorted(vars(layer)) for layer in module.layers],
        "text": str(module),
    }


@pytest.mark.parametrize("quantized", [False, True])
def test_tapped_model_looks_and_acts_as_before(quantized):
    plain = tiny_model(hidden_size=64, intermediate_size=64)
    if quantized:
        nn.quantize(plain, group_size=32, bits=8)
    before, logits = outline(plain), plain(IDS)
    weights = dict(tree_flatten(plain.parameters()))
    target = Target(plain, (0, 2))
    assert outline(plain) == before
    assert all(isinstance(layer, TransformerBlock) for layer in plain.layers)
    assert plain.layers[0].self_attn.n_heads == 4
    assert mx.array_equal(plain(IDS), logits)
    for name, weight in tree_flatten(plain.parameters()):
        assert weight is weights[name]
    tapped, features = target.forward(IDS, target.make_cache())
    assert mx.array_equal(tapped, logits)
    assert features.shape == (1, 5, 128)
    # Loading weights, changing dtypes and freezing go on working.
    plain.load_weights(list(weights.items()))
    plain.freeze()
    assert not tree_flatten(plain.trainable_parameters())
    target.release()
    assert outline(plain) == before
    assert [type(layer) for layer in plain.layers] == [TransformerBlock] * 3


def test_adapters_go_into_a_tapped_model():
    target = Target(tiny_model(), (0, 2))
    before = target.forward(IDS, target.make_cache())[0]
    linear_to_lora_layers(target.model, 3, {"rank": 4, "scale": 1.0, "dropout": 0.0})
    logits, features = target.forward(IDS, target.make_cache())
    # Fresh adapters add nothing.
    assert mx.allclose(logits, before, rtol=1e-5, atol=1e-5)
    assert features.shape[-1] == 64
    target.release()


def test_release_restores_the_classes_once():
    target = tiny_model()
    pair = make_pair(target, tiny_drafter())
    assert [type(layer) is TransformerBlock for layer in target.layers] == [False, True, False]
    pair.release()
    assert all(type(layer) is TransformerBlock for layer in target.layers)
    with make_pair(target, tiny_drafter()) as other:
        # Another pair's taps are none of the first one's business any more.
        pair.release()
        assert other.target.forward(IDS, other.target.make_cache())[1] is not None
    assert all(type(layer) is TransformerBlock for layer in target.layers)


def test_pair_is_released_when_its_block_ends_with_an_error():
    target = tiny_model()
    with pytest.raises(ZeroDivisionError), make_pair(target, tiny_drafter()):
        raise ZeroDivisionError
    assert all(type(layer) is TransformerBlock for layer in target.layers)


def test_tapping_twice_is_refused():
    target = tiny_model()
    with make_pair(target, tiny_drafter()) as pair:
        with pytest.raises(UserError, match=r"\[2\].*release"):
            Target(target, (1, 2))
        with pytest.raises(UserError, match="release"):
            make_pair(target, tiny_drafter())
        # Nothing of the refused pair stays, and the first one works.
        assert type(target.layers[1]) is TransformerBlock
        assert len(respond(pair, byte_tokenizer(), [1, 2, 3], 9)) == 9
    assert all(type(layer) is TransformerBlock for layer in target.layers)


def test_same_drafter_can_be_paired_again():
    target, drafter = tiny_model(), tiny_drafter()
    prompt, truth = clear_case(target, 9, 20, Sampling())
    for _ in range(2):
        with make_pair(target, drafter) as pair:
            assert tokens_of(respond(pair, byte_tokenizer(), prompt, 20)) == truth


def test_recording_lives_for_one_forward():
    target = Target(tiny_model(), (0, 2))
    target.forward(IDS, target.make_cache())
    assert target._taps._recording.outputs is None
    with pytest.raises(ZeroDivisionError), target._taps.recording():
        raise ZeroDivisionError
    assert target._taps._recording.outputs is None
    target.model(IDS)
    assert target._taps._recording.outputs is None


def test_tuple_outputs_hand_out_their_first_element():
    class Layer(nn.Module):
        def __call__(self, x):
            return x + 1, "kv", 3

    layers = [Layer(), Layer()]
    taps = Taps(layers, (1,))
    with taps.recording() as outputs:
        x, kv, offset = layers[1](layers[0](mx.zeros(2))[0])
    assert (kv, offset) == ("kv", 3)
    assert outputs[1] is x


def test_prefill_does_the_same_forwards_as_plain_decoding():
    prompt, truth = clear_case(shared_model(), 37, 8, Sampling())
    shapes = {}
    with oracle_pair(shared_model(), prompt + truth) as pair:
        for name, options in {"draft": {}, "plain": {"draft": False}}.items():
            seen, forward = [], pair.target.forward
            pair.target.forward = lambda ids, caches, f=forward, s=seen: (
                s.append(ids.shape[1]) or f(ids, caches)
            )
            respond(pair, byte_tokenizer(), prompt, 2, prefill_step_size=16, **options)
            pair.target.forward = forward
            shapes[name] = seen[:3]
    assert shapes["draft"] == shapes["plain"] == [16, 16, 4]


def test_prefill_leaves_mlx_lms_keys_and_values():
    prompt, _ = clear_case(shared_model(), 37, 8, Sampling())
    cache = make_prompt_cache(shared_model())
    for _ in generate_step(mx.array(prompt), shared_model(), max_tokens=0, prompt_cache=cache):
        pass
    with random_pair(shared_model()) as pair:
        ours = pair.make_prompt_cache()
        respond(pair, byte_tokenizer(), prompt, 0, prompt_cache=ours)
    for a, b in zip(ours, cache, strict=True):
        for x, y in zip(a.keys_and_values(), b.keys_and_values(), strict=True):
            # The prompt is prefilled as there, bit by bit; the last token goes through our buffers.
            assert mx.array_equal(x[:, :, :36], y[:, :, :36])
            assert mx.allclose(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen3_5", "gemma4", "kimi_k25"])
def test_the_last_taps_are_before_and_after_the_final_norm(family):
    other = shared_model(family)
    norm, last = language_of(other).model.norm, len(other.layers)
    before = type(norm)
    target = Target(other, (last - 1, last))
    logits, features = target.forward(IDS, target.make_cache())
    target.release()
    stream, normed = mx.split(features, 2, axis=-1)
    assert mx.allclose(norm(stream), normed, rtol=1e-5, atol=1e-5)
    assert mx.allclose(target.head(normed), logits, rtol=1e-5, atol=1e-5)
    assert type(norm) is before
    assert mx.allclose(other(IDS), logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["qwen3_next", "gemma4_text"])
def test_more_taps_than_drafter_layers(family):
    other = tiny_model(family)
    prompt, truth = clear_case(other, 9, 30, Sampling())
    changes = {
        "target_layer_ids": (0, 1, 2, 3),
        "num_hidden_layers": 1,
        "num_target_layers": len(other.layers),
    }
    with random_pair(other, **changes) as pair:
        assert tokens_of(respond(pair, byte_tokenizer(), prompt, 30)) == truth


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
def test_a_model_goes_with_its_pair(family):
    """No cycle runs through the taps: memory is free at once, and not when Python next looks."""
    model = tiny_model(family)
    pair = make_pair(model, tiny_drafter(num_target_layers=None))
    respond(pair, byte_tokenizer(), [1, 2, 3], 5)
    seen = [weakref.ref(module) for module in model.modules()]
    gc.collect()
    gc.disable()
    try:
        del model, pair
        assert not any(module() for module in seen)
    finally:
        gc.enable()
