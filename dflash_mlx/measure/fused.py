"""Which way the fused parts of a given drafter run, from its config and its tensors' headers."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..convert.keys import Additions
from ..convert.reader import read_raw
from ..convert.source import find_source
from ..convert.weights import STORED_DTYPES, read_tensors
from ..drafter.config import DrafterConfig
from ..drafter.model import Drafter
from ..errors import UserError
from .finding import Finding
from .given_pair import Given

_QUANTIZATION = ("group_size", "bits", "mode")
_PROJECTED = ("k_proj", "v_proj")


def check_fused_parts(drafter: Given) -> Finding:
    """How a round of the given drafter, which is on this machine, would run.

    Its weights are not read.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            config, dtype, quantization = _stored(drafter.folder)
            routes = _routes(config, dtype, quantization)
        # A UserError is one too; the others come of a quantization that is none.
        except (TypeError, ValueError) as error:
            text = f"Which way the fused parts of {drafter.name} run is not known: {error}"
            return Finding("drafter-kernels", "advice", text)
    text = f"The fused parts of {drafter.name} run so in a round of {config.block_size} rows: "
    unbuilt = unbuilt_kernels(caught)
    status = "advice" if unbuilt else "ok"
    data = {"path": routes, "unbuilt": unbuilt}
    return Finding("drafter-kernels", status, " ".join([f"{text}{routes}.", *unbuilt]), data)


def unbuilt_kernels(caught: Iterable[warnings.WarningMessage]) -> list[str]:
    """A sentence on each kernel that could not be built while these warnings were caught."""
    return [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]


def _stored(folder: Path) -> tuple[DrafterConfig, mx.Dtype, dict[str, Any] | None]:
    """A drafter's config, the dtype of its activations, and its quantization if it has one.

    Raises:
        UserError: this version does not run it, or weights are missing.
    """
    source = find_source(folder, None)
    if not source.is_converted:
        raw = read_raw(source, Additions())
        return raw.config, raw.dtype, None
    config = source.config
    norm = read_tensors(source.folder).get("hidden_norm.weight")
    if norm is None or norm.dtype not in STORED_DTYPES:
        raise UserError(f"{folder} holds no weights of hidden_norm in 16 or 32 bits.")
    return DrafterConfig.from_dict(config), STORED_DTYPES[norm.dtype], config.get("quantization")


def _routes(config: DrafterConfig, dtype: mx.Dtype, quantization: dict[str, Any] | None) -> str:
    """Compile the kernels of such a drafter, of random weights, and ask them."""
    drafter = Drafter(config)
    drafter.set_dtype(dtype)
    if quantization is not None:
        known = {key: quantization[key] for key in _QUANTIZATION if key in quantization}
        nn.quantize(drafter, **known, class_predicate=lambda path, _: path.endswith(_PROJECTED))
    drafter.stack_context()
    return drafter.kernels(config.block_size)
