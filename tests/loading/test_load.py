"""Loading: what a user may get wrong is one sentence, and leaves no model tapped."""

import json
from pathlib import Path

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.models.cache import make_prompt_cache
from support.folders import save_drafter, save_target
from support.plain import plain_greedy
from support.tiny import tiny_model

import dflash_mlx
from dflash_mlx.errors import UserError
from dflash_mlx.loading import loader as loading
from dflash_mlx.loading.loader import load_drafter, make_pair


@pytest.fixture
def target(tmp_path: Path) -> Path:
    save_target(tmp_path / "target")
    return tmp_path / "target"


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    save_drafter(tmp_path / "drafter")
    return tmp_path / "drafter"


def test_pair_generates_what_the_target_alone_does(target, drafter):
    model, tokenizer = dflash_mlx.load(target, draft_model=drafter)
    prompt = tokenizer.encode("hello there")
    responses = list(dflash_mlx.stream_generate(model, tokenizer, prompt, 30, block_size=8))
    alone, _ = mlx_lm.load(str(target))
    assert [r.token for r in responses] == plain_greedy(alone, prompt, len(responses))
    assert responses[0].block_size == 8


def test_target_alone_decodes_plainly(target):
    model, tokenizer = dflash_mlx.load(target)
    *_, last = dflash_mlx.stream_generate(model, tokenizer, "hello", 9)
    assert dict(last.statistics.rounds) == {1: 9}


def test_mlx_lm_takes_the_pair_and_decodes_plainly(target, drafter):
    pair, tokenizer = dflash_mlx.load(target, draft_model=drafter)
    alone, _ = mlx_lm.load(str(target))
    cache = make_prompt_cache(pair)
    text = mlx_lm.generate(pair, tokenizer, "hello", max_tokens=9, prompt_cache=cache)
    assert text == mlx_lm.generate(alone, tokenizer, "hello", max_tokens=9)
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = pair.nonesuch
    # The cache goes on with ours as well.
    assert len(dflash_mlx.generate(pair, tokenizer, "!", prompt_cache=cache, max_tokens=4)) > 0


def test_another_name_of_a_family(target, drafter):
    # mlx-lm runs a mistral as a llama.
    config = json.loads((target / "config.json").read_text()) | {"model_type": "mistral"}
    (target / "config.json").write_text(json.dumps(config))
    model, tokenizer = dflash_mlx.load(target, draft_model=drafter)
    tokens = [
        r.token for r in dflash_mlx.stream_generate(model, tokenizer, "hello", 9, block_size=8)
    ]
    assert tokens == plain_greedy(model.model, tokenizer.encode("hello"), 9)


def test_context_length_comes_from_the_config(target):
    config = json.loads((target / "config.json").read_text()) | {"max_position_embeddings": 33}
    (target / "config.json").write_text(json.dumps(config))
    model, tokenizer = dflash_mlx.load(target)
    *_, last = dflash_mlx.stream_generate(model, tokenizer, "hello", -1)
    assert last.generation_tokens == 33 - len("hello")
    assert last.finish_reason == "length"


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("config", "length", "ends"),
    [
        ({"max_position_embeddings": 40960}, 40960, True),
        ({"max_position_embeddings": 40960, "rope_scaling": YARN}, 131072, True),
        ({"max_position_embeddings": 163840, "rope_scaling": YARN}, 163840, True),
        (
            {"max_position_embeddings": 8192, "rope_scaling": {"type": "yarn", "factor": 2}},
            16384,
            True,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "llama3", "factor": 32},
            },
            131072,
            True,
        ),
        (
            {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4}},
            4096,
            False,
        ),
        (
            {"text_config": {"max_position_embeddings": 40960, "rope_parameters": YARN}},
            131072,
            True,
        ),
        ({}, None, False),
    ],
)
def test_the_context_counts_its_scaling(config, length, ends):
    assert loading.context_length(config) == (length, ends)


