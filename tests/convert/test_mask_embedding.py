"""``mask_embedding.pt`` is read without torch, and no code in it runs."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model
from tiny_checkpoint import (
    tiny_config,
    tiny_weights,
    write_checkpoint,
    write_torch_file,
    write_torch_pickle,
)

from dflash_mlx.convert import convert
from dflash_mlx.convert.torch_file import read_mask_embedding
from dflash_mlx.drafter.config import DrafterConfig
from dflash_mlx.drafter.model import Drafter
from dflash_mlx.errors import UserError

ROW = mx.arange(64).astype(mx.float32) / 8 - 3


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("token_id", [None, 63])
def test_read(tmp_path: Path, dtype: mx.Dtype, token_id: int | None) -> None:
    row = ROW.astype(dtype)
    write_torch_file(tmp_path / "mask_embedding.pt", row, token_id)
    found = read_mask_embedding(tmp_path / "mask_embedding.pt")
    assert found[0] == token_id
    assert found[1].dtype == dtype
    assert mx.array_equal(found[1], row)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_converted_with_the_drafter(tmp_path: Path, as_tensor: bool) -> None:
    """Also for a mask token that the target's vocabulary does not have."""
    config = tiny_config(dflash_config={"mask_token_id": 64})
    weights = tiny_weights()
    if as_tensor:
        weights["mask_embedding"] = ROW.astype(mx.bfloat16)
    source = write_checkpoint(tmp_path / "source", config, weights)
    if not as_tensor:
        write_torch_file(source / "mask_embedding.pt", ROW, 64)
    folder = convert(source, tmp_path / "out", quantize=True, q_group_size=32)
    drafter, written = load_model(folder, get_model_classes=lambda config: (Drafter, DrafterConfig))
    assert drafter.config.has_mask_embedding
    assert mx.array_equal(drafter.mask_embedding, ROW.astype(mx.bfloat16))
    assert ("mask_embedding.pt" in written["source"]["sha256"]) is not as_tensor


def test_without_it_the_mask_token_must_be_in_the_vocabulary(tmp_path: Path) -> None:
    config = tiny_config(dflash_config={"mask_token_id": 64})
    source = write_checkpoint(tmp_path / "source", config, tiny_weights())
    with pytest.raises(UserError, match="mask_token_id is 64"):
        convert(source, tmp_path / "out")


@pytest.mark.parametrize(
    ("row", "token_id", "problem"),
    [
        (ROW, 62, "mask token 62, but config.json has mask_token_id 63"),
        (ROW[:32], None, r"shape \[32\].*\[64\]"),
        (ROW[None], None, r"shape \[1, 64\].*\[64\]"),
        (ROW * float("nan"), None, "holds NaN"),
        (ROW * 0, None, "all zeros"),
    ],
)
def test_wrong_row(tmp_path: Path, row: mx.array, token_id: int | None, problem: str) -> None:
    source = write_checkpoint(tmp_path / "source")
    write_torch_file(source / "mask_embedding.pt", row, token_id)
    with pytest.raises(UserError, match=problem):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_twice(tmp_path: Path) -> None:
    weights = tiny_weights() | {"mask_embedding": ROW}
    source = write_checkpoint(tmp_path / "source", weights=weights)
    write_torch_file(source / "mask_embedding.pt", ROW)
    with pytest.raises(UserError, match="both a tensor mask_embedding and a file"):
        convert(source, tmp_path / "out")


STORAGE = (
    b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK@tQ"
)
REBUILD = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("


@pytest.mark.parametrize(
    ("pickled", "problem"),
    [
        (b"\x80\x02cposix\nsystem\nX\x05\x00\x00\x00touch\x85R.", "run posix.system"),
        (b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.", r"run builtins.eval"),
        (b"\x80\x02ctorch\nload\n.", r"run torch.load"),
        (b"\x80\x02K\x05.", "holds a int"),
        (b"\x80\x02}.", "holds a dict"),
        (b"\x80\x02" + STORAGE + b".", "holds a _Storage"),
        (REBUILD + STORAGE + b"K\x01K@\x85K\x01\x85\x89}tR.", "larger than its storage"),
        (REBUILD + STORAGE + b"K\x00K@\x85K\x02\x85\x89}tR.", "not contiguous"),
        (REBUILD + b"NK\x00K@\x85K\x01\x85\x89}tR.", "no storage"),
        (REBUILD + STORAGE.replace(b"K@t", b"K?t") + b"K\x00K@\x85K\x01\x85\x89}tR.", "64 of 63"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.", "cannot be read"),
        # A memo of 34 GB, and lengths that are taken at their word.
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "remembers something as number 2147483647"),
        (b"\x80\x05\x96" + b"\xff" * 7 + b"\x7f.", "cannot be read"),
        (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f.", "cannot be read"),
        (b"\x80\x05\x96\x01" + b"\0" * 7 + b"a.", "BYTEARRAY8, which no tensor needs"),
        (b"\x80\x02\x8b\xff\xff\xff\x7f.", "cannot be read"),
        (REBUILD + STORAGE + b"K\x00(" + b"K\x01" * 9 + b"tK\x01\x85\x89}tR.", "no plain shape"),
        (b"\x80\x02" + b"N" * 2**16 + b".", "data.pkl is larger"),
        (b"\x80\x02.", "cannot be read"),
        (b"", "cannot be read"),
        (b"\xff", "cannot be read"),
    ],
)
def test_hostile_or_damaged_pickle(tmp_path: Path, pickled: bytes, problem: str) -> None:
    path = tmp_path / "mask_embedding.pt"
    write_torch_pickle(path, pickled, ROW)
    with pytest.raises(UserError, match=problem):
        read_mask_embedding(path)


def test_not_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "mask_embedding.pt"
    path.write_bytes(b"\x80\x02K\x05.")
    with pytest.raises(UserError, match="cannot be read as a mask embedding"):
        read_mask_embedding(path)
    write_torch_file(path, ROW)
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(UserError, match="cannot be read as a mask embedding"):
        read_mask_embedding(path)


def test_config_records_it(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    plain = convert(source, tmp_path / "plain")
    write_torch_file(source / "mask_embedding.pt", ROW)
    masked = convert(source, tmp_path / "masked")
    for folder, expected in ((plain, False), (masked, True)):
        assert json.loads((folder / "config.json").read_text())["has_mask_embedding"] is expected
