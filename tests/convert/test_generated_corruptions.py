"""Hundreds of damaged checkpoints, over every format: one clear sentence each, and nothing left."""

import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import pytest
from formats import CONFIGS, as_source, drafter_of, random_tensors
from tiny_checkpoint import snapshot, write_checkpoint

from dflash_mlx.convert import convert
from dflash_mlx.errors import UserError

Tensors = dict[str, mx.array]


class Damage(NamedTuple):
    """One thing that is wrong with a checkpoint, and what the message must name."""

    format_name: str
    what: str
    names: tuple[str, ...]
    to_config: Callable[[dict[str, Any]], object] = lambda config: None
    to_tensors: Callable[[Tensors], object] = lambda tensors: None
    to_file: Callable[[Path], object] = lambda path: None

    @property
    def id(self) -> str:
        return f"{self.format_name}: {self.what}".replace(" ", "_")


@functools.cache
def tensors_of(format_name: str) -> Tensors:
    config = drafter_of(format_name)
    return as_source(random_tensors(config), config, format_name)


# One tensor of each kind is enough; those that a format does not have are skipped.
KINDS = (
    "fc.weight",
    "hidden_norm.weight",
    "norm.weight",
    "layers.1.self_attn.k_proj.weight",
    "layers.0.self_attn.q_norm.weight",
    "layers.0.mlp.down_proj.weight",
    "embed_tokens.weight",
    "lm_head.weight",
    "d2t",
    "hidden_dim_adapter.proj.weight",
    "layers.0.attention_conv.base_kernel",
    "layers.1.mlp_conv.kernel_projection.weight",
    "candidate_selector.successor_codebook",
    "candidate_selector.hidden_projection.weight",
    "encoder.fc.weight",
    "context_norm.weight",
)


def spoiled(value: float) -> Callable[[mx.array], mx.array]:
    def spoil(array: mx.array) -> mx.array:
        flat = array.flatten()
        flat[flat.size // 3] = value
        return flat.reshape(array.shape)

    return spoil


def put(name: str, change: Callable[[mx.array], mx.array]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: change(tensors[name])})


