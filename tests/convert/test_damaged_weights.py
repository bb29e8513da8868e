"""Checkpoints with damaged tensors: one clear sentence each, and nothing is left on the disk."""

from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from formats import CONFIGS, make
from tiny_checkpoint import Tensors, snapshot, tiny_config, tiny_weights, write_checkpoint

from dflash_mlx.convert import convert
from dflash_mlx.errors import UserError

GATE = "layers.1.mlp.gate_proj.weight"
Change = Callable[[mx.array], mx.array]


def refused(tmp_path: Path, source: Path, *names: str, **options: str) -> None:
    before = snapshot(tmp_path)
    with pytest.raises(UserError) as error:
        convert(source, tmp_path / "new" / "out", **options)
    message = str(error.value)
    assert message.startswith(f"{source.name}: ") and message.endswith(".")
    assert "\n" not in message
    assert all(name in message for name in names), message
    assert snapshot(tmp_path) == before


def at(value: float) -> Change:
    """One value in the middle replaced."""

    def spoil(array: mx.array) -> mx.array:
        flat = array.flatten()
        flat[flat.size // 3] = value
        return flat.reshape(array.shape)

    return spoil


# One tensor of each kind is enough; those that a format does not have are skipped.
KINDS = (
    *("fc.weight", "encoder.fc.weight", "context_proj.weight", "hidden_dim_adapter.proj.weight"),
    *("hidden_norm.weight", "context_norm.weight", "norm.weight", "embed_tokens.weight"),
    *("layers.1.self_attn.k_proj.weight", "layers.1.self_attn.o_proj.weight", "lm_head.weight"),
    *("layers.0.self_attn.q_norm.weight", "layers.0.mlp.down_proj.weight", "d2t"),
    *("layers.0.attention_conv.base_kernel", "layers.1.mlp_conv.kernel_projection.weight"),
    "candidate_selector.successor_codebook",
    "candidate_selector.hidden_projection.weight",
)
WHOLE: dict[str, Change] = {
    "truncated": lambda x: x[:-1],
    "with an axis more": lambda x: x[None],
    "of int8": lambda x: x.astype(mx.int8),
    "with NaN": at(float("nan")),
    "with infinity": at(-float("inf")),
    "of zeros": mx.zeros_like,
}
MAP: dict[str, Change] = {
    "truncated": lambda x: x[:-1],
    "out of range": lambda x: x + 64,
    "out of order": lambda x: x[::-1] + 8,
    "of float32": lambda x: x.astype(mx.float32),
}


def damages(stored: Tensors) -> Iterator[tuple[str, Tensors, tuple[str, ...]]]:
    """What is wrong, the tensors, and what the message must name."""
    for name in KINDS:
        if name not in stored:
            continue
        rest = {key: array for key, array in stored.items() if key != name}
        wrong = name.replace("weight", "wait") if "weight" in name else f"{name}_"
        yield f"no {name}", rest, ("lacks",)
        yield wrong, rest | {wrong: stored[name]}, ("lacks", wrong)
        for what, change in (MAP if name == "d2t" else WHOLE).items():
            if what == "of zeros" and ("kernel_projection" in name or "successor" in name):
                continue
            yield f"{name} {what}", rest | {name: change(stored[name])}, (name,)
        if stored[name].ndim == 2 and stored[name].shape[0] != stored[name].shape[1]:
            yield f"{name} transposed", rest | {name: stored[name].T}, (name, "shape")
    extras = {
        "layers.9.mlp.up_proj.weight": "layers.9.mlp.up_proj.weight",
        "classifier.weight": "classifier.weight",
        "layers.0.self_attn.k_proj.bias": "k_proj.bias",
        "layers.0.self_attn.qkv_proj.weight": "fused projections",
        "markov_head.markov_w1.weight": "DSpark's heads",
        "confidence_head.proj.weight": "DSpark's heads",
        "prefix_gru.weight_ih_l0": "Domino",
        "hidden_correction.0.weight": "DFly",
        "layers.0.self_attn.k_proj_target.weight": "DFlare",
        "layers.0.self_attn.g_proj.weight": "gated attention",
        "layers.0.self_attn.attention_sink_bias": "attention sinks",
        "hidden_dim_adapter.proj.weight": "hidden_dim_adapter.proj.weight",
    }
    if "candidate_selector.successor_codebook" in stored:
        both = "candidate_selector.successor_codebook.weight"
        extras[both] = f"successor_codebook and {both}"
    for name in sorted(extras.keys() - stored.keys()):
        yield f"{name} too", stored | {name: mx.ones((32,))}, (extras[name],)
    first, *others = stored
    yield (
        "one name with a prefix",
        {f"model.{first}": stored[first]} | {name: stored[name] for name in others},
        ("prefix 'model.'",),
    )


DAMAGES = [
    pytest.param(format_name, tensors, names, id=f"{format_name}: {what}".replace(" ", "_"))
    for format_name in CONFIGS
    for what, tensors, names in damages(make(format_name).stored)
]


@pytest.mark.parametrize(("format_name", "tensors", "names"), DAMAGES)
def test_damaged_tensors(
    tmp_path: Path, format_name: str, tensors: Tensors, names: tuple[str, ...]
) -> None:
    source = write_checkpoint(tmp_path / "source", CONFIGS[format_name](), tensors)
    refused(tmp_path, source, *names)


TENSORS: dict[str, tuple[Callable[[Tensors], object], tuple[str, ...]]] = {
    "two taps": (
        lambda w: w.update({"fc.weight": w["fc.weight"][:, :128]}),
        ("fc.weight", "target_layer_ids [1, 5, 9]", "128 inputs are 2 taps of 64, not 3"),
    ),
    "streams": (
        lambda w: w.update({"fc.weight": mx.concatenate([w["fc.weight"]] * 4, axis=1)}),
        ("768 inputs are 3 taps of 4 hyper-connection streams of 64",),
    ),
    "other inputs": (
        lambda w: w.update({"fc.weight": w["fc.weight"][:, :100]}),
        ("fc.weight has shape [64, 100]", "target_hidden_size 64"),
    ),
    "transposed": (
        lambda w: w.update({GATE: w[GATE].T}),
        (f"{GATE} has shape [64, 96]", "needs [96, 64]", "intermediate_size 96"),
    ),
    "table of another vocabulary": (
        lambda w: w.update({"embed_tokens.weight": w["fc.weight"]}),
        ("embed_tokens.weight has shape [64, 192]", "needs [64, 64]", "vocab_size 64"),
    ),
    "a map without a reduced vocabulary": (
        lambda w: w.update(d2t=mx.arange(64)),
        ("d2t that is not all zeros",),
    ),
    "half a prefix": (
        lambda w: w.update({"model.norm.weight": w.pop("norm.weight")}),
        ("1 of 25 tensors", "'model.'"),
    ),
    "both names of one tensor": (
        lambda w: w.update({"final_norm.weight": w["norm.weight"]}),
        ("both final_norm.weight and norm.weight",),
    ),
    "biases that the config denies": (
        lambda w: w.update(tiny_weights(attention_bias=True)),
        ("k_proj.bias", "and 4 more"),
    ),
    "packed": (
        lambda w: w.update({f"{GATE}_scale": w["norm.weight"]}),
        ("gate_proj is quantized in a way",),
    ),
}


@pytest.mark.parametrize("damage", TENSORS)
def test_what_is_explained(tmp_path: Path, damage: str) -> None:
    change, names = TENSORS[damage]
    weights = tiny_weights()
    change(weights)
    refused(tmp_path, write_checkpoint(tmp_path / "source", weights=weights), *names)


@pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "head_dim"])
def test_a_config_of_other_sizes(tmp_path: Path, key: str) -> None:
    config = tiny_config()
    source = write_checkpoint(tmp_path / "source", config | {key: 48}, tiny_weights())
    refused(tmp_path, source, f"{key} 48", "do not belong together")


