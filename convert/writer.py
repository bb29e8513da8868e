"""Write a checkpoint that has been read as an MLX drafter."""

import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import quantize_model, save_model
from tqdm import tqdm

from ..drafter.model import Drafter
from ..errors import UserError
from . import zlab
from .card import model_card
from .plan import MASK_EMBEDDING
from .reader import RawDrafter
from .source import MASK_FILE, Source, find_license
from .weights import check_array, check_values, load_tensors

DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}
_STORED_DTYPES = {"F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32}
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
        dtype: A key of ``DTYPES``, or None for the dtype of the checkpoint's ``fc``. All tensors
            get the same, because a single wider one would widen every activation after it.

    Raises:
        UserError: A tensor holds NaN, infinity or nothing but zeros, or the disk is full.
    """
    stored = _STORED_DTYPES[raw.checkpoint.tensors["fc.weight"].dtype]
    target_dtype = stored if dtype is None else DTYPES[dtype]
    config = raw.config.to_dict() | {"source": _provenance(source, raw)}
    _check_all_values(raw, target_dtype)
    model = Drafter(raw.config)
    weights = load_tensors(raw.checkpoint)
    if raw.mask_embedding is not None:
        weights[MASK_EMBEDDING] = raw.mask_embedding
    model.load_weights(list(weights.items()))
    model.set_dtype(target_dtype)
    # The unconverted arrays would otherwise live until the end.
    del weights
    if quantization is not None:
        model, config = quantize_model(model, config, **quantization)
    try:
        save_model(folder, model, donate_model=True)
    except RuntimeError as error:
        raise UserError(f"The weights cannot be written ({error}); is the disk full?") from error
    (folder / "config.json").write_text(json.dumps(config, indent=4) + "\n", encoding="utf-8")
    card = model_card(raw.config, config["source"], quantization)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _provenance(source: Source, raw: RawDrafter) -> dict[str, Any]:
    """What config.json records about the origin; a local folder only by name, not by path."""
    files = list(raw.checkpoint.files)
    if raw.mask_embedding is not None:
        files.append(source.folder / MASK_FILE)
    origin = {"path": source.name} if source.repo is None else {"repo": source.repo}
    return origin | {
        "revision": source.revision,
        "sha256": _hashes(files),
        "format": zlab.FORMAT,
        "tap_base": 0,
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


def _check_all_values(raw: RawDrafter, dtype: mx.Dtype) -> None:
    if raw.mask_embedding is not None:
        check_array(MASK_FILE, raw.mask_embedding, dtype)
    with tqdm(total=len(raw.checkpoint.tensors), desc="Checking", unit="tensor", **_BAR) as bar:
        for _ in check_values(raw.checkpoint, dtype):
            bar.update()