def test_beyond_a_length_that_is_not_certain_is_warned_of(target):
    scaled = {"max_position_embeddings": 33, "rope_scaling": {"type": "linear", "factor": 4.0}}
    config = json.loads((target / "config.json").read_text()) | scaled
    (target / "config.json").write_text(json.dumps(config))
    model, tokenizer = dflash_mlx.load(target)
    with pytest.warns(UserWarning, match="40 tokens .* is 33"):
        *_, last = dflash_mlx.stream_generate(model, tokenizer, "a" * 40, 3)
    assert last.generation_tokens == 3


def test_tokenizer_config_is_passed_on(target):
    _, tokenizer = dflash_mlx.load(target, tokenizer_config={"eos_token": "!"})
    assert tokenizer.eos_token == "!"


# Beside the tokenizer's own, which is 256.
ENDS = {
    "tokenizer": ({}, {}, set()),
    "config": ({"eos_token_id": 104}, {}, {104}),
    "list in the config": ({"eos_token_id": [104, 105]}, {}, {104, 105}),
    "generation config": ({"eos_token_id": 104}, {"eos_token_id": [256, 105]}, {105}),
}


@pytest.mark.parametrize(("config", "generation", "ends"), ENDS.values(), ids=ENDS)
def test_a_text_ends_where_the_targets_files_say(config, generation, ends, target):
    config = json.loads((target / "config.json").read_text()) | config
    (target / "config.json").write_text(json.dumps(config))
    (target / "generation_config.json").write_text(json.dumps(generation))
    model, tokenizer = dflash_mlx.load(target)
    for token in (104, 105, 256):
        bias = {token: 1000.0}
        *_, last = dflash_mlx.stream_generate(model, tokenizer, "a", 5, logit_bias=bias)
        expected = (1, "stop") if token in ends | {256} else (5, "length")
        assert (last.generation_tokens, last.finish_reason) == expected


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="about the CPU backend")
def test_16_bit_on_the_cpu_is_warned_of(target):
    weights = mx.load(str(target / "model.safetensors"))
    narrow = {k: w.astype(mx.bfloat16) for k, w in weights.items()}
    mx.save_safetensors(str(target / "model.safetensors"), narrow, {"format": "mlx"})
    with pytest.warns(UserWarning, match="bfloat16 on the CPU"):
        dflash_mlx.load(target)


