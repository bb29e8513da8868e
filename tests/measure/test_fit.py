"""Whether a pair fits in memory, told from files."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from support.folders import given, save_drafter, save_target
from support.tiny import SIZES, tiny_model

from dflash_mlx.measure import fit
from dflash_mlx.measure.given_pair import Given


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Given]:
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "drafter")
    return given(target=tmp_path / "target", drafter=tmp_path / "drafter")


def test_pair_that_fits(models, tmp_path):
    found = fit.check_fit(models, 1000)
    files = [*tmp_path.rglob("*.safetensors")]
    weights = sum(file.stat().st_size for file in files)
    per_token = sum(2 * layers * 2 * 8 * 2 for layers in (3, 2))
    assert found.status == "ok" and len(files) == 2
    assert found.data["needed"] == weights + 1000 * per_token


def test_a_drafter_in_the_targets_folder_is_counted_as_itself(models):
    apart = fit.check_fit(models, 1000)
    target, drafter = models["target"].folder, models["drafter"].folder
    drafter.rename(target / "dflash")
    assert fit.check_fit(given(target=target, drafter=target), 1000) == apart
    # The config may be above the weights.
    (target / "dflash").rename(drafter)
    (drafter / "dflash").mkdir()
    for file in drafter.glob("model.safetensors*"):
        file.rename(drafter / "dflash" / file.name)
    assert fit.check_fit(models, 1000) == apart


@pytest.mark.parametrize(("spare", "status"), [(-1, "fault"), (1, "advice")])
def test_pair_that_does_not_fit_or_nearly_not(spare, status, models, monkeypatch):
    needed = fit.check_fit(models, 1000).data["needed"]
    monkeypatch.setattr(fit, "memory_limit", lambda: needed + spare)
    found = fit.check_fit(models, 1000)
    assert found.status == status and ("do not fit" in found.text) is (status == "fault")


def test_limit_is_the_gpus(monkeypatch):
    monkeypatch.setattr(fit, "on_metal", lambda: True)
    monkeypatch.setattr(fit.mx, "device_info", lambda: {"max_recommended_working_set_size": 5})
    assert fit.memory_limit() == 5


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3_moe"])
def test_cache_bytes_are_those_of_the_cache(family):
    model, tokens = tiny_model(family), 256
    cache = make_prompt_cache(model)
    model(mx.zeros((1, tokens), mx.int32), cache=cache)
    held = sum(c.keys.nbytes + c.values.nbytes for c in cache)
    config = SIZES | {"dtype": "float32", "num_hidden_layers": len(model.layers)}
    assert fit.cache_bytes(config) * tokens == held
    assert fit.cache_bytes({"text_config": config}) * tokens == held
    assert fit.cache_bytes(config | {"dtype": "bfloat16"}) * tokens * 2 == held


@pytest.mark.parametrize(
    "wrong",
    [
        {"head_dim": "8"},
        {"head_dim": None, "hidden_size": None},
        {"num_hidden_layers": [3]},
        {"num_key_value_heads": {}, "num_attention_heads": "4"},
        {"kv_lora_rank": 8},
        None,
    ],
    ids=str,
)
def test_a_cache_whose_size_the_config_does_not_tell(wrong, models):
    file = models["target"].folder / "config.json"
    config = json.loads(file.read_text()) | wrong if wrong else {"text_config": "text"}
    file.write_text(json.dumps(config))
    found = fit.check_fit(models, 10)
    assert found.status == "ok" and "whose size its config does not tell" in found.text


def test_model_that_is_not_here_is_said(models):
    found = fit.check_fit(models | {"drafter": Given("org/model", None)}, 10)
    assert found.status == "advice" and "org/model is not on this machine" in found.text


def test_model_that_is_here_in_part(models):
    folder = models["target"].folder
    index = folder / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}})
    )
    found = fit.check_fit(models, 10)
    assert found.status == "advice" and "lacks model-2" in found.text
    index.write_text("{}")
    assert "weight_map" in fit.check_fit(models, 10).text
    index.unlink()
    (folder / "model.safetensors").unlink()
    assert "no weights" in fit.check_fit(models, 10).text
    (folder / "config.json").unlink()
    assert "no config.json" in fit.check_fit(models, 10).text
