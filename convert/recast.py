"""Quantize or cast a drafter that is in MLX format already, such as one from the trainer."""

from pathlib import Path

import mlx.core as mx

from ..drafter.config import DrafterConfig
from ..errors import UserError
from ..files import read_json_object
from .additions import Additions
from .card import NOT_QUANTIZED, weights_row
from .plan import DRAFT_TO_TARGET, expected_tensors
from .quantization import Declared
from .source import Source, fetch_weights
from .weights import Checkpoint, check_tensors, open_checkpoint, stored_tensors
from .writer import DTYPES, STORED_DTYPES, check_all_values, save_drafter


def check_recast(
    source: Source, additions: Additions, quantization: dict[str, int] | None, dtype: str | None
) -> DrafterConfig:
    """Check what is asked of a drafter in MLX format, before its weights are fetched.

    Args:
        source: The drafter.
        additions: What the user adds to its config, which must be nothing.
        quantization: ``bits`` and ``group_size``, or None.
        dtype: "float16", "bfloat16" or "float32", or None.

    Returns:
        The drafter's configuration.

    Raises:
        UserError: There is nothing to do, or it cannot be done.
    """
    if quantization is None and dtype is None:
        raise UserError(
            "This drafter is already in MLX format; use it as it is, or quantize it (-q) or cast "
            "it (--dtype)."
        )
    if additions.given:
        raise UserError(
            f"This drafter is in MLX format, whose config leaves nothing out; drop what adds to it "
            f"({', '.join(additions.given)})."
        )
    config = read_json_object(source.folder / "config.json")
    if "quantization" in config:
        raise UserError(
            "This drafter is quantized already; take the one that it was made from, which has "
            "more of the weights."
        )
    return DrafterConfig.from_dict(config)


def recast(
    source: Source,
    config: DrafterConfig,
    folder: Path,
    quantization: dict[str, int] | None,
    dtype: str | None,
) -> None:
    """Write a drafter in MLX format again, quantized or cast; origin and model card stay.

    Args:
        source: The drafter.
        config: Its configuration, see :func:`check_recast`.
        folder: An empty folder.
        quantization: ``bits`` and ``group_size``, or None.
        dtype: A key of ``DTYPES``, or None for that of the first MLP.

    Raises:
        UserError: The weights are not those of the configuration, or cannot be written.
    """
    fetch_weights(source)
    checkpoint = open_checkpoint(source.folder, Declared(present=False))
    names = {name: name for name in checkpoint.tensors}
    check_tensors(checkpoint, names, expected_tensors(config), config)
    first = checkpoint.tensors["layers.0.mlp.gate_proj.weight"].dtype
    target_dtype = STORED_DTYPES[first] if dtype is None else DTYPES[dtype]
    # Read once to be checked, one tensor at a time, and once to be written.
    check_all_values(_floats(checkpoint), target_dtype)
    weights = {name: array.astype(target_dtype) for name, array in _floats(checkpoint).items()}
    if DRAFT_TO_TARGET in names:
        weights[DRAFT_TO_TARGET] = stored_tensors(checkpoint)[DRAFT_TO_TARGET]
    content = read_json_object(source.folder / "config.json")
    card_file = source.folder / "README.md"
    card = card_file.read_text(encoding="utf-8") if card_file.is_file() else ""
    card = card.replace(NOT_QUANTIZED, weights_row(quantization))
    save_drafter(folder, content, weights, quantization, card)


def _floats(checkpoint: Checkpoint) -> dict[str, mx.array]:
    """All tensors, lazily, but for the table of token ids."""
    tensors = stored_tensors(checkpoint)
    tensors.pop(DRAFT_TO_TARGET, None)
    return tensors
