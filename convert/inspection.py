"""Say what a checkpoint is, what it fits and what it needs, before its weights are downloaded."""

import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlx_lm.utils import MODEL_REMAPPING

from ..drafter.config import DrafterConfig
from ..errors import UserError
from ..loading.embedded import embedded_drafter, is_embedded_target
from ..loading.known_pairs import (
    KnownPair,
    known_pairs,
    pairs_of_config,
    pairs_of_target,
    text_config,
)
from .declared import read_declared
from .detect import recognize
from .keys import Additions
from .listing import File, list_files, list_tensors
from .reader import account, account_converted
from .source import MASK_FILE, Source, find_source, is_mlx_config
from .tensors import MASK_EMBEDDING, model_parameters
from .weights import read_index, weight_files

DRAFTER, MLX_DRAFTER, TARGET, UNKNOWN = "drafter", "drafter in MLX format", "target", "unknown"
_HALF = 2  # bytes of a 16-bit number
_TARGET_ENDINGS = ("ForCausalLM", "ForConditionalGeneration")
# What only a drafter has in its names, which may end as a target's do, and in its config.
_DRAFTER_MARKS = ("dflash", "dspark", "domino", "dfly", "speculator", "eagle", "assistant")
_DRAFTER_KEYS = {"dflash_config", "speculators_config", "speculative_config", "markov_rank"}
_RAW_KEYS = (
    *("num_hidden_layers", "hidden_size", "vocab_size", "block_size"),
    *("target_layer_ids", "num_target_layers"),
)


def inspect(path_or_repo: str, revision: str | None = None) -> dict[str, Any]:
    """Describe a checkpoint by its config.json and the headers of its weight files.

    Args:
        path_or_repo: A folder, or a Hub id; a drafter of any format, or a target.
        revision: Branch, tag or commit of a Hub repository.

    Returns:
        ``name``, ``revision``, ``kind``, ``format``, ``license``, ``problem`` (why this version
        does not run it, or None), and as far as they are known: ``drafter`` or ``target`` (its
        sizes), ``weights`` (bytes, tensors, quantization), ``fits`` (the targets), ``needs``
        (bytes of disk and memory) and ``drafters`` (known for a target). JSON can hold it.

    Raises:
        UserError: There is no such checkpoint, or its config.json cannot be read.
    """
    source = find_source(path_or_repo, revision)
    kind = kind_of(source.config)
    files = list_files(source)
    try:
        names = weight_files(read_index(source.weights_folder), files)
    except UserError:
        # Which conversion refuses as well, and so do those who describe a drafter below.
        names = [name for name in files if name.endswith(".safetensors")]
    weights = {"bytes": sum(files[name].size for name in names), "files": len(names)}
    found = {
        "name": source.name,
        "revision": source.revision,
        "license": source.license,
        "weights": weights,
        "kind": kind,
    }
    if kind == TARGET:
        return found | _target(source)
    if kind == MLX_DRAFTER:
        return found | _mlx_drafter(source, files, weights)
    return found | _drafter(source, files, weights)


def kind_of(config: Mapping[str, Any]) -> str:
    """``DRAFTER``, ``MLX_DRAFTER``, ``TARGET`` or ``UNKNOWN``, by a config.json alone."""
    if is_mlx_config(config):
        return MLX_DRAFTER
    if _is_target(config):
        return TARGET
    return UNKNOWN if recognize(config).format == "unknown" else DRAFTER


def _mlx_drafter(
    source: Source, files: Mapping[str, File], weights: dict[str, Any]
) -> dict[str, Any]:
    origin = _object(source.config.get("source"))
    weights["quantization"] = _mlx_quantization(source.config.get("quantization"))
    described = {"format": f"MLX, from {origin.get('format', 'an unnamed format')}"}
    try:
        drafter = DrafterConfig.from_dict(source.config)
    except UserError as error:
        return described | {"problem": str(error)}
    problem = None
    try:
        declared, tensors = read_declared(source.folder, source.config), list_tensors(source, files)
        weights["tensors"] = len(tensors)
        account_converted(drafter, declared, tensors)
    except UserError as error:
        problem = str(error)
    verifier = _object(origin.get("verifier")).get("name_or_path")
    return described | {
        "problem": problem,
        "drafter": describe_drafter(drafter),
        "fits": _fits(drafter, [origin.get("repo"), source.repo], verifier),
        "needs": {"disk": weights["bytes"]} | _memory(drafter, weights["bytes"]),
    }


