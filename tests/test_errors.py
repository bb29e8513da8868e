"""The wording of what the system and MLX raise."""

import errno
import os

import mlx.core as mx
import pytest
from support.disk import ERRORS, files_up_to

from dflash_mlx.errors import os_reason
from dflash_mlx.files import Unwritable, staged, writing

REASONS = {
    errno.ENOSPC: "disk is full",
    errno.EDQUOT: "quota",
    errno.EROFS: "read-only",
    errno.EACCES: "permission is denied",
    errno.EPERM: "permission is denied",
    errno.ENOTDIR: "Not a directory",
}


@pytest.mark.parametrize("number", REASONS)
def test_reasons_are_told_apart(number, tmp_path):
    error = OSError(number, os.strerror(number))
    assert REASONS[number] in os_reason(error)
    for writer in (writing, staged):
        told = pytest.raises(Unwritable, match=f"a cannot be written .*{REASONS[number]}")
        with told, writer(tmp_path / "a"):
            raise error
    assert not any(tmp_path.iterdir())


def test_what_mlx_cannot_write_is_a_full_disk(tmp_path):
    with files_up_to(100), pytest.raises(RuntimeError) as raised:
        mx.save_safetensors(str(tmp_path / "a.safetensors"), {"a": mx.zeros(1000)})
    assert {os_reason(error) for error in (raised.value, *ERRORS)} == {"the disk is full"}
    assert os_reason(RuntimeError("[metal] out of memory.")) == "[metal] out of memory"