def refused(*args: object, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        dflash_mlx.load(*args, **options)
    message = str(caught.value)
    assert "\n" not in message.strip() and len(message) < 600
    return message


def test_no_such_folder(tmp_path):
    assert "no folder" in refused(tmp_path / "none")
    assert "no folder" in refused("./none")


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(tmp_path / "file")


def test_not_a_hub_id():
    assert "neither a folder nor a valid Hub id" in refused("two words")


def test_revision_of_a_folder(target):
    assert "revision" in refused(target, revision="main")


def test_revision_without_target():
    assert "without a target" in refused(revision="main")


def test_the_embedded_target_with_another_drafter(target, drafter, monkeypatch):
    monkeypatch.setattr(loading, "embedded_target", lambda: target)
    pair, _ = dflash_mlx.load(draft_model=drafter)
    assert pair.drafter is not None


def test_draft_revision_without_drafter(target):
    assert "without a draft model" in refused(target, draft_revision="main")


def test_folder_without_config(target, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "config.json" in refused(tmp_path / "empty")
    assert "config.json" in refused(target, draft_model=tmp_path / "empty")


def test_adapter_folder_missing(target, tmp_path):
    assert "no adapter folder" in refused(target, adapter_path=tmp_path / "none")


@pytest.mark.parametrize("part", ["target", "drafter"])
def test_truncated_weights(part, target, drafter):
    file = (target if part == "target" else drafter) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert part in refused(target, draft_model=drafter)


@pytest.mark.parametrize("part", ["target", "drafter"])
def test_config_that_is_not_json(part, target, drafter):
    ((target if part == "target" else drafter) / "config.json").write_text("{")
    assert part in refused(target, draft_model=drafter)


@pytest.mark.parametrize("part", ["target", "drafter"])
def test_weights_missing(part, target, drafter):
    ((target if part == "target" else drafter) / "model.safetensors").unlink()
    assert part in refused(target, draft_model=drafter)


@pytest.mark.parametrize("content", ["[]", "null", "{}"])
def test_config_that_says_nothing(target, content):
    (target / "config.json").write_text(content)
    refused(target)


def test_what_nobody_expected_says_so(target):
    config = json.loads((target / "config.json").read_text()) | {"num_attention_heads": 0}
    (target / "config.json").write_text(json.dumps(config))
    message = refused(target)
    assert "target" in message and "ZeroDivisionError" in message and "--debug" in message


def test_a_broken_tokenizer_is_named(target):
    (target / "tokenizer.json").write_text("{")
    assert "tokenizer" in refused(target)


def test_drafter_given_as_target(drafter):
    assert "holds a drafter" in refused(drafter)


@pytest.mark.parametrize("architecture", ["DFlashDraftModel", "DFlash2DraftModel"])
def test_checkpoint_of_a_drafter_given_as_target(architecture, target):
    config = json.loads((target / "config.json").read_text()) | {"architectures": [architecture]}
    (target / "config.json").write_text(json.dumps(config))
    assert "holds a drafter" in refused(target)


def test_drafter_with_half_a_quantization(target, drafter):
    config = json.loads((drafter / "config.json").read_text()) | {"quantization": {"bits": 4}}
    (drafter / "config.json").write_text(json.dumps(config))
    assert "drafter" in refused(target, draft_model=drafter)


def test_drafter_that_declares_a_quantization_and_has_none(target, drafter):
    declared = {"quantization": {"group_size": 32, "bits": 4}}
    config = json.loads((drafter / "config.json").read_text()) | declared
    (drafter / "config.json").write_text(json.dumps(config))
    message = refused(target, draft_model=drafter)
    assert "declares" in message and "'bits': 4" in message and "none of its weights" in message


@pytest.mark.parametrize(
    ("ids", "found"),
    [([*range(29), 260], "[260]"), ([-1, *range(29)], "[-1]"), ([5, *range(29)], "only 29")],
)
def test_drafter_with_wrong_ids(target, tmp_path, ids, found):
    save_drafter(tmp_path / "reduced", has_lm_head=True, draft_vocab_size=30)
    weights = mx.load(str(tmp_path / "reduced" / "model.safetensors"))
    weights["d2t"] = mx.array(ids, mx.int32)
    mx.save_safetensors(str(tmp_path / "reduced" / "model.safetensors"), weights)
    message = refused(target, draft_model=tmp_path / "reduced")
    assert "d2t" in message and found in message


def test_adapter_without_a_config(target, tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    assert "adapter" in refused(target, adapter_path=tmp_path / "adapter")


def test_target_of_an_unknown_kind(target):
    config = json.loads((target / "config.json").read_text()) | {"model_type": "nonesuch"}
    (target / "config.json").write_text(json.dumps(config))
    assert "nonesuch" in refused(target)


def test_code_in_a_target_needs_trust(target):
    config = json.loads((target / "config.json").read_text()) | {"model_file": "trap.py"}
    (target / "config.json").write_text(json.dumps(config))
    (target / "trap.py").write_text("raise SystemExit('code was run')")
    assert "trust_remote_code" in refused(target)


def test_drafter_for_another_target(target, tmp_path):
    save_drafter(tmp_path / "other", num_target_layers=7)
    message = refused(target, draft_model=tmp_path / "other")
    assert "7 layers" in message and "has 3" in message


def test_refused_drafter_leaves_the_model_as_it_was(tmp_path):
    save_drafter(tmp_path / "other", num_target_layers=7)
    model = tiny_model("llama", vocab_size=260)
    classes = [type(layer) for layer in model.layers]
    with pytest.raises(UserError):
        make_pair(model, load_drafter(tmp_path / "other"))
    assert [type(layer) for layer in model.layers] == classes
