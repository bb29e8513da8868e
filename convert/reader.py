"""Read a checkpoint's config, tensor names and shapes, and refuse what does not fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..drafter.config import MODEL_TYPE, DrafterConfig
from ..errors import UserError
from ..files import read_json_object
from .additions import Additions
from .detect import parse
from .encodings import plain_names
from .names import NameMap, map_names
from .parsed import Parsed
from .plan import DRAFT_TO_TARGET, MASK_EMBEDDING, expected_tensors
from .quantization import read_declared
from .source import MASK_FILE, Source, fetch_weights, weights_folder
from .torch_file import read_mask_embedding
from .vocabulary import absolute_ids, check_whole
from .weights import Checkpoint, check_tensors, indexed_names, open_checkpoint, stored_tensors


@dataclass(frozen=True)
class RawDrafter:
    """A checkpoint of which everything but the values of its weights has been checked.

    Attributes:
        parsed: What its config says.
        checkpoint: Its weight files.
        names: Which of their tensors are used, under which name, and which are not, and why.
        mask_embedding: The mask embedding [hidden_size] of ``mask_embedding.pt``, if there is one.
        draft_to_target: The target ids of a reduced vocabulary, [draft_vocab_size] int32.
        additions: What the user added to the config.
    """

    parsed: Parsed
    checkpoint: Checkpoint
    names: NameMap
    mask_embedding: mx.array | None
    draft_to_target: mx.array | None
    additions: Additions

    @property
    def config(self) -> DrafterConfig:
        """The drafter."""
        return self.parsed.config

    def load_tensors(self) -> dict[str, mx.array]:
        """All tensors by MLX name, lazily, but for the two that are attributes."""
        stored = stored_tensors(self.checkpoint)
        return {
            name: stored[in_file]
            for name, in_file in self.names.used.items()
            if name != DRAFT_TO_TARGET
        }


def is_mlx_format(source: Source) -> bool:
    """Whether a checkpoint is already converted.

    Raises:
        UserError: Its config.json cannot be read.
    """
    return is_mlx_config(read_json_object(source.folder / "config.json"))


def is_mlx_config(config: Mapping[str, Any]) -> bool:
    """Whether a config is a converted drafter's."""
    # AngelSpec's checkpoints have the same model_type, but no format_version.
    return config.get("model_type") == MODEL_TYPE and "format_version" in config


def read_raw(source: Source, additions: Additions) -> RawDrafter:
    """Read a checkpoint, fetching its weights once its config is known to run.

    Args:
        source: The checkpoint.
        additions: What the user adds to its config.

    Raises:
        UserError: The format, a feature, a key or a tensor is not what this version runs.
    """
    raw_config = read_json_object(source.folder / "config.json")
    declared = read_declared(source.folder, raw_config)
    # Whether there is a mask embedding is known only when the weights are here.
    names = indexed_names(weights_folder(source))
    names = None if names is None else plain_names(names)
    parse(raw_config, names, additions, has_mask_file=True)
    fetch_weights(source)
    folder = weights_folder(source)
    checkpoint = open_checkpoint(folder, declared)
    mask_file = folder / MASK_FILE
    has_mask_file = mask_file.is_file()
    parsed, names = account(raw_config, checkpoint, additions, has_mask_file=has_mask_file)
    mask = _mask_embedding(mask_file, parsed.config) if has_mask_file else None
    ids = _vocabulary(checkpoint, names, parsed.config)
    return RawDrafter(parsed, checkpoint, names, mask, ids, additions)


def account(
    raw_config: Mapping[str, Any],
    checkpoint: Checkpoint,
    additions: Additions,
    *,
    has_mask_file: bool,
) -> tuple[Parsed, NameMap]:
    """Read a config and account for every tensor, by names, shapes and dtypes alone.

    Args:
        raw_config: The parsed config.json.
        checkpoint: Its tensors; no value is read.
        additions: What the user adds to the config.
        has_mask_file: Whether there is a ``mask_embedding.pt``.

    Raises:
        UserError: As :func:`read_raw`.
    """
    parsed = parse(raw_config, checkpoint.tensors, additions, has_mask_file=has_mask_file)
    names = map_names(checkpoint.tensors, parsed.renames)
    expected = expected_tensors(parsed.config)
    if has_mask_file:
        if MASK_EMBEDDING in names.used:
            raise UserError(
                f"The checkpoint has both a tensor {MASK_EMBEDDING} and a file {MASK_FILE}; "
                "remove one."
            )
        del expected[MASK_EMBEDDING]
    names = _without_whole_map(names, parsed.config)
    check_tensors(checkpoint, names.used, expected, parsed.config)
    return parsed, names


def _without_whole_map(names: NameMap, config: DrafterConfig) -> NameMap:
    """A map of the whole vocabulary onto itself is not used; :func:`_vocabulary` checks it."""
    if config.draft_vocab_size is not None or DRAFT_TO_TARGET not in names.used:
        return names
    used = {name: in_file for name, in_file in names.used.items() if name != DRAFT_TO_TARGET}
    dropped = names.dropped | {names.used[DRAFT_TO_TARGET]: "the drafter has the whole vocabulary"}
    return NameMap(used, dropped)


def _vocabulary(checkpoint: Checkpoint, names: NameMap, config: DrafterConfig) -> mx.array | None:
    stored = stored_tensors(checkpoint)
    maps = {name.rpartition(".")[2]: name for name in (*names.used.values(), *names.dropped)}
    d2t, t2d = (stored[maps[key]] if key in maps else None for key in (DRAFT_TO_TARGET, "t2d"))
    if config.draft_vocab_size is None:
        check_whole(config, d2t, t2d)
        return None
    return absolute_ids(config, d2t, t2d)


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
