"""Which way the fused parts of a given drafter run, from its config and its tensors' headers."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn

from ...convert.additions import Additions
from ...convert.headers import find_headers, read_tensors
from ...convert.reader import is_mlx_format, read_raw
from ...convert.source import find_source
from ...convert.writer import STORED_DTYPES, stored_dtype
from ...drafter.config import DrafterConfig
from ...drafter.context import ContextProjection
from ...drafter.heads import BlockHeads
from ...drafter.rope import RoPE
from ...errors import UserError
from ...files import read_json_object
from ...loading.hub import find_local
from .finding import Finding

_QUANTIZATION = ("group_size", "bits", "mode")


class Plan(NamedTuple):
    """What the choice of the kernels depends on.

    Attributes:
        config: the drafter's.
        dtype: of its activations.
        quantization: ``bits`` and ``group_size``, and perhaps ``mode``, or None.
    """

    config: DrafterConfig
    dtype: mx.Dtype
    quantization: Mapping[str, int | str] | None


def check_kernels(models: Mapping[str, tuple[str, str | None]]) -> Finding | None:
    """How a round of the given drafter would run. Its weights are not read.

    Args:
        models: what each is, its name and its revision.

    Returns:
        None if no drafter is given, or it is not on this machine.
    """
    name, revision = models.get("drafter", (None, None))
    folder = find_local(name, revision) if name is not None else None
    if folder is None:
        return None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            plan = plan_of(folder)
            path = paths(plan)
        # A UserError is one too; the others come of a quantization that is none.
        except (TypeError, ValueError) as error:
            text = f"Which way the fused parts of {name} run is not known: {error}"
            return Finding("drafter-kernels", "advice", text)
    unbuilt = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
    data = {"path": path, "unbuilt": unbuilt}
    size = plan.config.block_size
    text = f"The fused parts of {name} run so in a round of {size} rows: {path}."
    if unbuilt:
        text = f"{text} {' '.join(unbuilt)}"
    return Finding("drafter-kernels", "advice" if unbuilt else "ok", text, data)


def plan_of(folder: Path) -> Plan:
    """Read a drafter of any format, but for the values of its weights.

    Raises:
        UserError: this version does not run it, or weights are missing.
    """
    source = find_source(folder, None)
    if not is_mlx_format(source):
        raw = read_raw(source, Additions())
        return Plan(raw.config, stored_dtype(raw), None)
    config = read_json_object(source.folder / "config.json")
    norm = read_tensors(source, find_headers(source)).get("hidden_norm.weight")
    if norm is None or norm.dtype not in STORED_DTYPES:
        raise UserError(f"{folder} holds no weights of hidden_norm in 16 or 32 bits.")
    dtype = STORED_DTYPES[norm.dtype]
    return Plan(DrafterConfig.from_dict(config), dtype, config.get("quantization"))


def paths(plan: Plan) -> str:
    """Compile the kernels for one layer of such a drafter, of random weights, and ask them."""
    config, dtype, quantization = plan
    width = 2 * config.num_key_value_heads * config.head_dim
    projection = nn.Linear(config.hidden_size, width, bias=config.attention_bias)
    projection.set_dtype(dtype)
    if quantization is not None:
        known = {key: quantization[key] for key in _QUANTIZATION if key in quantization}
        projection = projection.to_quantized(**known)
    rope, norm = RoPE(config.head_dim, config.rope), mx.ones(config.head_dim)
    context = ContextProjection(projection, norm[None], config.rms_norm_eps, rope)
    heads = BlockHeads(norm, norm, config.rms_norm_eps, rope)
    context.warm_up(dtype)
    heads.warm_up(dtype, config.num_attention_heads, config.num_key_value_heads)
    return f"context K/V {context.path(config.block_size, dtype)}, block {heads.path(dtype)}"
