"""Checkpoints of every format with something wrong in their files or tensors."""

import functools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import mlx.core as mx
from damage import (
    ACCOUNTING,
    BLOCK,
    FC,
    FILES,
    JSON,
    KINDS,
    SHAPES,
    VALUES,
    VOCABULARY,
    Damage,
    Tensors,
)
from formats import as_source, drafter_of, random_tensors


@functools.cache
def tensors_of(format_name: str) -> Tensors:
    """A sound checkpoint's tensors, by the format's own names."""
    config = drafter_of(format_name)
    return as_source(random_tensors(config), config, format_name)


# One tensor of each kind is enough; those that a format does not have are skipped.
_TENSORS = {
    "fc.weight": FC,
    "encoder.fc.weight": FC,
    "context_proj.weight": FC,
    "hidden_dim_adapter.proj.weight": FC,
    "hidden_norm.weight": SHAPES,
    "context_norm.weight": SHAPES,
    "norm.weight": SHAPES,
    "layers.1.self_attn.k_proj.weight": SHAPES,
    "layers.1.self_attn.o_proj.weight": SHAPES,
    "layers.0.self_attn.q_norm.weight": SHAPES,
    "layers.0.mlp.down_proj.weight": SHAPES,
    "embed_tokens.weight": VOCABULARY,
    "lm_head.weight": VOCABULARY,
    "d2t": VOCABULARY,
    "layers.0.attention_conv.base_kernel": BLOCK,
    "layers.1.mlp_conv.kernel_projection.weight": BLOCK,
    "candidate_selector.successor_codebook": BLOCK,
    "candidate_selector.hidden_projection.weight": BLOCK,
}


def _spoiled(value: float) -> Callable[[mx.array], mx.array]:
    def spoil(array: mx.array) -> mx.array:
        flat = array.flatten()
        flat[flat.size // 3] = value
        return flat.reshape(array.shape)

    return spoil


def tensor_damages(format_name: str) -> Iterator[Damage]:
    """A tensor that is missing, has another name, another shape, or other values."""
    tensors = tensors_of(format_name)
    for name in (name for name in _TENSORS if name in tensors):
        wrong = name.replace("weight", "wait") if "weight" in name else f"{name}_"
        pop, move = partial(_move, name, None), partial(_move, name, wrong)
        # A missing tensor is called by its MLX name, which ends as in every format.
        yield Damage(ACCOUNTING, format_name, f"no {name}", ("lacks",), to_tensors=pop)
        yield Damage(ACCOUNTING, format_name, wrong, ("lacks", wrong), to_tensors=move)
        for check, what, change in _changes(name, tensors[name]):
            put = partial(_put, name, change)
            yield Damage(check, format_name, f"{name} {what}", (name,), to_tensors=put)


def _move(name: str, to: str | None, tensors: Tensors) -> None:
    """Rename a tensor, or remove it."""
    array = tensors.pop(name)
    if to is not None:
        tensors[to] = array


def _put(name: str, change: Callable[[mx.array], mx.array], tensors: Tensors) -> None:
    tensors[name] = change(tensors[name])


def _changes(
    name: str, array: mx.array
) -> Iterator[tuple[str, str, Callable[[mx.array], mx.array]]]:
    check = _TENSORS[name]
    yield check, "truncated", lambda x: x[:-1]
    yield check, "with an axis more", lambda x: x[None]
    if array.ndim == 2 and array.shape[0] != array.shape[1]:
        yield check, "transposed", lambda x: x.T
    if name.endswith(("fc.weight", "context_proj.weight")):
        yield FC, "of two taps", lambda x: x[:, :128]
        yield FC, "of four streams", lambda x: mx.concatenate([x] * 4, axis=1)
    if name == "d2t":
        yield VOCABULARY, "out of range", lambda x: x + 64
        yield VOCABULARY, "out of order", lambda x: x[::-1] + 8
        yield VALUES, "of float32", lambda x: x.astype(mx.float32)
        return
    yield VALUES, "of int8", lambda x: x.astype(mx.int8)
    yield VALUES, "with NaN", _spoiled(float("nan"))
    yield VALUES, "with infinity", _spoiled(-float("inf"))
    if "kernel_projection" not in name and "successor" not in name:
        yield VALUES, "of zeros", mx.zeros_like


def name_damages(format_name: str) -> Iterator[Damage]:
    """Tensors that do not belong."""
    tensors = tensors_of(format_name)
    extras = {
        "layers.9.mlp.up_proj.weight": (ACCOUNTING, "layers.9.mlp.up_proj.weight"),
        "classifier.weight": (ACCOUNTING, "classifier.weight"),
        "layers.0.self_attn.k_proj.bias": (ACCOUNTING, "k_proj.bias"),
        "layers.0.self_attn.qkv_proj.weight": (ACCOUNTING, "fused projections"),
        "markov_head.markov_w1.weight": (KINDS, "DSpark's heads"),
        "confidence_head.proj.weight": (KINDS, "DSpark's heads"),
        "prefix_gru.weight_ih_l0": (KINDS, "Domino"),
        "hidden_correction.0.weight": (KINDS, "DFly"),
        "layers.0.self_attn.k_proj_target.weight": (KINDS, "DFlare"),
        "layers.0.self_attn.g_proj.weight": (KINDS, "gated attention"),
        "layers.0.self_attn.attention_sink_bias": (KINDS, "attention sinks"),
    }
    if "hidden_dim_adapter.proj.weight" not in tensors:
        extras["hidden_dim_adapter.proj.weight"] = (KINDS, "hidden_dim_adapter.proj.weight")
    if "candidate_selector.successor_codebook" in tensors:
        both = "candidate_selector.successor_codebook.weight"
        extras[both] = (ACCOUNTING, f"successor_codebook and {both}")
    for name, (check, named) in extras.items():
        add = partial(_add, name)
        yield Damage(check, format_name, f"{name} too", (named,), to_tensors=add)
    first = next(iter(tensors))
    yield Damage(
        ACCOUNTING,
        format_name,
        "one name with a prefix",
        ("prefix 'model.'",),
        to_tensors=partial(_move, first, f"model.{first}"),
    )


def _add(name: str, tensors: Tensors) -> None:
    tensors[name] = mx.ones((32,))


def file_damages(format_name: str) -> Iterator[Damage]:
    """Damaged, missing and foreign files."""
    rewrites = {
        "truncated": lambda data: data[:-7],
        "with trailing bytes": lambda data: data + b"seven..",
        "a pointer": lambda data: b"version https://git-lfs.github.com/spec/v1\n",
    }
    for what, change in rewrites.items():
        yield Damage(
            FILES,
            format_name,
            f"model.safetensors {what}",
            ("model.safetensors is truncated or corrupt",),
            to_folder=lambda folder, c=change: _rewrite(folder / "model.safetensors", c),
        )
    for name, kind in {"pytorch_model.bin": "a pickle", "model.gguf": "a GGUF file"}.items():
        yield Damage(
            FILES,
            format_name,
            f"only {name}",
            (name, kind),
            to_folder=lambda folder, n=name: (folder / "model.safetensors").rename(folder / n),
        )
    for what, (text, named) in {
        "not JSON": (b"{'block_size': 8}", "not valid JSON"),
        "a list": (b"[]", "holds a list, not an object"),
        "a key twice": (b'{"block_size": 8, "block_size": 16}', "block_size twice"),
    }.items():
        yield Damage(
            JSON,
            format_name,
            what,
            ("config.json", named),
            to_folder=lambda folder, t=text: (folder / "config.json").write_bytes(t),
        )


def _rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))