def test_sizes_beyond_any_array(tmp_path: Path) -> None:
    config = tiny_config(target_hidden_size=2**30)
    source = write_checkpoint(tmp_path / "source", config, tiny_weights())
    refused(tmp_path, source, "sizes in config.json")


def test_too_large_for_float16(tmp_path: Path) -> None:
    weights = tiny_weights()
    weights[GATE] = at(-1e5)(weights[GATE])
    source = write_checkpoint(tmp_path / "source", weights=weights)
    refused(tmp_path, source, GATE, "float16 cannot", dtype="float16")
    convert(source, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "array", "problem"),
    [
        ("fc.weight", None, "lacks fc.weight"),
        ("more.weight", mx.ones((2, 2)), "more.weight"),
        ("norm.weight", mx.full((64,), mx.nan), "NaN"),
        ("fc.weight", mx.ones((64, 64)), "shape"),
    ],
)
def test_damaged_drafter_in_mlx_format(
    tmp_path: Path, name: str, array: mx.array | None, problem: str
) -> None:
    mlx = convert(write_checkpoint(tmp_path / "source"), tmp_path / "mlx")
    weights = tiny_weights() | {name: array}
    kept = {key: value for key, value in weights.items() if value is not None}
    mx.save_safetensors(str(mlx / "model.safetensors"), kept)
    (mlx / "model.safetensors.index.json").unlink()
    refused(tmp_path, mlx, problem, dtype="float32")
