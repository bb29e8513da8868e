"""Read a z-lab checkpoint's config, tensor names and shapes, and refuse what does not fit."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from ..drafter.config import MODEL_TYPE, DrafterConfig
from ..errors import UserError
from . import zlab
from .json_file import read_json_object
from .plan import MASK_EMBEDDING, expected_tensors
from .quantization import declared_quantization
from .source import MASK_FILE, Source, fetch_weights
from .torch_file import read_mask_embedding
from .weights import Checkpoint, check_tensors, open_checkpoint


@dataclass(frozen=True)
class RawDrafter:
    """A checkpoint of which everything but the values of its weights has been checked.

    Attributes:
        config: The drafter.
        checkpoint: Its weight files.
        mask_embedding: The mask embedding [hidden_size] of ``mask_embedding.pt``, if there is one.
    """

    config: DrafterConfig
    checkpoint: Checkpoint
    mask_embedding: mx.array | None


def is_mlx_format(source: Source) -> bool:
    """Whether a checkpoint is already converted.

    Raises:
        UserError: Its config.json cannot be read.
    """
    config = read_json_object(source.folder / "config.json")
    # DFlare checkpoints have the same model_type, but no format_version.
    return config.get("model_type") == MODEL_TYPE and "format_version" in config


def read_raw(source: Source) -> RawDrafter:
    """Read a checkpoint, fetching its weights once its config is known to run.

    Raises:
        UserError: The format, a feature, a key or a tensor is not what this version runs.
    """
    if is_mlx_format(source):
        raise UserError("This drafter is already in MLX format; use it as it is.")
    raw_config = read_json_object(source.folder / "config.json")
    modelopt = source.folder / "hf_quant_config.json"
    declared = declared_quantization(
        raw_config, read_json_object(modelopt) if modelopt.is_file() else None
    )
    # Whether there is a mask embedding is known only when the weights are here.
    config = zlab.parse(raw_config, has_mask_embedding=True)
    fetch_weights(source)
    checkpoint = open_checkpoint(source.folder, declared)
    mask_file = source.folder / MASK_FILE
    in_weights = MASK_EMBEDDING in checkpoint.tensors
    if mask_file.is_file() and in_weights:
        raise UserError(
            f"The checkpoint has both a tensor {MASK_EMBEDDING} and a file {MASK_FILE}; remove one."
        )
    has_mask = in_weights or mask_file.is_file()
    config = dataclasses.replace(config, has_mask_embedding=has_mask)
    expected = expected_tensors(config)
    mask = None
    if mask_file.is_file():
        mask = _mask_embedding(mask_file, config)
        del expected[MASK_EMBEDDING]
    check_tensors(checkpoint, expected, config)
    return RawDrafter(config, checkpoint, mask)


def _mask_embedding(path: Path, config: DrafterConfig) -> mx.array:
    token_id, embedding = read_mask_embedding(path)
    if token_id not in (None, config.mask_token_id):
        raise UserError(
            f"{path.name} is for mask token {token_id}, but config.json has mask_token_id "
            f"{config.mask_token_id}; they do not belong together."
        )
    if embedding.shape != (config.hidden_size,):
        raise UserError(
            f"{path.name} has shape {list(embedding.shape)}, but hidden_size needs "
            f"[{config.hidden_size}]; they do not belong together."
        )
    return embedding
