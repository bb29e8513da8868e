"""Read a checkpoint: everything but the values of its weights, and refuse what does not fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..drafter.config import DrafterConfig
from ..errors import UserError
from .declared import Declared, read_declared
from .detect import parse
from .encodings import Encoded, Plain, plain_names, plain_tensors
from .fields import Parsed
from .keys import Additions
from .source import MASK_FILE, MLX, Source
from .tensors import DRAFT_TO_TARGET, MASK_EMBEDDING, check_tensors, is_quantizable
from .torch_file import read_mask_embedding
from .weights import STORED_DTYPES, TensorInfo, read_index, read_tensors


@dataclass(frozen=True)
class RawDrafter:
    """A checkpoint of which everything but the values of its weights has been checked.

    Attributes:
        parsed: What its config says.
        plain: The tensors of its files, as what they stand for.
        used: The names in the files, by MLX name.
        dropped: Tensors that are left out, and why, by the name in the files.
        mask_file: Its ``mask_embedding.pt``, if there is one.
    """

    parsed: Parsed
    plain: Plain
    used: dict[str, str]
    dropped: dict[str, str]
    mask_file: Path | None = None

    @property
    def config(self) -> DrafterConfig:
        """The drafter."""
        return self.parsed.config

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype that it is converted to if no other is asked for: that of its first MLP."""
        return STORED_DTYPES[self.plain.tensors[self.used["layers.0.mlp.gate_proj.weight"]].dtype]

    @property
    def packed(self) -> dict[str, Encoded]:
        """The weights, by MLX name, that MLX has quantized already and that stay as they are."""
        encoded = self.plain.encoded
        return {
            name: encoded[in_file]
            for name, in_file in self.used.items()
            if in_file in encoded
            and encoded[in_file].mlx
            and is_quantizable(name, encoded[in_file].info.shape)
        }

    def load_packed(self) -> dict[str, dict[str, mx.array]]:
        """The parts of each of :attr:`packed`, by their last name, lazily."""
        stored = self.plain.load_parts()
        return {
            name: {part.rpartition(".")[2]: stored[part] for part in weight.parts}
            for name, weight in self.packed.items()
        }

    def load(self) -> dict[str, mx.array]:
        """The weights by MLX name, lazily: a float is read when it is first used.

        Raises:
            UserError: The map of a reduced vocabulary or the mask embedding is not sound.
        """
        stored = self.plain.load()
        used = self.used.items()
        weights = {name: stored[in_file] for name, in_file in used if name != DRAFT_TO_TARGET}
        if self.mask_file is not None:
            weights[MASK_EMBEDDING] = _mask_embedding(self.mask_file, self.config)
        maps = {name.rpartition(".")[2]: array for name, array in stored.items()}
        ids = maps.get(DRAFT_TO_TARGET)
        if self.parsed.format != MLX:
            ids = draft_ids(self.config, ids, maps.get("t2d"))
        return weights if ids is None else weights | {DRAFT_TO_TARGET: ids}


def read_raw(source: Source, additions: Additions) -> RawDrafter:
    """Read a checkpoint, fetching its weights once its config is known to run.

    Args:
        source: The checkpoint.
        additions: What the user adds to its config.

    Raises:
        UserError: The format, a feature, a key or a tensor is not what this version runs.
    """
    # What is wrong is found in the order in which `inspect` finds it.
    parse(source.config, None, additions)
    declared = read_declared(source.folder, source.config)
    # Whether there is a mask embedding is known only when the weights are here.
    index = read_index(source.weights_folder)
    parse(source.config, plain_names(index) or None, additions, has_mask_file=True)
    source.fetch_weights()
    folder = source.weights_folder
    mask_file = folder / MASK_FILE if (folder / MASK_FILE).is_file() else None
    raw = account(source.config, declared, read_tensors(folder), additions, mask_file)
    # For its checks, which read no more than a few rows.
    raw.load()
    return raw


def read_converted(source: Source) -> RawDrafter:
    """Read a drafter in MLX format, fetching its weights once its config is known to run.

    Raises:
        UserError: Its tensors are not those of its config.
    """
    config = DrafterConfig.from_dict(source.config)
    declared = read_declared(source.folder, source.config)
    source.fetch_weights()
    return account_converted(config, declared, read_tensors(source.folder))


