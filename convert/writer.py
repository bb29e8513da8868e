"""Write a drafter that has been read as a folder in MLX format."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from mlx_lm.utils import save_model
from tqdm import tqdm

from .. import __version__
from ..drafter.config import DrafterConfig
from ..errors import counted, os_reason, printable
from .reader import RawDrafter
from .source import MASK_FILE, Source
from .tensors import DRAFT_TO_TARGET, is_quantizable
from .weights import BAR, DTYPES, check_values

_CHUNK = 16 * 1024 * 1024
_CARD = """
# DFlash drafter in MLX format

Converted from {origin} by dflash-mlx. It drafts blocks for the target that it was trained with and
does not generate text alone.

| | |
|---|---|
{table}

## Use

```bash
dflash-mlx generate --model TARGET --draft-model THIS_FOLDER --prompt "Hello"
```

```python
from dflash_mlx import generate, load

model, tokenizer = load("TARGET", draft_model="THIS_FOLDER")
print(generate(model, tokenizer, "Hello", max_tokens=100))
```
"""


def write_drafter(
    folder: Path,
    source: Source,
    raw: RawDrafter,
    quantization: dict[str, int] | None = None,
    dtype: str | None = None,
) -> None:
    """Check the values of a drafter's weights and write it, quantized if asked to.

    What MLX has quantized already stays as it is.

    Args:
        folder: An empty folder.
        source: Where it comes from, which is recorded; if it is in MLX format already, what is
            recorded there and its model card stay.
        raw: The drafter.
        quantization: ``bits`` and ``group_size``, or None.
        dtype: A key of ``DTYPES``, or None for the dtype of the drafter's first MLP. All floats
            get the same, because a single wider one would widen every activation after it.

    Raises:
        UserError: A tensor holds NaN, infinity or nothing but zeros, or the disk is full.
    """
    settings = _packed_settings(raw) if quantization is None else quantization | {"mode": "affine"}
    if source.is_converted:
        config, file = source.config, source.folder / "README.md"
        card = file.read_text(encoding="utf-8") if file.is_file() else ""
        card = card.replace(_weights_row({}), _weights_row(settings))
    else:
        config = raw.config.to_dict() | {"source": _provenance(source, raw)}
        card = _model_card(raw.config, config["source"], settings)
    if settings:
        # Hugging Face's model tree reads the second spelling.
        config = config | {"quantization": settings, "quantization_config": settings}
    _write_weights(folder, raw, quantization, raw.dtype if dtype is None else DTYPES[dtype])
    (folder / "config.json").write_text(json.dumps(config, indent=4) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card, encoding="utf-8")


def _write_weights(
    folder: Path, raw: RawDrafter, quantization: dict[str, int] | None, dtype: mx.Dtype
) -> None:
    # Read once to be checked, one tensor at a time, and once to be written.
    unchecked = {
        raw.used.get(name, MASK_FILE): array
        for name, array in raw.load().items()
        if name != DRAFT_TO_TARGET
    }
    check_values(unchecked, dtype)
    weights = {
        name: array if name == DRAFT_TO_TARGET else array.astype(dtype)
        for name, array in raw.load().items()
    }
    for name, parts in raw.load_packed().items():
        del weights[name]
        module = name.removesuffix("weight")
        floats = (mx.float16, mx.bfloat16, mx.float32)
        weights |= {
            module + leaf: part.astype(dtype) if part.dtype in floats else part
            for leaf, part in parts.items()
        }
    if quantization is not None:
        weights = _quantized(weights, **quantization)
    module = nn.Module()
    for key, value in tree_unflatten(list(weights.items())).items():
        module[key] = value
    # Or else what a shard has read would live until the end.
    weights.clear()
    try:
        save_model(folder, module, donate_model=True)
    except RuntimeError as error:
        raise OSError(os_reason(error)) from error


def _quantized(weights: dict[str, mx.array], bits: int, group_size: int) -> dict[str, mx.array]:
    """What ``nn.quantize`` makes of the linear layers and tables, lazily."""
    result = {}
    for name, array in weights.items():
        if not is_quantizable(name, array.shape):
            result[name] = array
            continue
        parts = mx.quantize(array, group_size, bits)
        leaves = ("weight", "scales", "biases")
        module = name.removesuffix("weight")
        result |= {module + leaf: part for leaf, part in zip(leaves, parts, strict=True)}
    return result


def _packed_settings(raw: RawDrafter) -> dict[str, Any]:
    """MLX's declaration of what it has quantized already: the usual settings, then other ones."""
    found = {name.removesuffix(".weight"): weight.mlx for name, weight in raw.packed.items()}
    if not found:
        return {}
    settings = list(found.values())
    usual = max(settings, key=settings.count)
    return {**usual, **{layer: own for layer, own in found.items() if own != usual}}


