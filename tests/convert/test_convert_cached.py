"""Drafters for loading: converted once, and again when the checkpoint has changed."""

import errno
import os
from pathlib import Path

import mlx.core as mx
import pytest
from tiny_checkpoint import arrays, snapshot, tiny_weights, write_checkpoint, write_torch_file

import dflash_mlx.convert.conversion as conversion
from dflash_mlx.convert import convert, convert_cached
from dflash_mlx.errors import UserError, os_reason


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that converted drafters are kept in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dflash-mlx" / "drafters"


def test_mlx_folder_is_used_as_it_is(tmp_path: Path, cache: Path) -> None:
    folder = convert(write_checkpoint(tmp_path / "source"), tmp_path / "mlx")
    assert convert_cached(folder) == folder
    assert not cache.exists()


def test_converted_once_and_again_when_the_checkpoint_changes(tmp_path: Path, cache: Path) -> None:
    source = write_checkpoint(tmp_path / "My drafter")
    folders = [convert_cached(source)]
    assert folders[0].parent == cache and folders[0].name.startswith("My--drafter-")
    written = (folders[0] / "model.safetensors").stat().st_mtime_ns
    assert convert_cached(str(source)) == folders[0]
    assert (folders[0] / "model.safetensors").stat().st_mtime_ns == written
    weights = tiny_weights()
    weights["norm.weight"] = weights["norm.weight"] + 1
    mx.save_safetensors(str(source / "model.safetensors"), weights)
    os.utime(source / "model.safetensors", ns=(1, 1))
    folders.append(convert_cached(source))
    write_torch_file(source / "mask_embedding.pt", mx.ones(64))
    folders.append(convert_cached(source))
    assert len({folder.name for folder in folders}) == 3
    assert "mask_embedding" in arrays(folders[-1])


def test_two_at_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process finishes while this one is about to: theirs stays, ours goes."""
    source = write_checkpoint(tmp_path / "source")
    original = conversion.read_raw

    def theirs_first(*args: object) -> object:
        monkeypatch.setattr(conversion, "read_raw", original)
        (convert_cached(source) / "theirs").touch()
        return original(*args)

    monkeypatch.setattr(conversion, "read_raw", theirs_first)
    folder = convert_cached(source)
    assert (folder / "theirs").exists()
    assert list(cache.iterdir()) == [folder]


@pytest.mark.parametrize("errno_", [errno.EROFS, errno.ENOSPC])
def test_what_cannot_be_kept_is_converted_all_the_same(
    errno_: int, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_checkpoint(tmp_path / "source")
    expected = arrays(convert(source, tmp_path / "mlx"))
    mkdir = Path.mkdir

    def refusing(path: Path, *args: object, **options: object) -> None:
        if path.is_relative_to(cache):
            raise OSError(errno_, os.strerror(errno_))
        mkdir(path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", refusing)
    reason = os_reason(OSError(errno_, ""))
    with pytest.warns(UserWarning, match=f"converted again next time: source: .* \\({reason}"):
        found = arrays(convert_cached(source))
    assert found.keys() == expected.keys()
    assert all(mx.array_equal(found[name], expected[name]) for name in expected)
    assert not cache.exists()


def test_failure_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    weights = tiny_weights()
    weights["norm.weight"] *= 0
    source = write_checkpoint(tmp_path / "source", weights=weights)
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=r"^source: norm.weight is all zeros"):
        convert_cached(source)
    assert snapshot(tmp_path) == before


def test_what_killed_conversions_left_is_removed_first(tmp_path: Path, cache: Path) -> None:
    left = cache / ".a-0123.89abcdef.partial"
    left.mkdir(parents=True)
    os.utime(left, (1, 1))
    folder = convert_cached(write_checkpoint(tmp_path / "source"))
    assert list(cache.iterdir()) == [folder]