def account_converted(
    config: DrafterConfig, declared: Declared, tensors: Mapping[str, TensorInfo]
) -> RawDrafter:
    """As :func:`account`, of a drafter in MLX format."""
    plain = plain_tensors(tensors, declared)
    names = {name: name for name in plain.tensors}
    check_tensors(plain.tensors, names, config)
    return RawDrafter(Parsed(MLX, config, "", 0, {}, {}), plain, names, {})


def account(
    config: Mapping[str, Any],
    declared: Declared,
    tensors: Mapping[str, TensorInfo],
    additions: Additions,
    mask_file: Path | None,
) -> RawDrafter:
    """Read a config and account for every tensor, by names, shapes and dtypes alone.

    Args:
        config: The parsed config.json.
        declared: The encodings that it declares.
        tensors: The tensors of the files.
        additions: What the user adds to the config.
        mask_file: The ``mask_embedding.pt``, if there is one.

    Raises:
        UserError: As :func:`read_raw`.
    """
    plain, apart = plain_tensors(tensors, declared), []
    parsed, (used, dropped) = parse(
        config, plain.tensors, additions, has_mask_file=mask_file is not None
    )
    if mask_file is not None:
        if MASK_EMBEDDING in used:
            raise UserError(
                f"The checkpoint has both a tensor {MASK_EMBEDDING} and a file {MASK_FILE}; "
                "remove one."
            )
        apart = [MASK_EMBEDDING]
    if parsed.config.draft_vocab_size is None and DRAFT_TO_TARGET in used:
        dropped[used.pop(DRAFT_TO_TARGET)] = "the drafter has the whole vocabulary"
    check_tensors(plain.tensors, used, parsed.config, *apart)
    for name, info in plain.tensors.items():
        # It is not among the tensors that are used.
        if name.rpartition(".")[2] == "t2d":
            _check_marks(info.dtype, info.shape, parsed.config)
    return RawDrafter(parsed, plain, used, dropped | plain.dropped, mask_file)


def draft_ids(config: DrafterConfig, d2t: mx.array | None, t2d: mx.array | None) -> mx.array | None:
    """The target id of each draft token, ``[draft_vocab_size]`` int32, strictly increasing.

    ``d2t`` holds offsets, ``target = draft + d2t[draft]``, or the ids themselves where ``t2d``
    shows that. Source: https://github.com/vllm-project/speculators, ``DraftVocabMixin``.

    Args:
        config: The drafter.
        d2t: ``[draft_vocab_size]``, if the checkpoint has it.
        t2d: ``[vocab_size]``, which target tokens have a draft token, if the checkpoint has it.

    Returns:
        None if the drafter has the whole vocabulary, of which such maps must say nothing.

    Raises:
        UserError: The ids are out of order or out of range, or the two maps disagree.
    """
    known = None
    if t2d is not None:
        _check_marks(t2d.dtype, t2d.shape, config)
        known = np.flatnonzero(np.array(t2d))
    if config.draft_vocab_size is None:
        if d2t is not None and mx.any(d2t != 0).item():
            raise UserError(
                "The checkpoint has a d2t that is not all zeros, but draft_vocab_size is the whole "
                f"vocabulary ({config.vocab_size}); one of the two is wrong."
            )
        if known is not None and len(known) < config.vocab_size:
            raise UserError(
                "t2d leaves out target tokens, but draft_vocab_size is the whole vocabulary "
                f"({config.vocab_size}); one of the two is wrong."
            )
        return None
    found = np.array(d2t).astype(np.int64)
    ids = found + np.arange(len(found))
    if known is not None and np.array_equal(found, known):
        ids = found
    elif known is not None and not np.array_equal(ids, known):
        raise UserError(
            f"d2t maps {len(ids)} draft tokens to other target tokens than the {len(known)} "
            "that t2d marks; the checkpoint is damaged."
        )
    if np.any(np.diff(ids) <= 0) or ids[0] < 0 or ids[-1] >= config.vocab_size:
        raise UserError(
            f"d2t maps to the target tokens {ids[0]} to {ids[-1]}, which must be increasing and "
            f"below vocab_size ({config.vocab_size}); it is damaged, or not in the form of offsets."
        )
    return mx.array(ids.astype(np.int32))


def _check_marks(dtype: str | mx.Dtype, shape: tuple[int, ...], config: DrafterConfig) -> None:
    """Check ``t2d`` as a file's header has it or as it was read."""
    if dtype not in ("BOOL", mx.bool_) or shape != (config.vocab_size,):
        raise UserError(
            f"t2d is {dtype} of shape {list(shape)}; it must be booleans of shape "
            f"[{config.vocab_size}] (vocab_size)."
        )


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
