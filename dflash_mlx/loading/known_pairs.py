"""The known pairs of a target and its drafter, and which of them a target's name or config means.

The pairs are data, in ``known_pairs.toml`` beside this file. Nothing here uses the network.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_suffix(".toml")

# What converters and quantizers append to a model's name; it is the same target without it.
_FORMATS = (
    r"mlx|\d(?:\.\d+)?-?bits?|\d(?:\.\d+)?bpw|bf16|fp?16|fp?32|fp8|dwq|qat|awq|gptq|mxfp[48]|nvfp4|"
    r"int[48]|q\d(?:_[0k](?:_[sml])?)?|bnb|quantized"
)
# Only behind one of the above: a group size, a date, a version.
_DETAILS = r"g(?:s)?\d+|\d{6}|v\d+|hi"
_SUFFIXES = re.compile(rf"(?:[-_](?:{_FORMATS})(?:[-_](?:{_DETAILS}))*)+$")


@dataclass(frozen=True, kw_only=True)
class KnownPair:
    """A drafter on the Hub and the targets that it was made for.

    Attributes:
        targets: Hub ids of the target.
        drafter: Hub id of the drafter.
        revision: The commit that was seen, or None if none is known.
        kind: Format or family of the drafter.
        block_size: Tokens of a block, if known.
        license: The drafter's, if known.
        gated: Whether its terms must be accepted on the Hub first.
        hidden_size: The target's, if known, as ``num_layers`` and ``vocab_size``.
        num_layers: The target's.
        vocab_size: The target's.
        unsupported: What this version does not run in the drafter, or None if it runs.
        note: Anything else that is worth knowing.
    """

    targets: tuple[str, ...]
    drafter: str
    kind: str
    revision: str | None = None
    block_size: int | None = None
    license: str | None = None
    gated: bool = False
    hidden_size: int | None = None
    num_layers: int | None = None
    vocab_size: int | None = None
    unsupported: str | None = None
    note: str | None = None


def known_pairs() -> tuple[KnownPair, ...]:
    """All known pairs, in the file's order: of one target's, the first that runs is preferred."""
    tables = tomllib.loads(_FILE.read_text(encoding="utf-8"))["pairs"]
    return tuple(KnownPair(**{**table, "targets": tuple(table["targets"])}) for table in tables)


def base_name(model: str) -> str:
    """A model's name without owner and without what conversion and quantization append.

    ``mlx-community/Qwen3-8B-4bit-DWQ-053125`` gives ``qwen3-8b``.
    """
    return _SUFFIXES.sub("", model.rstrip("/").rpartition("/")[2].lower())


def pairs_of_target(model: str) -> list[KnownPair]:
    """The pairs for a target on the Hub, told by its name."""
    name = base_name(model)
    return [p for p in known_pairs() if name in {base_name(target) for target in p.targets}]


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a target's config.json that its language model's sizes are in."""
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def pairs_of_config(config: Mapping[str, Any]) -> list[KnownPair]:
    """The pairs for a target whose name is not known, told by its config.json.

    Several targets may have the same sizes; then the pairs of all of them are returned.
    """
    text = text_config(config)
    sizes = [text.get(key) for key in ("hidden_size", "num_hidden_layers", "vocab_size")]
    if None in sizes:
        return []
    return [p for p in known_pairs() if [p.hidden_size, p.num_layers, p.vocab_size] == sizes]
