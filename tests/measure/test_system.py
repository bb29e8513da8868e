"""The doctor's look at machine, packages, device, products and caches, and its own generation."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest
from support.launches import Launches, as_on_metal
from support.pairs import accept_everything

from dflash_mlx.engine import choose
from dflash_mlx.measure import self_test, storage, system
from dflash_mlx.measure.difference import Difference


def test_this_machine():
    machine, packages = system.check_machine(), system.check_packages()
    assert machine.status == "ok" and "GB of memory" in machine.text
    assert machine.data["memory"] > 0 and 0 < machine.data["free"] <= machine.data["memory"]
    assert packages.status == "ok" and {"mlx", "mlx-lm", "numpy"} <= set(packages.data)
    assert "pytest" not in packages.data
    assert all(rate > 0 for rate in system.product_rates())


def test_python_for_another_processor_is_a_fault(monkeypatch):
    monkeypatch.setattr(system.sys, "platform", "darwin")
    monkeypatch.setattr(system.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(system, "free_memory", lambda: None)
    found = system.check_machine()
    assert found.status == "fault" and "arm64" in found.text and "are free" not in found.text


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


@pytest.mark.parametrize(
    ("platform", "metal", "status", "words"),
    [
        ("linux", False, "ok", "no Metal"),
        ("darwin", False, "advice", "virtual machine"),
        ("darwin", True, "ok", "A GPU, which may use 20.0 GB"),
    ],
)
def test_device(platform, metal, status, words, monkeypatch):
    info = {"device_name": "A GPU", "max_recommended_working_set_size": 20_000_000_000}
    monkeypatch.setattr(system, "on_metal", lambda: metal)
    monkeypatch.setattr(system.sys, "platform", platform)
    monkeypatch.setattr(system.mx, "device_info", lambda: info)
    found = system.check_backend()
    assert found.status == status and words in found.text


def test_device_that_does_not_compute(monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("no device")

    monkeypatch.setattr(system.mx, "eval", broken)
    found = system.check_backend()
    assert found.status == "fault" and "no device" in found.text


@pytest.mark.parametrize(("ours", "status"), [(3.0, "advice"), (90.0, "ok"), (300.0, "ok")])
def test_blas_is_judged_by_its_speed(ours, status, monkeypatch):
    monkeypatch.setattr(system.sys, "platform", "linux")
    monkeypatch.setattr(system.mx, "default_device", lambda: mx.Device(mx.cpu))
    monkeypatch.setattr(system, "product_rates", lambda: (ours, 100.0))
    found = system.check_blas()
    assert found.status == status and f"{ours:.0f} GFLOP/s" in found.text
    assert ("LD_PRELOAD=libopenblas.so.0" in found.text) is (status == "advice")
    monkeypatch.setattr(system.sys, "platform", "darwin")
    assert system.check_blas() is None


def test_tiny_generation(monkeypatch):
    texts = []

    def noted(*arguments: object) -> list[int]:
        texts.append(emit(*arguments))
        return texts[-1]

    emit = self_test.lossless.emit
    monkeypatch.setattr(self_test.lossless, "emit", noted)
    kernels, generation = self_test.check_self()
    assert (kernels.status, generation.status) == ("ok", "ok")
    assert "48 tokens" in generation.text and "context K/V" in kernels.text
    # The text wanders, so that much is compared.
    assert [len(t.tokens) for t in texts] == [48, 48] and len(set(texts[0].tokens)) > 8


@pytest.mark.parametrize(
    ("near_tie", "status", "words"),
    [(False, "fault", "behind the best"), (True, "ok", "as good as equal")],
)
def test_a_round_that_changes_the_text(near_tie, status, words, monkeypatch):
    monkeypatch.setattr(choose, "accept_equal", accept_everything)
    monkeypatch.setattr(Difference, "near_tie", near_tie)
    _, generation = self_test.check_self()
    assert generation.status == status and words in generation.text


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_generation_that_fails_is_a_fault(kind, monkeypatch):
    def broken(*_: object) -> None:
        raise kind("out of order")

    monkeypatch.setattr(choose, "accept_equal", broken)
    (generation,) = self_test.check_self()
    assert generation.status == "fault" and "out of order" in generation.text


@pytest.mark.parametrize(("broken", "status"), [("nothing", "ok"), ("context", "advice")])
def test_kernels_that_cannot_be_built(broken, status, monkeypatch):
    monkeypatch.setattr(mx.fast, "metal_kernel", Launches(broken=broken))
    as_on_metal(monkeypatch)
    kernels, generation = self_test.check_self()
    assert kernels.status == status and generation.status == "ok"
    assert ("cannot be built" in kernels.text) is (status == "advice")
    assert ("one launch" in kernels.text) is (status == "ok")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "dflash-mlx"


def test_own_cache_and_its_size(cache):
    assert "nothing is there yet" in storage.check_own_cache().text
    (cache / "drafters").mkdir(parents=True)
    (cache / "drafters" / "weights").write_bytes(bytes(1000))
    found = storage.check_own_cache()
    assert found.status == "ok" and found.data == {"folder": str(cache), "size": 1000}


def test_leftovers_are_listed_and_removed_only_when_asked(cache):
    drafters = cache / "drafters"
    old, new, kept = (drafters / x for x in (".a.0123abcd.partial", ".b.1.partial", "finished"))
    fetched = cache / ".fetching-x.partial"
    for folder in (old, new, fetched, kept):
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(bytes(10))
    yesterday = time.time() - 25 * 3600
    for folder in (old, fetched, kept):
        for path in (folder / "weights", folder):
            os.utime(path, (yesterday, yesterday))
    found = storage.check_leftovers(clean=False)
    assert found.status == "advice" and "--clean" in found.text
    assert found.data == {"folders": sorted([str(fetched), str(old)]), "size": 20}
    assert old.exists() and fetched.exists()
    assert storage.check_leftovers(clean=True).status == "ok"
    assert not old.exists() and not fetched.exists() and new.exists() and kept.exists()
    assert storage.check_leftovers(clean=True) is None


def test_hub_cache(tmp_path, monkeypatch):
    def absent() -> None:
        raise storage.CacheNotFound("absent", cache_dir=tmp_path)

    monkeypatch.setattr(storage, "scan_cache_dir", absent)
    found = storage.check_hub_cache()
    assert found.status == "ok" and "nothing was downloaded" in found.text
    cache = SimpleNamespace(repos={"one"}, size_on_disk=1_500_000_000)
    monkeypatch.setattr(storage, "scan_cache_dir", lambda: cache)
    assert "1 repository, 1.5 GB" in storage.check_hub_cache().text