def _drafter(source: Source, files: Mapping[str, File], weights: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint to be converted; its problem is the first thing that conversion would refuse."""
    verdict = recognize(source.config)
    parsed, problem, tensors = verdict.parsed, verdict.problem, {}
    packed = False
    has_mask_file = MASK_FILE in files
    try:
        declared = read_declared(source.folder, source.config)
        encodings = " and ".join(sorted(declared.encodings)) or None
        weights["quantization"] = _mlx_quantization(declared.mlx) or encodings
        if problem is None:
            tensors = list_tensors(source, files)
            weights["tensors"] = len(tensors)
            mask_file = Path(MASK_FILE) if has_mask_file else None
            raw = account(source.config, declared, tensors, Additions(), mask_file)
            parsed = raw.parsed
            # What MLX has quantized stays so.
            packed = bool(raw.packed)
    except UserError as error:
        problem = problem or str(error)
    described = {"format": verdict.format, "problem": problem}
    if parsed is None:
        return described | {"drafter": _raw(source.config)}
    drafter = describe_drafter(parsed.config)
    if not has_mask_file and MASK_EMBEDDING not in tensors:
        # As long as nobody has looked, there may be one.
        drafter["own"] = [table for table in drafter["own"] if table != "mask embedding"]
    size = weights["bytes"] if packed else _HALF * _elements(parsed.config)
    return described | {
        "drafter": drafter,
        "fits": _fits(parsed.config, [source.repo], parsed.verifier.get("name_or_path")),
        # The checkpoint and the converted copy.
        "needs": {"disk": weights["bytes"] + size} | _memory(parsed.config, size),
    }


def _target(source: Source) -> dict[str, Any]:
    config = source.config
    text, kind = text_config(config), config.get("model_type")
    keys = ("num_hidden_layers", "hidden_size", "vocab_size")
    return {
        "format": kind,
        "problem": None if _mlx_lm_has(kind) else f"mlx-lm has no model of the type {kind!r}.",
        "target": {key: text.get(key) for key in keys}
        | {"quantization": _mlx_quantization(config.get("quantization"))},
        "drafters": [
            {
                "drafter": pair.drafter,
                "revision": pair.revision,
                "made_for": list(pair.targets),
                "problem": pair.unsupported,
            }
            for pair in _pairs(source)
        ],
    }


def _pairs(source: Source) -> list[KnownPair]:
    """The pairs of a target; a local folder may be any of those that have its sizes."""
    if source.repo is not None:
        return pairs_of_target(source.repo)
    if is_embedded_target(source.folder):
        drafter = str(embedded_drafter())
        return [KnownPair(targets=("SmolLM2-135M-Instruct",), drafter=drafter, kind="default pair")]
    return pairs_of_config(source.config)


def describe_drafter(config: DrafterConfig) -> dict[str, Any]:
    """A drafter's sizes and kinds of layers, for people and programs."""
    own = {
        "embedding table": config.has_embed_tokens,
        "head": config.has_lm_head,
        "mask embedding": config.has_mask_embedding,
    }
    return {
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "heads": [config.num_attention_heads, config.num_key_value_heads, config.head_dim],
        "block_size": config.block_size,
        "taps": list(config.target_layer_ids),
        "sliding_layers": sum(config.sliding),
        "sliding_window": config.sliding_window,
        "causal_layers": sum(config.causal),
        "dflash2": config.conv_kernel_size is not None,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "own": [name for name, has_it in own.items() if has_it],
    }


def _fits(config: DrafterConfig, repos: list[str | None], verifier: str | None) -> dict[str, Any]:
    """The target by its sizes, and by name as far as anything names one."""
    known = known_pairs()
    pairs = [pair for pair in known if pair.drafter in repos]
    sizes = (config.target_hidden_size, config.num_target_layers, config.vocab_size)
    alike = [p for p in known if (p.hidden_size, p.num_layers, p.vocab_size) == sizes]
    named = sorted({target for pair in pairs for target in pair.targets})
    return {
        "hidden_size": config.target_hidden_size,
        "num_layers": config.num_target_layers,
        "vocab_size": config.vocab_size,
        "made_for": [verifier] if verifier else named,
        "same_sizes": sorted({target for pair in alike for target in pair.targets} - set(named)),
    }


def _memory(config: DrafterConfig, size: int) -> dict[str, int]:
    """Bytes: the weights, and the context K/V of full layers and of windows, in 16 bits."""
    row = 2 * config.num_key_value_heads * config.head_dim * _HALF
    full = sum(not sliding for sliding in config.sliding)
    windows = sum(config.sliding) * ((config.sliding_window or 0) + 2 * config.block_size)
    return {"memory": size + windows * row, "memory_per_1000_tokens": 1000 * full * row}


def _elements(config: DrafterConfig) -> int:
    tensors = model_parameters(config).items()
    return sum(math.prod(array.shape) for name, array in tensors if name != MASK_EMBEDDING)


def _is_target(config: Mapping[str, Any]) -> bool:
    architectures, kind = config.get("architectures"), config.get("model_type")
    declared = f"{architectures} {kind}".lower()
    if any(mark in declared for mark in _DRAFTER_MARKS) or _DRAFTER_KEYS & set(config):
        return False
    if not isinstance(architectures, list):
        # Some conversions leave them out.
        return _mlx_lm_has(kind)
    return any(str(name).endswith(_TARGET_ENDINGS) for name in architectures)


def _mlx_lm_has(kind: Any) -> bool:
    """Whether mlx-lm has a model of a config's ``model_type``."""
    if not isinstance(kind, str) or not kind.isidentifier():
        return False
    return find_spec(f"mlx_lm.models.{MODEL_REMAPPING.get(kind, kind)}") is not None


def _raw(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config that is not read says under the usual names."""
    nested = config.get("dflash_config")
    places = [config, nested] if isinstance(nested, Mapping) else [config]
    return {key: place[key] for place in places for key in _RAW_KEYS if place.get(key) is not None}


def _object(value: Any) -> Mapping[str, Any]:
    """A part of a config that only informs, or nothing if it is not an object."""
    return value if isinstance(value, Mapping) else {}


def _mlx_quantization(quantization: Any) -> str | None:
    if not isinstance(quantization, Mapping) or not quantization:
        return None
    bits, group = quantization.get("bits"), quantization.get("group_size")
    return f"{quantization.get('mode', 'affine')}, {bits} bits in groups of {group}"