def move(name: str, to: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({to: tensors.pop(name)})


def of_tensors(format_name: str) -> Iterator[Damage]:
    """What can be wrong with one tensor."""
    tensors = tensors_of(format_name)
    for name in (name for name in KINDS if name in tensors):
        array = tensors[name]
        # A missing tensor is called by the MLX name, which always ends like the format's own.
        yield Damage(
            format_name, f"missing {name}", ("lacks",), to_tensors=lambda t, n=name: t.pop(n)
        )
        wrong = name.replace("weight", "wait") if "weight" in name else f"{name}_"
        yield Damage(
            format_name, f"{name} misnamed", ("lacks", wrong), to_tensors=move(name, wrong)
        )
        changes: dict[str, Callable[[mx.array], mx.array]] = {
            "truncated": lambda x: x[:-1],
            "with an axis more": lambda x: x[None],
        }
        if array.ndim == 2 and array.shape[0] != array.shape[1]:
            changes["transposed"] = lambda x: x.T
        if name != "d2t":
            changes["of int8"] = lambda x: x.astype(mx.int8)
            changes["with NaN"] = spoiled(float("nan"))
            changes["with infinity"] = spoiled(-float("inf"))
            if "kernel_projection" not in name and "successor" not in name:
                changes["of zeros"] = mx.zeros_like
        else:
            changes["out of range"] = lambda x: x + 64
            changes["out of order"] = lambda x: x[::-1] + 8
            changes["of float32"] = lambda x: x.astype(mx.float32)
        for what, change in changes.items():
            yield Damage(
                format_name,
                f"{name} {what}",
                (name,),
                to_tensors=put(name, change),
            )


def of_the_whole(format_name: str) -> Iterator[Damage]:
    """Tensors that do not belong, and damaged files."""
    some = next(iter(tensors_of(format_name)))
    extras = {
        "layers.9.mlp.up_proj.weight": "layers.9.mlp.up_proj.weight",
        "classifier.weight": "classifier.weight",
        "markov_head.markov_w1.weight": "DSpark's heads",
        "prefix_gru.weight_ih_l0": "Domino",
        "hidden_correction.0.weight": "DFly",
        "layers.0.self_attn.k_proj_target.weight": "DFlare",
        "layers.0.self_attn.g_proj.weight": "gated attention",
        "layers.0.self_attn.qkv_proj.weight": "fused projections",
        "layers.0.self_attn.attention_sink_bias": "attention sinks",
        "layers.0.self_attn.k_proj.bias": "k_proj.bias",
    }
    for name, named in extras.items():
        yield Damage(
            format_name,
            f"extra {name}",
            (named,),
            to_tensors=lambda t, n=name: t.update({n: mx.ones((32,))}),
        )
    yield Damage(
        format_name,
        "one name with a prefix",
        ("prefix 'model.'",),
        to_tensors=move(some, f"model.{some}"),
    )
    for what, change in {
        "truncated": lambda data: data[:-7],
        "with trailing bytes": lambda data: data + b"seven..",
        "a pointer": lambda data: b"version https://git-lfs.github.com/spec/v1\n",
    }.items():
        yield Damage(
            format_name,
            f"file {what}",
            ("model.safetensors", "truncated or corrupt"),
            to_file=lambda path, c=change: path.write_bytes(c(path.read_bytes())),
        )
    yield Damage(
        format_name,
        "only a pickle",
        ("pytorch_model.bin", "pickle"),
        to_file=lambda path: path.rename(path.with_name("pytorch_model.bin")),
    )
    yield Damage(
        format_name,
        "only a GGUF file",
        ("model.gguf", "GGUF"),
        to_file=lambda path: path.rename(path.with_name("model.gguf")),
    )


# Keys that must be there, with a value that cannot be; "*" stands for wherever a format has it.
WRONG_VALUES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 95,
    "num_hidden_layers": 2.0,
    "num_attention_heads": 3,
    "num_key_value_heads": 0,
    "head_dim": 15,
    "rms_norm_eps": "1e-6",
    "vocab_size": 0,
    "block_size": 0,
    "mask_token_id": -1,
    "target_layer_ids": [1, 9, 5],
    "aux_hidden_state_layer_ids": [2, 2, 6],
    "rope_theta": -1.0,
    "sliding_window": 0,
    "conv_kernel_size": 99,
    "conv_group_size": 7,
    "selector_rank": 0,
    "selector_top_k": 99,
    "draft_vocab_size": 65,
    "layer_types": ["full_attention", "linear_attention", "full_attention"],
    "hidden_act": "gelu_pytorch_tanh",
    "sample_from_anchor": 2,
    "speculative_tokens": 0,
    "target_layer_start_idx": 7,
    "num_aux_layers": 9,
    "pard_token": 5,
    "swa_window_size": 2,
    "causal_head": "yes",
    "target_num_hidden_layers": 3,
    "num_target_layers": 4,
}


def places(config: dict[str, Any], key: str) -> list[tuple[str, ...]]:
    """The paths to a key in a config."""
    found = [(key,)] if config.get(key) is not None else []
    for outer, value in config.items():
        if isinstance(value, dict):
            found += [(outer, *path) for path in places(value, key)]
    return found


