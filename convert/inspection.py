"""Say what a checkpoint is, what it fits and what it needs, before its weights are downloaded."""

import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from mlx_lm.utils import MODEL_REMAPPING

from ..drafter.config import DrafterConfig
from ..errors import UserError
from ..files import read_json_object
from ..loading.known_pairs import (
    KnownPair,
    known_pairs,
    pairs_of_config,
    pairs_of_target,
    text_config,
)
from .additions import Additions
from .detect import recognize
from .encodings import logical_tensors
from .headers import Headers, find_headers, read_tensors
from .plan import MASK_EMBEDDING, expected_tensors
from .quantization import read_declared
from .reader import account, is_mlx_config
from .safetensors_file import TensorInfo
from .source import Source, find_license, find_source, weights_folder
from .weights import Checkpoint, indexed_files

DRAFTER, MLX_DRAFTER, TARGET, UNKNOWN = "drafter", "drafter in MLX format", "target", "unknown"
_HALF = 2  # bytes of a 16-bit number
_TARGET_ENDINGS = ("ForCausalLM", "ForConditionalGeneration")
# What only a drafter has in its names, which may end as a target's do, and in its config.
_DRAFTER_MARKS = ("dflash", "dspark", "domino", "dfly", "speculator", "eagle", "assistant")
_DRAFTER_KEYS = {"dflash_config", "speculators_config", "speculative_config", "markov_rank"}
_RAW_KEYS = (
    "num_hidden_layers",
    "hidden_size",
    "vocab_size",
    "block_size",
    "target_layer_ids",
    "num_target_layers",
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
    config = read_json_object(source.folder / "config.json")
    headers = find_headers(source)
    found: dict[str, Any] = {
        "name": source.name,
        "revision": source.revision,
        "license": find_license(source),
        "weights": {"bytes": headers.size, "files": len(headers.files)},
    }
    kind = kind_of(config)
    if kind == MLX_DRAFTER:
        return found | _mlx_drafter(source, config, headers)
    if kind == TARGET:
        return found | _target(source, config)
    return found | _drafter(source, config, headers, found["weights"])


def kind_of(config: Mapping[str, Any]) -> str:
    """``DRAFTER``, ``MLX_DRAFTER``, ``TARGET`` or ``UNKNOWN``, by a config.json alone."""
    if is_mlx_config(config):
        return MLX_DRAFTER
    if _is_target(config):
        return TARGET
    return UNKNOWN if recognize(config).format == "unknown" else DRAFTER


def _mlx_drafter(source: Source, config: Mapping[str, Any], headers: Headers) -> dict[str, Any]:
    try:
        drafter, problem = DrafterConfig.from_dict(config), _unreadable(source, headers)
    except UserError as error:
        drafter, problem = None, str(error)
    quantization = config.get("quantization")
    origin = _object(config.get("source"))
    described = {
        "kind": MLX_DRAFTER,
        "format": f"MLX, from {origin.get('format', 'an unnamed format')}",
        "problem": problem,
        "weights": {"bytes": headers.size, "files": len(headers.files)}
        | {"quantization": _mlx_quantization(quantization)},
    }
    if drafter is None:
        return described
    verifier = _object(origin.get("verifier")).get("name_or_path")
    pairs = [origin.get("repo"), source.repo]
    return described | {
        "drafter": describe_drafter(drafter),
        "fits": _fits(drafter, pairs, verifier),
        "needs": {"disk": headers.size} | _memory(drafter, headers.size),
    }


def _drafter(
    source: Source, config: Mapping[str, Any], headers: Headers, weights: dict[str, Any]
) -> dict[str, Any]:
    """A checkpoint to be converted; its problem is the first thing that conversion would refuse."""
    verdict = recognize(config)
    parsed, problem = verdict.parsed, verdict.problem or _unreadable(source, headers)
    tensors: dict[str, TensorInfo] = {}
    try:
        declared = read_declared(source.folder, config)
        weights = weights | {"quantization": " and ".join(sorted(declared.encodings)) or None}
        if problem is None:
            tensors = read_tensors(source, headers)
            checkpoint = Checkpoint((), **logical_tensors(tensors, declared)._asdict())
            weights["tensors"] = len(tensors)
            parsed, _ = account(
                config, checkpoint, Additions(), has_mask_file=headers.has_mask_file
            )
    except UserError as error:
        problem = problem or str(error)
    described = {
        "kind": UNKNOWN if verdict.format == "unknown" else DRAFTER,
        "format": verdict.format,
        "problem": problem,
        "weights": weights,
    }
    if parsed is None:
        return described | {"drafter": _raw(config)}
    drafter = describe_drafter(parsed.config)
    if not headers.has_mask_file and MASK_EMBEDDING not in tensors:
        # As long as nobody has looked, there may be one.
        drafter["own"] = [table for table in drafter["own"] if table != "mask embedding"]
    size = _HALF * _elements(parsed.config)
    return described | {
        "drafter": drafter,
        "fits": _fits(parsed.config, [source.repo], parsed.verifier.get("name_or_path")),
        # The checkpoint and the converted copy.
        "needs": {"disk": headers.size + size} | _memory(parsed.config, size),
    }


def _unreadable(source: Source, headers: Headers) -> str | None:
    """Why a drafter's weight files cannot be read, before any of them is opened."""
    if not headers.files:
        return "It has no weights: no .safetensors file was found."
    if len(headers.files) > 1 and indexed_files(weights_folder(source)) is None:
        return f"It has {len(headers.files)} safetensors files but no index."
    return None


def _target(source: Source, config: Mapping[str, Any]) -> dict[str, Any]:
    text = text_config(config)
    kind = config.get("model_type")
    pairs = pairs_of_target(source.repo) if source.repo else pairs_of_config(config)
    keys = ("num_hidden_layers", "hidden_size", "vocab_size")
    return {
        "kind": TARGET,
        "format": kind,
        "problem": None if _mlx_lm_has(kind) else f"mlx-lm has no model of the type {kind!r}.",
        "target": {key: text.get(key) for key in keys}
        | {"quantization": _mlx_quantization(config.get("quantization"))},
        # A local folder may be any of the targets that have its sizes.
        "drafters": [
            {
                "drafter": pair.drafter,
                "revision": pair.revision,
                "made_for": list(pair.targets),
                "problem": pair.unsupported,
            }
            for pair in pairs
        ],
    }


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
    pairs: list[KnownPair] = [pair for pair in known_pairs() if pair.drafter in repos]
    sizes = (config.target_hidden_size, config.num_target_layers, config.vocab_size)
    alike = [p for p in known_pairs() if (p.hidden_size, p.num_layers, p.vocab_size) == sizes]
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
    tensors = expected_tensors(config)
    tensors.pop(MASK_EMBEDDING, None)
    return sum(math.prod(expected.shape) for expected in tensors.values())


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
    if not isinstance(quantization, Mapping):
        return None
    bits, group = quantization.get("bits"), quantization.get("group_size")
    return f"{quantization.get('mode', 'affine')}, {bits} bits in groups of {group}"
