"""A new drafter that begins with its target's own last layers."""

import copy

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import dequantize_model

from ..drafter.masks import Visibility
from ..drafter.model import Drafter
from ..errors import UserError
from ..target.target import Target
from ..wording import counted
from .forward import BlockForward
from .masks import visible

# What a drafter's layer may have that the target's has not; it stays as it was made.
_OWN = ("self_attn.q_norm.", "self_attn.k_norm.", "attention_conv.", "mlp_conv.")
# Relative difference from which on two layers are not the same; far above rounding in float32.
_DIFFERENT = 1e-2
ROWS = 8


def warm_start(drafter: Drafter, target: Target) -> str:
    """Copy the target's last layers into the drafter.

    The features that a drafter attends to are no input of such a layer, so this is a guess at
    weights of the right size, and not yet a drafter. One row alone must come out of both layers
    the same: attention then gives the row's own value, whatever its queries and keys are.

    Args:
        drafter: with new weights, in float32.
        target: stays as it is.

    Returns:
        A sentence that says what was copied.

    Raises:
        UserError: the target has fewer layers, or they do not compute what a drafter's do.
    """
    count = len(drafter.layers)
    if count > target.num_layers:
        raise UserError(
            f"A drafter of {counted(count, 'layer')} cannot begin with those of a target of "
            f"{target.num_layers}; give fewer --layers, or leave --warm-start out."
        )
    same = True
    for layer, source in zip(drafter.layers, target.layers[-count:], strict=True):
        source = _dense(source)
        _copy(layer, source)
        if not _agree(drafter, layer, source, 1):
            raise UserError(
                "The target's layers norm, scale or activate otherwise than a drafter's, which "
                "could make nothing of their weights; leave --warm-start out."
            )
        same = same and _agree(drafter, layer, source, ROWS)
    copied = f"Begun with the target's last {counted(count, 'layer')}"
    if same:
        return f"{copied}, whole."
    return f"{copied}; their queries and keys are normed or rotated in another way here."


def _dense(layer: nn.Module) -> nn.Module:
    """A copy of a layer in float32 without quantization; the layer itself stays as it is."""
    dense = dequantize_model(copy.deepcopy(layer))
    dense.set_dtype(mx.float32)
    return dense


def _copy(layer: nn.Module, source: nn.Module) -> None:
    theirs = dict(tree_flatten(source.parameters()))
    ours = dict(tree_flatten(layer.parameters()))
    fits = {k: v for k, v in theirs.items() if k in ours and v.shape == ours[k].shape}
    needed = {name for name in ours if not name.startswith(_OWN)}
    if others := sorted((needed | theirs.keys()) - fits.keys()):
        more = " and others" if len(others) > 3 else ""
        raise UserError(
            f"The target's layers are unlike a drafter's in {', '.join(others[:3])}{more}; leave "
            "--warm-start out."
        )
    layer.update(tree_unflatten(list(fits.items())))
    mx.eval(layer.parameters())


def _agree(drafter: Drafter, layer: nn.Module, source: nn.Module, rows: int) -> bool:
    """Whether both layers make the same of ``rows`` random rows, each seeing those before it."""
    config = drafter.config
    x = mx.random.normal((1, rows, config.hidden_size), key=mx.random.key(0))
    theirs = source(x, "causal" if rows > 1 else None)
    # An anchor at 0 sees nothing of the context.
    nothing = mx.zeros((config.num_key_value_heads, 1, config.head_dim))
    anchors = mx.zeros((1,), mx.int32)
    mask = visible(Visibility(None, "row", causal=True), anchors, rows, 1)
    ours = BlockForward(drafter).layer(layer, x, anchors, (nothing, nothing), mask)
    difference, change = mx.abs(ours - theirs).max(), mx.abs(theirs - x).max()
    return difference.item() <= _DIFFERENT * change.item()
