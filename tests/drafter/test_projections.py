"""Linear layers stacked into one, and split again, against the products of each."""

import mlx.core as mx
import mlx.nn as nn
import pytest

from dflash_mlx.drafter.projections import split_linear, stack_linears

WIDTHS = {"dense": None, "4-bit": (32, 4, "affine"), "8-bit": (64, 8, "affine")}
WIDTHS["mxfp4"] = (32, 4, "mxfp4")


def linear(kind: str, outputs: int, bias: bool) -> nn.Module:
    """A random layer of 64 inputs, whose bias is not small."""
    layer = nn.Linear(64, outputs, bias=bias)
    if bias:
        layer.bias = mx.random.normal((outputs,)) + 3
    if WIDTHS[kind] is None:
        return layer
    return nn.QuantizedLinear.from_linear(layer, *WIDTHS[kind][:2], mode=WIDTHS[kind][2])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "kinds",
    [
        ("dense", "dense"),
        ("4-bit", "4-bit"),
        ("mxfp4", "mxfp4"),
        ("4-bit", "dense"),
        ("dense", "8-bit"),
        ("8-bit", "4-bit", "mxfp4"),
    ],
)
def test_stacked(kinds: tuple[str, ...], bias: bool) -> None:
    mx.random.seed(2)
    layers = [linear(kind, 32 + 8 * i, bias) for i, kind in enumerate(kinds)]
    x = mx.random.normal((5, 64))
    expected = mx.concatenate([layer(x) for layer in layers], axis=-1)
    stacked = stack_linears(layers)
    assert isinstance(stacked, nn.QuantizedLinear) == (len({*kinds}) == 1 and kinds[0] != "dense")
    # Sums in another order, of values of about 8.
    assert mx.abs(stacked(x) - expected).max().item() < 1e-4


@pytest.mark.parametrize("kind", WIDTHS)
def test_split(kind: str) -> None:
    mx.random.seed(2)
    layer, x = linear(kind, 64, True), mx.random.normal((5, 64))
    parts = mx.concatenate([part(x) for part in split_linear(layer, 2)], axis=-1)
    assert mx.abs(parts - layer(x)).max().item() < 1e-4
