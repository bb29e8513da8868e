"""Each of the doctor's checks, where all is well and where it is not."""

import json
import os
import time
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from support.folders import save_drafter, save_target
from support.launches import Launches
from support.tiny import SIZES, tiny_model

from dflash_mlx.engine import choose
from dflash_mlx.kernels import block_heads, context_kv
from dflash_mlx.measure.difference import Difference
from dflash_mlx.measure.doctor import blas, caches, fit, system, trial


def test_machine_is_described():
    found = system.check_machine()
    assert found.status == "ok" and "GB of memory" in found.text
    assert found.data["memory"] > 0 and 0 < found.data["free"] <= found.data["memory"]


def test_python_for_another_processor_is_a_fault(monkeypatch):
    monkeypatch.setattr(system.sys, "platform", "darwin")
    monkeypatch.setattr(system.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(system, "free_memory", lambda: None)
    found = system.check_machine()
    assert found.status == "fault" and "arm64" in found.text and "are free" not in found.text


def test_installed_packages_fit():
    found = system.check_packages()
    assert found.status == "ok" and {"mlx", "mlx-lm", "numpy"} <= set(found.data)
    assert "pytest" not in found.data


def test_packages_that_do_not_fit(monkeypatch):
    def old(name: str) -> str:
        if name == "tqdm":
            raise system.PackageNotFoundError(name)
        return "0.1" if name == "mlx-lm" else real(name)

    real = system.version
    monkeypatch.setattr(system, "version", old)
    found = system.check_packages()
    assert found.status == "fault"
    assert "mlx-lm 0.1 is installed, but <0.33,>=0.32.2 is needed" in found.text
    assert "tqdm is missing" in found.text


def test_no_metal_is_no_fault_and_worth_a_word_on_a_mac(monkeypatch):
    monkeypatch.setattr(system, "on_metal", lambda: False)
    monkeypatch.setattr(system.sys, "platform", "linux")
    assert system.check_backend().status == "ok"
    monkeypatch.setattr(system.sys, "platform", "darwin")
    found = system.check_backend()
    assert found.status == "advice" and "virtual machine" in found.text


def test_metal_is_described(monkeypatch):
    info = {"device_name": "A GPU", "max_recommended_working_set_size": 20_000_000_000}
    monkeypatch.setattr(system, "on_metal", lambda: True)
    monkeypatch.setattr(system.mx, "device_info", lambda: info)
    found = system.check_backend()
    assert found.status == "ok" and "A GPU" in found.text and "20.0 GB" in found.text


def test_device_that_does_not_compute(monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("no device")

    monkeypatch.setattr(system.mx, "eval", broken)
    found = system.check_backend()
    assert found.status == "fault" and "no device" in found.text


@pytest.mark.parametrize(("ours", "status"), [(3.0, "advice"), (90.0, "ok"), (300.0, "ok")])
def test_blas_is_judged_by_its_speed(ours, status, monkeypatch):
    monkeypatch.setattr(blas.sys, "platform", "linux")
    monkeypatch.setattr(blas.mx, "default_device", lambda: mx.Device(mx.cpu))
    monkeypatch.setattr(blas, "product_rates", lambda: (ours, 100.0))
    found = blas.check_blas()
    assert found.status == status and f"{ours:.0f} GFLOP/s" in found.text
    assert ("LD_PRELOAD=libopenblas.so.0" in found.text) is (status == "advice")


def test_blas_is_measured():
    ours, numpys = blas.product_rates()
    assert ours > 0 and numpys > 0


def test_blas_is_no_question_elsewhere(monkeypatch):
    monkeypatch.setattr(blas.sys, "platform", "darwin")
    assert blas.check_blas() is None


def test_tiny_generation():
    kernels, generation = trial.check_trial()
    assert (kernels.status, generation.status) == ("ok", "ok")
    assert "48 tokens" in generation.text and "context K/V" in kernels.text


def test_tiny_text_wanders():
    with trial.tiny_pair() as pair:
        text = trial.emit(pair, draft=False)
    assert len(text) == 48 and len(set(text)) > 8


def test_lossy_round_is_a_fault(monkeypatch):
    def accept_everything(drafts, targets):
        tokens = mx.concatenate([drafts, targets[:, -1:]], axis=1)
        return tokens, mx.full((1,), drafts.shape[1], mx.int32)

    monkeypatch.setattr(choose, "accept_equal", accept_everything)
    _, generation = trial.check_trial()
    assert generation.status == "fault" and "behind the best" in generation.text


def test_near_tie_is_no_fault(monkeypatch):
    monkeypatch.setattr(Difference, "near_tie", True)
    monkeypatch.setattr(trial, "emit", lambda pair, draft: [1, 2 if draft else 3])
    _, generation = trial.check_trial()
    assert generation.status == "ok" and "as good as equal" in generation.text


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_generation_that_fails_is_a_fault(kind, monkeypatch):
    def broken(*_: object) -> None:
        raise kind("out of order")

    monkeypatch.setattr(trial, "emit", broken)
    (generation,) = trial.check_trial()
    assert generation.status == "fault" and "out of order" in generation.text


@pytest.mark.parametrize(("broken", "status"), [("nothing", "ok"), ("context", "advice")])
def test_kernels_that_cannot_be_built(broken, status, monkeypatch):
    monkeypatch.setattr(mx.fast, "metal_kernel", Launches(broken=broken))
    for module in (context_kv, block_heads):
        monkeypatch.setattr(module, "on_metal", lambda: True)
    kernels, generation = trial.check_trial()
    assert kernels.status == status and generation.status == "ok"
    assert ("cannot be built" in kernels.text) is (status == "advice")
    assert ("one launch" in kernels.text) is (status == "ok")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "dflash-mlx"


def test_own_cache_and_its_size(cache):
    assert "nothing is there yet" in caches.check_own_cache().text
    (cache / "drafters").mkdir(parents=True)
    (cache / "drafters" / "weights").write_bytes(bytes(1000))
    found = caches.check_own_cache()
    assert found.status == "ok" and found.data == {"folder": str(cache), "size": 1000}


def test_leftovers_are_listed_and_removed_only_when_asked(cache):
    drafters = cache / "drafters"
    old, new = drafters / ".a.0123abcd.partial", drafters / ".b.0123abcd.partial"
    fetched, kept = cache / ".fetching-x", drafters / "finished"
    for folder in (old, new, fetched, kept):
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(bytes(10))
    yesterday = time.time() - 25 * 3600
    for folder in (old, fetched, kept):
        for path in (folder / "weights", folder):
            os.utime(path, (yesterday, yesterday))
    found = caches.check_leftovers(clean=False)
    assert found.status == "advice" and "--clean" in found.text
    assert found.data == {"folders": sorted([str(fetched), str(old)]), "size": 20}
    assert old.exists() and fetched.exists()
    assert caches.check_leftovers(clean=True).status == "ok"
    assert not old.exists() and not fetched.exists() and new.exists() and kept.exists()
    assert caches.check_leftovers(clean=True) is None


def test_folder_that_somebody_works_in_is_left_alone(cache):
    folder = cache / ".a.0123abcd.partial"
    folder.mkdir(parents=True)
    os.utime(folder, (0, 0))
    assert caches.leftovers(cache) == [folder]
    (folder / "weights").write_bytes(b"")
    os.utime(folder, (0, 0))
    assert caches.leftovers(cache) == []


def test_no_hub_cache_yet(tmp_path, monkeypatch):
    def absent() -> None:
        raise caches.CacheNotFound("absent", cache_dir=tmp_path)

    monkeypatch.setattr(caches, "scan_cache_dir", absent)
    found = caches.check_hub_cache()
    assert found.status == "ok" and "nothing was downloaded" in found.text


@pytest.fixture
def models(tmp_path: Path) -> dict[str, tuple[str, None]]:
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "drafter")
    return {
        "target": (str(tmp_path / "target"), None),
        "drafter": (str(tmp_path / "drafter"), None),
    }


def test_pair_that_fits(models, tmp_path):
    found = fit.check_fit(models, 1000)
    files = [*tmp_path.rglob("*.safetensors")]
    weights = sum(file.stat().st_size for file in files)
    per_token = sum(2 * layers * 2 * 8 * 2 for layers in (3, 2))
    assert found.status == "ok" and len(files) == 2
    assert found.data["needed"] == weights + 1000 * per_token


def test_a_drafter_in_the_targets_folder_is_counted_as_itself(models):
    apart = fit.check_fit(models, 1000)
    target, drafter = (Path(name) for name, _ in models.values())
    drafter.rename(target / "dflash")
    together = fit.check_fit({what: (str(target), None) for what in models}, 1000)
    assert together == apart
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


def test_cache_that_the_config_does_not_tell():
    assert fit.cache_bytes({}) is None and fit.cache_bytes(SIZES | {"kv_lora_rank": 8}) is None


WRONG = [
    {"head_dim": "8"},
    {"head_dim": None, "hidden_size": None},
    {"num_hidden_layers": [3]},
    {"num_key_value_heads": {}, "num_attention_heads": "4"},
    {"text_config": "text"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_config_that_is_no_targets_is_one_sentence(wrong, models):
    file = Path(models["target"][0]) / "config.json"
    config = json.loads(file.read_text()) | wrong
    file.write_text(json.dumps(config if "text_config" not in wrong else wrong))
    found = fit.check_fit(models, 10)
    assert found.status == "ok" and "whose size its config does not tell" in found.text


def test_model_that_is_not_here_is_not_downloaded(models, monkeypatch):
    def download(*_: object, **__: object) -> None:
        raise AssertionError("the doctor downloads nothing")

    monkeypatch.setattr("dflash_mlx.loading.hub.snapshot_download", download)
    monkeypatch.setattr("socket.socket", download)
    for name in ("org/model", "./none", "not a name"):
        found = fit.check_fit(models | {"drafter": (name, None)}, 10)
        assert found.status == "advice" and "is not on this machine" in found.text


def test_model_that_is_here_in_part(models):
    folder = Path(models["target"][0])
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = fit.check_fit(models, 10)
    assert found.status == "advice" and "lacks model-2.safetensors" in found.text
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "has no weight_map" in fit.check_fit(models, 10).text
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").unlink()
    assert "no weights" in fit.check_fit(models, 10).text
    (folder / "config.json").unlink()
    assert "no config.json" in fit.check_fit(models, 10).text
