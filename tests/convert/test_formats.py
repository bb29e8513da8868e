"""Checkpoints of every format, converted: every tensor arrives, and the drafter drafts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from formats import CONFIGS, make, vocabulary_maps, write_format
from mlx.utils import tree_flatten
from published import PLANS, RUNS, completed, plan
from support.pairs import respond, tokens_of
from support.plain import plain_greedy, random_prompt
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer
from tiny_checkpoint import (
    Tensors,
    arrays,
    assert_same,
    parsed_config,
    random_tensors,
    recorded,
    snapshot,
    tiny_config,
    tiny_weights,
    write_checkpoint,
    write_torch_file,
)

from dflash_mlx.convert import convert
from dflash_mlx.convert.detect import parse
from dflash_mlx.convert.keys import Additions
from dflash_mlx.drafter.config import DrafterConfig
from dflash_mlx.drafter.model import Drafter
from dflash_mlx.loading.loader import load_drafter, make_pair


def assert_holds(folder: Path, config: DrafterConfig, tensors: Tensors) -> Drafter:
    """Check that a converted drafter is this one, to the bit."""
    drafter = load_drafter(folder)
    assert drafter.config == config
    assert_same(dict(tree_flatten(drafter.parameters())), tensors)
    return drafter


@pytest.mark.parametrize(("shards", "own_tables"), [(1, False), (3, False), (1, True)])
@pytest.mark.parametrize("format_name", CONFIGS)
def test_every_tensor_arrives(
    tmp_path: Path, format_name: str, shards: int, own_tables: bool
) -> None:
    made = write_format(tmp_path / "source", format_name, shards, own_tables=own_tables)
    folder = convert(tmp_path / "source", tmp_path / "deep" / "out")
    assert_holds(folder, made.config, made.tensors)
    assert set(snapshot(folder)) == {
        *("README.md", "config.json", "model.safetensors", "model.safetensors.index.json"),
    }


@pytest.mark.parametrize("format_name", CONFIGS)
def test_quantized(tmp_path: Path, format_name: str) -> None:
    """Linear layers and tables; DFlash 2's kernels and selector, norms and maps stay."""
    made = write_format(tmp_path / "source", format_name)
    folder = convert(tmp_path / "source", tmp_path / "out", quantize=True, q_group_size=32)
    drafter = load_drafter(folder)
    modules, found = dict(drafter.named_modules()), dict(tree_flatten(drafter.parameters()))
    for name, array in made.tensors.items():
        kept = array.ndim != 2 or "_conv." in name or name.startswith("candidate_selector.")
        if kept:
            assert mx.array_equal(found[name], array), name
            continue
        module = modules[name.removesuffix(".weight")]
        assert isinstance(module, (nn.QuantizedLinear, nn.QuantizedEmbedding)), name
        expected = mx.quantize(array, 32, 4)
        parts = (module.weight, module.scales, module.biases)
        assert all(mx.array_equal(x, y) for x, y in zip(parts, expected, strict=True)), name


FOUR_BITS = {"quantize": True, "q_bits": 4, "q_group_size": 32}
AGAIN = [FOUR_BITS, {"dtype": "float32"}, FOUR_BITS | {"dtype": "float16"}]


@pytest.mark.parametrize("options", AGAIN, ids=["4-bit", "float32", "4-bit in float16"])
@pytest.mark.parametrize("format_name", CONFIGS)
def test_from_mlx_format_the_same_files(
    tmp_path: Path, format_name: str, options: dict[str, object]
) -> None:
    write_format(tmp_path / "source", format_name, own_tables=True)
    direct = convert(tmp_path / "source", tmp_path / "direct", **options)
    again = convert(convert(tmp_path / "source", tmp_path / "mlx"), tmp_path / "again", **options)
    assert set(snapshot(direct)) == set(snapshot(again))
    for name in ("config.json", "README.md", "model.safetensors.index.json"):
        assert (direct / name).read_text() == (again / name).read_text()
    assert_same(arrays(again), arrays(direct))


