"""How a block's heads are normed and rotated, why, and what happens where no kernel can be."""

import mlx.core as mx
import numpy as np
import pytest
from support.heads import EPS, double, error, exact_norm_rope, offsets, periods
from support.launches import Launches
from support.pairs import tiny_drafter

from dflash_mlx.kernels import block_heads as module
from dflash_mlx.kernels.block_heads import block_heads, choose_path

SIZES = {"hidden_size": 64, "target_hidden_size": 64, "head_dim": 64}


@pytest.mark.parametrize(
    ("dtype", "head_dim", "rotated", "traditional", "path"),
    [
        (mx.bfloat16, 128, 128, False, "fused (one launch)"),
        (mx.float32, 64, 64, False, "fused (one launch)"),
        (mx.float32, 32, 32, False, "plain (head_dim is 32, not 64 or 128)"),
        (mx.float32, 64, 32, False, "plain (RoPE turns 32 of 64 values)"),
        (mx.float32, 64, 64, True, "plain (RoPE is traditional)"),
    ],
)
def test_path_and_plain_numbers(monkeypatch, dtype, head_dim, rotated, traditional, path):
    norms, freqs = mx.random.uniform(1, 3, (2, head_dim)), periods(rotated)
    monkeypatch.setattr(module, "on_metal", lambda: True)
    assert str(choose_path(dtype, norms, freqs, traditional)) == path
    monkeypatch.setattr(module, "on_metal", lambda: False)
    off_metal = choose_path(dtype, norms, freqs, traditional)
    assert str(off_metal) == "plain (not on a Metal device)"

    q, kv = (mx.random.normal((2, 3, n * head_dim)) for n in (4, 2))
    offset = offsets(2000, 2)
    found = block_heads(q, kv, norms, freqs, offset, eps=EPS, traditional=traditional)
    heads = [double(x.reshape(2, 3, -1, head_dim).transpose(0, 2, 1, 3)) for x in (q, kv)]
    k, v = np.split(heads[1], 2, axis=1)
    for ours, x, norm in zip(found[:2], (heads[0], k), norms, strict=True):
        right = exact_norm_rope(x, double(norm), freqs, offset, traditional)
        assert error(ours, right)[0] < 5e-3
    assert error(found[2], v)[0] == 0


def test_kernel_that_cannot_be_built(monkeypatch):
    monkeypatch.setattr(mx.fast, "metal_kernel", Launches(broken="block_heads"))
    monkeypatch.setattr(module, "on_metal", lambda: True)
    drafter = tiny_drafter(**SIZES)
    with pytest.warns(RuntimeWarning, match=r"block_heads cannot be built.*Unable to build"):
        drafter.stack_context()
    assert drafter.block_path().name == "plain"
    assert "cannot be built" in drafter.block_path().reason
