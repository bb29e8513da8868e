"""Write a checkpoint that has been read as an MLX drafter."""

import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from mlx_lm.utils import save_model
from tqdm import tqdm

from ..errors import UserError
from .card import model_card
from .plan import DRAFT_TO_TARGET, MASK_EMBEDDING, is_quantizable
from .reader import RawDrafter
from .source import MASK_FILE, Source, find_license, weights_folder
from .weights import check_array, check_values

DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}
STORED_DTYPES = {"F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32}
_CHUNK = 16 * 1024 * 1024
# A bar only on a terminal, and only when the work takes noticeable time.
_BAR = {"delay": 1.0, "disable": None, "leave": False}


def write_drafter(
    source: Source,
    raw: RawDrafter,
    folder: Path,
    quantization: dict[str, int] | None = None,
    dtype: str | None = None,
) -> None:
    """Check the values of a checkpoint's weights and write them as an MLX drafter.

    Args:
        source: Where the checkpoint comes from, which is recorded.
        raw: The checkpoint.
        folder: An empty folder.
        quantization: ``bits`` and ``group_size``, or None.
        dtype: A key of ``DTYPES``, or None for the dtype of the checkpoint's first MLP. All
            tensors get the same, because a single wider one would widen every activation after it.

    Raises:
        UserError: A tensor holds NaN, infinity or nothing but zeros, or the disk is full.
    """
    target_dtype = stored_dtype(raw) if dtype is None else DTYPES[dtype]
    config = raw.config.to_dict() | {"source": _provenance(source, raw)}
    check_all_values(_by_stored_name(raw), target_dtype)
    if raw.mask_embedding is not None:
        check_array(MASK_FILE, raw.mask_embedding, target_dtype)
    weights = {name: x.astype(target_dtype) for name, x in raw.load_tensors().items()}
    if raw.mask_embedding is not None:
        weights[MASK_EMBEDDING] = raw.mask_embedding.astype(target_dtype)
    if raw.draft_to_target is not None:
        weights[DRAFT_TO_TARGET] = raw.draft_to_target
    card = model_card(raw.config, config["source"], quantization)
    save_drafter(folder, config, weights, quantization, card)


def save_drafter(
    folder: Path,
    config: dict[str, Any],
    weights: dict[str, mx.array],
    quantization: dict[str, int] | None,
    card: str,
) -> None:
    """Write a drafter's folder, quantizing its weights if asked to.

    Args:
        folder: An empty folder.
        config: What config.json holds but for the quantization.
        weights: By name, not quantized; emptied, or else what a shard has read would live until
            the end.
        quantization: ``bits`` and ``group_size``, or None.
        card: README.md.

    Raises:
        UserError: The disk is full.
    """
    if quantization is not None:
        # Hugging Face's model tree reads the second spelling.
        described = quantization | {"mode": "affine"}
        config = config | {"quantization": described, "quantization_config": described}
    module = _as_module(weights if quantization is None else _quantized(weights, **quantization))
    weights.clear()
    try:
        save_model(folder, module, donate_model=True)
    except RuntimeError as error:
        raise UserError(f"The weights cannot be written ({error}); is the disk full?") from error
    (folder / "config.json").write_text(json.dumps(config, indent=4) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card, encoding="utf-8")


def _quantized(weights: dict[str, mx.array], bits: int, group_size: int) -> dict[str, mx.array]:
    """What ``nn.quantize`` makes of the linear layers and tables, lazily."""
    result = {}
    for name, array in weights.items():
        module, _, leaf = name.rpartition(".")
        if leaf != "weight" or array.ndim != 2 or not is_quantizable(module):
            result[name] = array
            continue
        packed, scales, biases = mx.quantize(array, group_size, bits)
        parts = {"weight": packed, "scales": scales, "biases": biases}
        result |= {f"{module}.{part}": value for part, value in parts.items()}
    return result


def _as_module(weights: dict[str, mx.array]) -> nn.Module:
    """The weights as the parameters that mlx-lm's ``save_model`` writes in shards."""
    module = nn.Module()
    for key, value in tree_unflatten(list(weights.items())).items():
        module[key] = value
    return module


def stored_dtype(raw: RawDrafter) -> mx.Dtype:
    """The dtype that a checkpoint is converted to if no other is asked for."""
    name = raw.names.used["layers.0.mlp.gate_proj.weight"]
    return STORED_DTYPES[raw.checkpoint.tensors[name].dtype]


def _provenance(source: Source, raw: RawDrafter) -> dict[str, Any]:
    """What config.json records about the origin; a local folder only by name, not by path."""
    files = list(raw.checkpoint.files)
    if raw.mask_embedding is not None:
        files.append(weights_folder(source) / MASK_FILE)
    origin = {"path": source.name} if source.repo is None else {"repo": source.repo}
    return origin | {
        "revision": source.revision,
        "sha256": _hashes(files),
        "format": raw.parsed.format,
        "tap_base": raw.parsed.tap_base,
        "window_rule": raw.parsed.window if any(raw.config.sliding) else None,
        "verifier": raw.parsed.verifier or None,
        "added": raw.additions.given,
        "dropped": raw.names.dropped | raw.checkpoint.dropped,
        "encodings": sorted({weight.encoding for weight in raw.checkpoint.encoded.values()}),
        "license": find_license(source),
        "converter": f"dflash-mlx {importlib.metadata.version('dflash-mlx')}",
    }


def _hashes(files: list[Path]) -> dict[str, str]:
    total = sum(file.stat().st_size for file in files)
    hashes = {}
    with tqdm(total=total, desc="Hashing", unit="B", unit_scale=True, **_BAR) as bar:
        for path in files:
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                    bar.update(len(chunk))
            hashes[path.name] = digest.hexdigest()
    return hashes


def _by_stored_name(raw: RawDrafter) -> dict[str, mx.array]:
    return {raw.names.used[name]: array for name, array in raw.load_tensors().items()}


def check_all_values(tensors: dict[str, mx.array], dtype: mx.Dtype) -> None:
    """Check every tensor as :func:`check_values` does, with a bar where it takes long.

    Raises:
        UserError: Names the first unsound tensor.
    """
    with tqdm(total=len(tensors), desc="Checking", unit="tensor", **_BAR) as bar:
        for _ in check_values(tensors, dtype):
            bar.update()