def scaled_down(config: Mapping[str, Any]) -> dict[str, Any]:
    """A published config with small dimensions; layers, taps, windows and blocks stay."""
    small = {
        key: scaled_down(value) if isinstance(value, dict) else value
        for key, value in config.items()
    }
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "v_head_dim": 16}
    sizes |= {"vocab_size": 128, "selector_rank": 8, "mask_token_id": 127, "pard_token": 127}
    small |= {key: size for key, size in sizes.items() if key in small}
    if "hidden_size" in small:
        small["intermediate_size"] = sizes["intermediate_size"]
    if heads := small.get("num_attention_heads"):
        small |= {
            "num_attention_heads": 4,
            "num_key_value_heads": max(1, 4 * small.get("num_key_value_heads", heads) // heads),
        }
    if small.get("draft_vocab_size") == 32000:
        small["draft_vocab_size"] = 24
    return small


@pytest.mark.parametrize("name", RUNS)
def test_every_published_drafter(tmp_path: Path, name: str) -> None:
    """With its own names of tensors and small dimensions."""
    raw, outside = scaled_down(completed(name)), name == "z-lab__Alpamayo-1.5-10B-DFlash"
    if name in PLANS:
        parsed, (used, _) = parse(raw, plan(name), Additions(), has_mask_file=outside)
        drafter = parsed.config
        tensors = random_tensors(drafter)
        stored = {used[key]: array for key, array in tensors.items() if key in used}
        assert len(stored) == len(used)
    else:
        # No list of tensors is known, but the config says which there are.
        drafter = parsed_config(raw)
        tensors = stored = random_tensors(drafter)
    if "d2t" in stored:
        stored = stored | vocabulary_maps(tensors["d2t"], 128)
    source = write_checkpoint(tmp_path / "source", raw, stored)
    if outside:
        write_torch_file(source / "mask_embedding.pt", tensors["mask_embedding"], 127)
    assert_holds(convert(source, tmp_path / "out"), drafter, tensors)


@pytest.mark.parametrize("format_name", CONFIGS)
def test_every_format_drafts(tmp_path: Path, format_name: str) -> None:
    """Converted, paired with a tiny target: the text is the target's."""
    # One that is narrower than its target cannot borrow the target's tables.
    made = write_format(tmp_path / "source", format_name, own_tables=format_name == "JetSpec")
    drafter = load_drafter(convert(tmp_path / "source", tmp_path / "out", dtype="float32"))
    width = made.config.target_hidden_size
    model = tiny_model(hidden_size=width, num_hidden_layers=12, vocab_size=64, head_dim=16)
    prompt = random_prompt(9, 64)
    with make_pair(model, drafter) as pair:
        responses = respond(pair, byte_tokenizer(), prompt, 16)
    assert tokens_of(responses) == plain_greedy(model, prompt, 16)


BITS = [{"quantize": True, "q_bits": bits} for bits in (2, 3, 4, 5, 6, 8)]
DTYPES = [{"dtype": dtype} for dtype in ("float16", "bfloat16", "float32")]


@pytest.mark.parametrize("options", [*BITS, *DTYPES, *(d | BITS[2] for d in DTYPES)], ids=str)
def test_every_quantization_and_dtype_drafts(tmp_path: Path, options: dict[str, object]) -> None:
    made = write_format(tmp_path / "source", "z-lab")
    folder = convert(tmp_path / "source", tmp_path / "out", **options, q_group_size=32)
    drafter = load_drafter(folder)
    if "quantize" not in options:
        dtype = getattr(mx, options["dtype"])
        assert_same(arrays(folder), {k: v.astype(dtype) for k, v in made.tensors.items()})
    model = tiny_model(hidden_size=64, num_hidden_layers=12, vocab_size=64, head_dim=16)
    model.set_dtype(drafter.dtype)
    prompt, drafts = random_prompt(9, 64), []
    with make_pair(model, drafter) as pair:
        draft = pair.drafter.draft
        pair.drafter.draft = lambda *args: drafts.append(draft(*args)) or drafts[-1]
        assert len(tokens_of(respond(pair, byte_tokenizer(), prompt, 6))) == 6
    assert all(mx.isfinite(proposal.logits).all() for proposal in drafts)


def test_variants_of_the_layout(tmp_path: Path) -> None:
    """A bias, taps wider than the drafter, an odd file name, one norm in another dtype."""
    changes = {"attention_bias": True, "target_hidden_size": 80, "head_dim": 16}
    weights = tiny_weights(**changes)
    # A bias that was never trained is zero, which is no damage.
    weights["layers.0.self_attn.o_proj.bias"] *= 0
    stored = weights | {"norm.weight": weights["norm.weight"].astype(mx.float32)}
    source = write_checkpoint(tmp_path / "source", tiny_config(**changes), stored)
    (source / "model.safetensors").rename(source / "dflash_draft_model.safetensors")
    assert_same(arrays(convert(source, tmp_path / "out")), weights)


@pytest.mark.parametrize("prefix", ["model.", "module.", "draft_model."])
def test_prefixes(tmp_path: Path, prefix: str) -> None:
    made, outside = make("speculators"), ("lm_head.weight", "d2t", "t2d")
    stored = {n if n in outside else prefix + n: array for n, array in made.stored.items()}
    source = write_checkpoint(tmp_path / "source", CONFIGS["speculators"](), stored)
    assert_same(arrays(convert(source, tmp_path / "out")), made.tensors)


def test_what_is_left_out_is_recorded(tmp_path: Path) -> None:
    made = make("speculators")
    inverse = "layers.0.self_attn.rotary_emb.inv_freq"
    stored = made.stored | {"verifier_norm.weight": mx.ones(64), inverse: mx.ones(8)}
    source = write_checkpoint(tmp_path / "source", CONFIGS["speculators"](), stored)
    folder = convert(source, tmp_path / "out")
    assert_same(arrays(folder), made.tensors)
    origin = recorded(folder)
    assert set(origin["dropped"]) == {"t2d", "verifier_norm.weight", inverse}
    assert (origin["format"], origin["tap_base"]) == ("speculators", 1)
    assert "a - k <= sliding_window" in origin["window_rule"]
    assert origin["verifier"]["name_or_path"] == "Qwen/Qwen3-8B"
    card = (folder / "README.md").read_text()
    assert "| target | Qwen/Qwen3-8B |" in card
    assert "| layers | 3, of which 2 sliding over 6 rows and 2 causal |" in card
    assert "| brings its own | head of 24 tokens |" in card


@pytest.mark.parametrize("form", ["absolute", "offsets without t2d"])
def test_other_forms_of_the_vocabulary(tmp_path: Path, form: str) -> None:
    made = make("speculators")
    if form == "absolute":
        made.stored["d2t"] = made.tensors["d2t"].astype(mx.int64)
    else:
        del made.stored["t2d"]
    source = write_checkpoint(tmp_path / "source", CONFIGS["speculators"](), made.stored)
    assert_same(arrays(convert(source, tmp_path / "out")), made.tensors)


def test_map_of_the_whole_vocabulary_says_nothing(tmp_path: Path) -> None:
    name = "speculators, whole vocabulary"
    tensors = make(name).tensors
    maps = {"d2t": mx.zeros(64, mx.int64), "t2d": mx.ones(64, mx.bool_)}
    source = write_checkpoint(tmp_path / "source", CONFIGS[name](), tensors | maps)
    folder = convert(source, tmp_path / "out")
    assert_same(arrays(folder), tensors)
    assert "d2t" in recorded(folder)["dropped"]


def test_codebooks_in_our_spelling_and_parts_that_start_from_zero(tmp_path: Path) -> None:
    tensors = make("z-lab DFlash 2").tensors
    for name in tensors:
        if name.endswith(("kernel_projection.weight", "successor_codebook.weight")):
            tensors[name] = tensors[name] * 0
    source = write_checkpoint(tmp_path / "source", CONFIGS["z-lab DFlash 2"](), tensors)
    assert_same(arrays(convert(source, tmp_path / "out")), tensors)


@pytest.mark.parametrize("below", ["all", "weights"])
def test_drafter_in_a_subfolder(tmp_path: Path, below: str) -> None:
    """A repository named after its target, with the drafter in ``dflash/``."""
    source = tmp_path / "source"
    made = write_format(source / "dflash", "z-lab", shards=2)
    for path in sorted((source / "dflash").glob("model-*.safetensors")):
        path.rename(path.with_name(f"dflash_draft_{path.name}"))
    index = source / "dflash" / "model.safetensors.index.json"
    renamed = source / "dflash" / "dflash_draft_model.safetensors.index.json"
    renamed.write_text(index.read_text().replace('"model-', '"dflash_draft_model-'))
    index.unlink()
    if below == "weights":
        (source / "dflash" / "config.json").rename(source / "config.json")
    else:
        # The target's own files are none of the drafter's.
        (source / "config.json").write_text('{"model_type": "mimo"}')
        (source / "model.safetensors").write_text("")
    folder = convert(source, tmp_path / "out")
    assert_same(arrays(folder), made.tensors)
    assert recorded(folder)["path"] == "source"
    assert all(name.startswith("dflash_draft_model-") for name in recorded(folder)["sha256"])


def test_what_the_user_added_is_recorded(tmp_path: Path) -> None:
    config = CONFIGS["ModelOpt"]()
    del config["block_size"]
    source = write_checkpoint(tmp_path / "source", config, make("ModelOpt").stored)
    added = {"block_size": 4, "attention_factor": 1.5}
    folder = convert(source, tmp_path / "out", **added)
    found = load_drafter(folder).config
    assert (found.block_size, found.rope.attention_factor) == (4, 1.5)
    assert recorded(folder)["added"] == added