def _provenance(source: Source, raw: RawDrafter) -> dict[str, Any]:
    """What config.json records about the origin; a local folder only by name, not by path."""
    parsed, encoded = raw.parsed, raw.plain.encoded
    origin = {"path": source.name} if source.repo is None else {"repo": source.repo}
    return origin | {
        "revision": source.revision,
        "sha256": _hashes([*raw.plain.files, *([raw.mask_file] if raw.mask_file else [])]),
        "format": parsed.format,
        "tap_base": parsed.tap_base,
        "window_rule": parsed.window if any(raw.config.sliding) else None,
        "verifier": parsed.verifier or None,
        "added": parsed.added,
        "dropped": raw.dropped,
        "encodings": sorted({weight.encoding for weight in encoded.values()}),
        "license": source.license,
        "converter": f"dflash-mlx {__version__}",
    }


def _hashes(files: Iterable[Path]) -> dict[str, str]:
    sizes = {file: file.stat().st_size for file in files}
    hashes = {}
    with tqdm(total=sum(sizes.values()), desc="Hashing", unit="B", unit_scale=True, **BAR) as bar:
        for path in sizes:
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                    bar.update(len(chunk))
            hashes[path.name] = digest.hexdigest()
    return hashes


def _model_card(
    config: DrafterConfig, source: dict[str, Any], quantization: Mapping[str, Any]
) -> str:
    """README.md of a converted drafter: Hugging Face front matter, facts, and how to use it."""
    origin = source.get("repo") or source["path"]
    revision = f" at revision {source['revision']}" if source["revision"] else ""
    rows = {
        "target": (source["verifier"] or {}).get("name_or_path"),
        "source format": source["format"],
        "layers": _layers(config),
        "hidden size": config.hidden_size,
        "block size (anchor included)": config.block_size,
        "taps (0-based target layers)": _taps(config),
        "mask token": config.mask_token_id,
        "brings its own": _own_tables(config),
        "candidates of the selector": config.selector_top_k,
    }
    lines = [
        f"| {key} | {printable(str(value))} |"
        for key, value in rows.items()
        if value not in (None, "")
    ]
    table = "\n".join([*lines, _weights_row(quantization)])
    return front_matter(source, "mlx") + _CARD.format(origin=origin + revision, table=table)


def front_matter(source: Mapping[str, Any], library: str | None = None) -> str:
    """What Hugging Face reads at the top of a model card.

    Args:
        source: The ``source`` object of a drafter's config.json, or as much as there is of it.
        library: Which reads the model, if Hugging Face knows it.
    """
    lines = {
        "library_name": library,
        "pipeline_tag": "text-generation",
        "base_model": source.get("repo"),
        "license": source.get("license"),
    }
    tags = [library, "dflash", "speculative-decoding"]
    front = [f"{key}: {printable(str(value))}" for key, value in lines.items() if value]
    return "\n".join(["---", *front, "tags:", *(f"- {tag}" for tag in tags if tag), "---", ""])


def _weights_row(quantization: Mapping[str, Any]) -> str:
    """The row of a card's table that says how the weights are stored."""
    if not quantization:
        return "| weights | not quantized |"
    return f"| weights | {quantization['bits']}-bit, group size {quantization['group_size']} |"


def _layers(config: DrafterConfig) -> str:
    """Such as "6, of which 5 sliding over 4096 rows and 5 causal"."""
    parts = []
    if any(config.sliding):
        parts.append(f"{sum(config.sliding)} sliding over {counted(config.sliding_window, 'row')}")
    if any(config.causal):
        parts.append(f"{sum(config.causal)} causal")
    return f"{config.num_hidden_layers}{', of which ' if parts else ''}{' and '.join(parts)}"


def _taps(config: DrafterConfig) -> str:
    if not config.target_layer_ids:
        return "none: the target's last hidden state"
    depth = f" of {config.num_target_layers}" if config.num_target_layers else ""
    return ", ".join(map(str, config.target_layer_ids)) + depth


def _own_tables(config: DrafterConfig) -> str:
    rows = config.draft_vocab_size or config.vocab_size
    tables = {
        "embedding table": config.has_embed_tokens,
        f"head of {rows} tokens": config.has_lm_head,
        "mask embedding": config.has_mask_embedding,
    }
    return ", ".join(name for name, has_it in tables.items() if has_it)