def at(config: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    return functools.reduce(lambda value, key: value[key], path[:-1], config)


def of_config(format_name: str) -> Iterator[Damage]:
    """A key that has a wrong value, has two, is missing, or that nobody knows."""
    config = CONFIGS[format_name]()
    for key, wrong in WRONG_VALUES.items():
        for path in places(config, key):
            if path[0] == "speculators_config":
                continue
            yield Damage(
                format_name,
                f"{'.'.join(path)} wrong",
                (NAMED.get(key, key),),
                to_config=lambda c, p=path, v=wrong: at(c, p).update({p[-1]: v}),
            )
    for outer in (None, "dflash_config", "transformer_layer_config"):
        if outer is None or config.get(outer) is not None:
            yield Damage(
                format_name,
                f"unknown key in {outer}",
                ("does not know", "sparsity_ratio"),
                to_config=lambda c, o=outer: (c[o] if o else c).update(sparsity_ratio=0.5),
            )
    for key in ("block_size", "mask_token_id", "vocab_size"):
        paths = places(config, key)
        nested = next(
            (k for k in ("dflash_config", "transformer_layer_config") if config.get(k)), None
        )
        if nested is None or not paths or paths[0][0] == "speculative_config":
            continue
        other = (key,) if len(paths[0]) > 1 else (nested, key)
        yield Damage(
            format_name,
            f"two of {key}",
            (f"{key} is", "17"),
            to_config=lambda c, p=other: at(c, p).update({p[-1]: 17}),
        )
    for key in REQUIRED[format_name]:
        paths = places(config, key)
        assert paths, key
        yield Damage(
            format_name,
            f"no {key}",
            (key,),
            to_config=lambda c, paths=paths: [at(c, p).pop(p[-1]) for p in paths],
        )


# What a message calls a key whose value cannot be told from another's.
NAMED = {
    "layer_types": "linear_attention",
    "target_num_hidden_layers": "num_target_layers",
    "swa_window_size": "use_swa",
    "causal_head": "causality",
    "rope_theta": "theta",
}
_BODY = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "block_size",
    "mask_token_id",
    "rope_theta",
)
_ZLAB = (*_BODY, "vocab_size", "target_layer_ids")
_DFLASH2 = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_SPECULATORS = ("vocab_size", "block_size", "mask_token_id", "aux_hidden_state_layer_ids")
REQUIRED = {
    "z-lab": _ZLAB,
    "z-lab v2": (*_ZLAB, "sliding_window"),
    "z-lab DFlash 2": (*_ZLAB, "sliding_window", *_DFLASH2),
    "ModelOpt": (*(key for key in _ZLAB if key != "target_layer_ids"), "swa_window_size"),
    "JetSpec": _ZLAB,
    "speculators": (*_SPECULATORS, "sliding_window"),
    "speculators, whole vocabulary": (*_SPECULATORS, "sliding_window"),
    "speculators DFlash 2": (*_SPECULATORS, "sliding_window", *_DFLASH2),
    "Open Spec Config": (
        "method",
        "speculative_tokens",
        "target_layer_ids",
        "target_layer_start_idx",
        "sample_from_anchor",
        "mask_token_id",
        "sliding_window_non_causal",
        "vocab_size",
    ),
    "Muse assistant": (*_BODY, "target_layer_ids", "sliding_window"),
    "DeepSpec": _ZLAB,
    "AngelSpec": _ZLAB,
}
DAMAGES = list(
    itertools.chain.from_iterable(
        (*of_tensors(name), *of_the_whole(name), *of_config(name)) for name in CONFIGS
    )
)


def test_there_are_enough() -> None:
    assert len(DAMAGES) >= 200
    assert len({damage.id for damage in DAMAGES}) == len(DAMAGES)
    assert {damage.format_name for damage in DAMAGES} == set(CONFIGS)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.id)
def test_one_sentence_and_nothing_left(tmp_path: Path, damage: Damage) -> None:
    config = copy.deepcopy(CONFIGS[damage.format_name]())
    tensors = dict(tensors_of(damage.format_name))
    damage.to_config(config)
    damage.to_tensors(tensors)
    source = write_checkpoint(tmp_path / "source", config, tensors)
    damage.to_file(source / "model.safetensors")
    before = snapshot(tmp_path)
    with pytest.raises(UserError) as error:
        convert(source, tmp_path / "new" / "out")
    message = str(error.value)
    assert message.startswith("source: ")
    assert message.endswith(".")
    assert "\n" not in message
    assert all(name in message for name in damage.names), message
    assert snapshot(tmp_path) == before
