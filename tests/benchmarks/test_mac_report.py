"""The report that a Mac's owner sends: what of it can be tried anywhere."""

import json

import mac
import mac_kernels
import mlx.core as mx
import pytest
from support.folders import save_drafter, save_target
from support.launches import Launches, as_on_metal


def written(folder) -> tuple[dict, str]:
    report = json.loads((folder / "mac-report.json").read_text())
    return report, (folder / "mac-report.md").read_text()


def test_nothing_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(mac, "on_metal", lambda: False)
    mac.main(["--out", str(tmp_path / "new"), "--skip", "round"])
    report, page = written(tmp_path / "new")
    for name in ("tests", "bandwidth", "kernels"):
        assert report["parts"][name] == {"result": None, "why_not": "there is no Metal GPU here"}
    assert report["parts"]["round"]["why_not"] == "left out with --skip"
    assert page.count("Not measured: there is no Metal GPU here.") == 3
    assert "|" not in page  # no table, so no number


def test_a_failing_part_is_named_and_the_rest_is_measured(tmp_path, monkeypatch):
    def fails() -> None:
        raise RuntimeError("no such pipeline")

    monkeypatch.setattr(mac, "on_metal", lambda: True)
    monkeypatch.setattr(mac.mx, "device_info", lambda: {"architecture": "made up"})
    monkeypatch.setattr(mac_kernels, "kernels", fails)
    monkeypatch.setattr(mac_kernels, "bandwidth", lambda: {"megabytes": 1, "gb_per_s": 123.4})
    mac.main(["--out", str(tmp_path), "--skip", "tests,round"])
    report, page = written(tmp_path)
    assert report["parts"]["kernels"]["why_not"] == "RuntimeError: no such pipeline"
    assert "Not measured: RuntimeError: no such pipeline." in page
    assert "123 GB/s over 1 MB" in page


@pytest.mark.parametrize("arguments", [["--skip", "kernel"], ["--model", "some/model"]])
def test_wrong_arguments(arguments):
    with pytest.raises(SystemExit):
        mac.main(arguments)


def test_published_bandwidth_is_the_very_chips():
    assert mac.published_bandwidth("Apple M3 Max", 40) == 400
    assert mac.published_bandwidth("Apple M3 Max", 30) is None
    assert mac.published_bandwidth("Some Processor", None) is None


def test_bandwidth_counts_read_and_write():
    found = mac_kernels.bandwidth(megabytes=1, repeats=3)
    assert found["gb_per_s"] > 0


def test_kernel_table(monkeypatch):
    """Timing, bytes and table, with launches that only return zeros."""
    launches = Launches()
    monkeypatch.setattr(mx.fast, "metal_kernel", launches)
    as_on_metal(monkeypatch)
    monkeypatch.setattr(mac_kernels, "POSITIONS", (1, 8, 33))
    monkeypatch.setattr(mac_kernels, "DTYPES", (mx.float32,))
    monkeypatch.setattr(mac_kernels, "BITS", (None, 4))
    monkeypatch.setattr(mac_kernels, "CALLS", 2)
    entries = mac_kernels.kernels(cache_bytes=1, repeats=1, hidden=64)
    names = [entry["kernel"] for entry in entries]
    paths = [x for path in ("rows", "fragments", "epilogue") for x in (path, "plain")]
    assert names == [f"context_kv {path}" for path in paths] * 2 + [
        "block_heads fused",
        "block_heads plain",
    ]
    outputs = mac_kernels.LAYERS * 2 * mac_kernels.KV_HEADS * mac_kernels.HEAD_DIM
    assert entries[0]["bytes"] == 4 * (outputs * 64 + 64 + outputs)
    assert all(e["us"] > 0 and e["us_alone"] > 0 and e["gb_per_s"] > 0 for e in entries)
    assert {"dflash_context_rows_affine", "dflash_block_heads"} <= set(launches.names)

    def page(copy: float | None, published: float | None) -> str:
        parts = {name: {"result": None, "why_not": "left out"} for name in mac.PARTS}
        parts["kernels"] = {"result": [entries[0] | {"gb_per_s": 50.0}], "why_not": None}
        if copy:
            parts["bandwidth"]["result"] = {"megabytes": 1, "gb_per_s": copy}
        machine = mac.machine() | {"published_gb_per_s": published}
        return mac.markdown({"date": "today", "machine": machine, "parts": parts})

    assert "| 50.0 | 50% | 25% |" in page(100.0, 200.0)
    assert "| 50.0 | not known | not known |" in page(None, None)


def test_outcomes_of_the_kernel_tests(tmp_path):
    tests = tmp_path / "test_sample.py"
    tests.write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.metal\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 1 == 2\n"
        "@pytest.mark.skip\ndef test_left_out(): pass\n"
    )
    found = mac.kernel_tests([str(tests)])
    assert (found["passed"], found["skipped"]) == (1, 1)
    assert [name.rpartition(".")[2] for name in found["failed"]] == ["test_bad"]
    assert "assert 1 == 2" in found["output"]
    with pytest.raises(RuntimeError, match="could not run"):
        mac.kernel_tests([str(tmp_path / "absent.py")])


def test_round_of_a_pair(tmp_path, monkeypatch):
    def quick(*models: str | None) -> dict:
        return one_round(*models, tokens=8, times=1)

    one_round = mac.one_round
    monkeypatch.setattr(mac, "one_round", quick)
    monkeypatch.setattr(mac, "PROMPTS", 1)
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "drafter")
    pair = ["--model", str(tmp_path / "target"), "--draft-model", str(tmp_path / "drafter")]
    mac.main(["--out", str(tmp_path), "--skip", "tests,bandwidth,kernels", *pair])
    report, page = written(tmp_path)
    found = report["parts"]["round"]["result"]
    assert all(s > 0 for times in found["stage_seconds"].values() for s in times.values())
    assert [(g["arm"], g["tokens"]) for g in found["generations"]] == [
        ("plain", 8),
        ("block 8", 8),
        ("mlx-lm", 8),
    ]
    assert "| as chosen |" in page
    assert "Kernels: context K/V " in page
