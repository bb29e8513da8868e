"""Export to z-lab's format, which the official PyTorch package has confirmed for the fixtures.

``tests/fixtures/export/make_fixtures.py`` describes these; ``check_with_torch.py`` beside it loaded
the exported checkpoints with the official classes, compared every round and recorded what it saw.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from formats import DFLASH2
from support.tiny import tiny_model
from support.variants import draft_of, drafter_of
from tiny_checkpoint import (
    arrays,
    assert_same,
    parsed_config,
    snapshot,
    tiny_config,
    tiny_weights,
    write_checkpoint,
)

from dflash_mlx.convert import convert, export_drafter
from dflash_mlx.convert.export import zlab_config
from dflash_mlx.drafter.config import FULL, SLIDING, DrafterConfig
from dflash_mlx.drafter.model import Drafter
from dflash_mlx.errors import UserError
from dflash_mlx.loading.loader import load_drafter, make_pair
from dflash_mlx.target.target import Target

FIXTURES = Path(__file__).parent.parent / "fixtures" / "export"
CASES = sorted(path.parent.name for path in FIXTURES.glob("*/answers.safetensors"))
CONFIRMED = json.loads((FIXTURES / "confirmed.json").read_text())


def config_of(folder: Path) -> DrafterConfig:
    return DrafterConfig.from_dict(json.loads((folder / "config.json").read_text()))


@pytest.mark.parametrize("case", CASES)
def test_export_is_the_one_that_was_confirmed(tmp_path: Path, case: str) -> None:
    folder = export_drafter(load_drafter(FIXTURES / case / "mlx"), tmp_path / "out")
    confirmed = FIXTURES / case / "exported"
    for file in ("config.json", "README.md"):
        assert (folder / file).read_text() == (confirmed / file).read_text()
    assert_same(arrays(folder), arrays(confirmed))


@pytest.mark.parametrize("case", CASES)
def test_the_confirmation_is_of_these_files(case: str) -> None:
    assert CONFIRMED[case]["largest_difference"] <= 1e-4
    for file, digest in CONFIRMED[case]["sha256"].items():
        assert hashlib.sha256((FIXTURES / case / file).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("case", CASES)
def test_mlx_still_answers_what_was_confirmed(case: str) -> None:
    drafter = load_drafter(FIXTURES / case / "mlx")
    drafter.stack_context()
    answers = mx.load(str(FIXTURES / case / "answers.safetensors"))
    context, offset = drafter.make_context(mx.array([0], mx.int32)), 0
    for number in range(CONFIRMED[case]["rounds"]):
        features, embeddings = (answers[f"{number}.{key}"] for key in ("features", "embeddings"))
        rows, block = features.shape[1], embeddings.shape[1]
        for cache in context:
            cache.reserve(offset + rows + block)
        drafter.write_context(features, context)
        offset += rows
        for cache in context:
            cache.offset = mx.array([offset])
        hidden = drafter(embeddings, context)
        assert mx.abs(hidden - answers[f"{number}.hidden"]).max().item() <= 1e-4


@pytest.mark.parametrize("shards", [1, 2])
def test_there_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    """z-lab to MLX to z-lab to MLX: the same config and the same weights each time."""
    if shards > 1:
        monkeypatch.setattr(
            "dflash_mlx.convert.export.make_shards",
            lambda weights: [dict(list(weights.items())[i::2]) for i in range(2)],
        )
    config = tiny_config(rope_scaling={"rope_type": "linear", "factor": 4.0})
    first = convert(write_checkpoint(tmp_path / "source", config), tmp_path / "mlx")
    back = export_drafter(load_drafter(first), tmp_path / "back")
    assert len(list(back.glob("*.safetensors"))) == shards
    again = convert(back, tmp_path / "again")
    assert config_of(again) == config_of(first)
    assert_same(arrays(again), tiny_weights())


@pytest.mark.parametrize("case", [case for case in CASES if case != "quantized"])
def test_back_from_what_was_confirmed(tmp_path: Path, case: str) -> None:
    again = convert(FIXTURES / case / "exported", tmp_path / "again")
    assert_same(arrays(again), arrays(FIXTURES / case / "mlx"))
    assert config_of(again) == config_of(FIXTURES / case / "mlx")


def test_dtype(tmp_path: Path) -> None:
    """A quantized drafter widened before it is dequantized: rounded nowhere."""
    source = write_checkpoint(tmp_path / "source")
    folder = convert(source, tmp_path / "mlx", quantize=True, q_bits=8, q_group_size=32)
    packed = arrays(folder)
    weight, scales, biases = (packed[f"fc.{part}"] for part in ("weight", "scales", "biases"))
    back = export_drafter(load_drafter(folder), tmp_path / "back", dtype="float32")
    expected = mx.dequantize(
        weight, scales.astype(mx.float32), biases.astype(mx.float32), group_size=32, bits=8
    )
    assert mx.array_equal(arrays(back)["fc.weight"], expected)
    assert json.loads((back / "config.json").read_text())["dtype"] == "float32"
    with pytest.raises(UserError, match="int8"):
        export_drafter(load_drafter(folder), tmp_path / "other", dtype="int8")


def test_a_stacked_drafter_is_not_exported(tmp_path: Path) -> None:
    drafter = load_drafter(FIXTURES / "plain" / "mlx")
    drafter.stack_context()
    with pytest.raises(ValueError, match="stacked"):
        export_drafter(drafter, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_card_says_where_it_comes_from(tmp_path: Path) -> None:
    drafter = Drafter(parsed_config(tiny_config()))
    source = {"repo": "z-lab/Tiny", "license": "mit"}
    card = (export_drafter(drafter, tmp_path / "out", source=source) / "README.md").read_text()
    assert "\nbase_model: z-lab/Tiny\n" in card and "\nlicense: mit\n" in card
    assert "DFlashDraftModel.from_pretrained" in card


SLIDING_LAYERS = {"layer_types": (SLIDING, FULL), "sliding_window": 8}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "width": ({"target_hidden_size": 48}, "target_hidden_size"),
    "no taps": ({"target_layer_ids": ()}, "target_layer_ids"),
    "depth": ({"num_target_layers": None}, "num_target_layers"),
    "mask": ({"has_mask_embedding": True}, "has_mask_embedding"),
    "table": ({"has_embed_tokens": True, "embed_scale": "raw"}, "has_embed_tokens"),
    "head": ({"has_lm_head": True}, "has_lm_head"),
    "d2t": ({"has_lm_head": True, "draft_vocab_size": 32}, "draft_vocab_size"),
    "adapter": ({"has_hidden_dim_adapter": True}, "has_hidden_dim_adapter"),
    "shift": ({"sample_from_anchor": True}, "sample_from_anchor"),
    "window": (SLIDING_LAYERS | {"window_rule": "anchor"}, "window_rule"),
    "causal": (SLIDING_LAYERS | {"causal_layers": (False, True)}, "causal_layers"),
    "raw": ({"embed_scale": "raw"}, "embed_scale"),
    "conv": (
        {"conv_kernel_size": 2, "conv_group_size": 8, "embed_scale": "raw"},
        "selector_rank",
    ),
    "selector": ({"selector_rank": 8, "selector_top_k": 4}, "selector_rank"),
    "passes": ({"draft_passes": 2, "draft_prefix": 4}, "draft_passes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_format_cannot_express(tmp_path: Path, case: str) -> None:
    changes, name = REFUSED[case]
    config = replace(parsed_config(tiny_config()), **changes)
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=name) as error:
        export_drafter(Drafter(config), tmp_path / "out")
    assert len(str(error.value).splitlines()) == 1
    assert snapshot(tmp_path) == before


GEMMA = {"repo": "z-lab/gemma-4-31B-it-DFlash"}


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("family", ["gemma", "gemma4_text"])
def test_scaled_rows(tmp_path: Path, family: str, dtype: mx.Dtype) -> None:
    """Gemma scales its rows and the official loop does not: the factor is in the config."""
    model = tiny_model(family)
    depth = len(Target(model).layers)
    drafters = [drafter_of(num_target_layers=depth) for _ in range(2)]
    for module in (model, *drafters):
        module.set_dtype(dtype)
    exported = export_drafter(drafters[0], tmp_path / "exported", source=GEMMA)
    nested = json.loads((exported / "config.json").read_text())["dflash_config"]
    factor = nested["input_embedding_scale"]
    # F.embedding(ids, weight) * factor, which PyTorch multiplies in float32 and rounds once.
    target, ids = Target(model), mx.array([[5, 0, 17]])
    rows = target.embedding(ids).astype(mx.float32) * mx.array(factor, mx.float32)
    assert mx.array_equal(rows.astype(dtype), target.embed(ids))
    # The exported one comes back as a drafter of plain rows, and drafts the same.
    again = load_drafter(convert(exported, tmp_path / "again", allow_final_tap=True))
    assert (again.config.embed_scale, again.config.input_embedding_scale) == ("raw", factor)
    drafts = []
    for drafter in (drafters[1], again):
        with make_pair(model, drafter) as pair:
            drafts.append(draft_of(pair).logits)
    assert mx.array_equal(*drafts)


@pytest.mark.parametrize(
    ("changes", "source", "scaled"),
    [
        ({}, GEMMA, True),
        ({}, {"path": "my-Gemma-drafter"}, True),
        ({}, {"verifier": {"name_or_path": "google/gemma-3-4b-it"}}, True),
        ({"vocab_size": 262144}, {}, True),
        ({"final_logit_softcapping": 30.0}, {}, True),
        ({"embed_scale": "raw"} | DFLASH2, GEMMA, False),
        ({}, {"repo": "z-lab/Qwen3-4B-DFlash-b16"}, False),
        ({}, None, False),
    ],
)
def test_which_drafters_are_given_scaled_rows(
    tmp_path: Path, changes: dict[str, Any], source: dict[str, Any] | None, scaled: bool
) -> None:
    config = replace(parsed_config(tiny_config()), **changes)
    folder = export_drafter(Drafter(config), tmp_path / "out", source=source)
    nested = json.loads((folder / "config.json").read_text())["dflash_config"]
    assert nested.get("input_embedding_scale") == (8.0 if scaled else None)


def test_rotated_neighbours() -> None:
    config = parsed_config(tiny_config())
    with pytest.raises(UserError, match=r"rope\.traditional"):
        zlab_config(replace(config, rope=replace(config.rope, traditional=True)))


@pytest.mark.parametrize(
    ("layers", "causal", "is_causal"),
    [
        ((FULL, FULL), (False, False), None),
        ((FULL, FULL), (True, True), True),
        ((SLIDING, SLIDING), (False, False), False),
        ((SLIDING, SLIDING), (True, True), True),
        ((SLIDING, FULL), (True, False), None),
        ((SLIDING, FULL), (False, False), False),
        ((SLIDING, FULL), (True, True), True),
    ],
)
def test_causality(
    layers: tuple[str, ...], causal: tuple[bool, ...], is_causal: bool | None
) -> None:
    window = 8 if SLIDING in layers else None
    config = replace(
        parsed_config(tiny_config()),
        layer_types=layers,
        causal_layers=causal,
        sliding_window=window,
    )
    exported = zlab_config(config)
    assert exported.get("is_causal") == is_causal
    # The official rule, applied to what was written.
    found = [
        kind == "sliding_attention" if is_causal is None else is_causal
        for kind in exported["layer_types"]
    ]
    assert tuple(found) == causal


def test_destination_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="already exists"):
        export_drafter(Drafter(parsed_config(tiny_config())), tmp_path)
