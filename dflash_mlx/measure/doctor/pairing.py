"""Whether what was named as target and drafter is one, and whether they belong together."""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from ...convert.additions import Additions
from ...convert.inspection import DRAFTER, MLX_DRAFTER, TARGET, UNKNOWN, kind_of
from ...convert.reader import is_mlx_format, read_raw
from ...convert.source import find_source
from ...drafter.config import DrafterConfig
from ...errors import UserError
from ...files import read_json_object
from ...loading.hub import find_local
from ...loading.known_pairs import text_config
from ...loading.pairing import check_pair
from .finding import Finding

_OPTIONS = {"target": "--model", "drafter": "--draft-model"}


class _Sizes(NamedTuple):
    """A target's, from its config."""

    num_layers: int
    hidden_size: int
    vocab_size: int


def check_pairing(models: Mapping[str, tuple[str, str | None]]) -> Finding | None:
    """Compare the configs of a target and a drafter; weights stay where they are.

    Args:
        models: what each is, its name and its revision.

    Returns:
        None if one of them is not on this machine, or there is nothing to compare.
    """
    folders = {what: find_local(name, revision) for what, (name, revision) in models.items()}
    if not all(folder and (folder / "config.json").is_file() for folder in folders.values()):
        return None
    names = {what: name for what, (name, _) in models.items()}
    try:
        kinds = {what: _kind(what, folder) for what, folder in folders.items()}
        if wrong := _wrong_kinds(names, kinds):
            return Finding("pair", "fault", wrong, {"kinds": kinds})
        config = _drafter_config(folders["drafter"]) if "drafter" in folders else None
    except UserError as error:
        return Finding("pair", "fault", str(error))
    if config is None or "target" not in folders:
        return None
    return _compare(config, _sizes(folders["target"]))


def _kind(what: str, folder: Path) -> str:
    # A target's repository may keep its drafter in a subfolder.
    place = find_source(folder, None).folder if what == "drafter" else folder
    return kind_of(read_json_object(place / "config.json"))


def _wrong_kinds(names: Mapping[str, str], kinds: Mapping[str, str]) -> str | None:
    """A sentence if a target or a drafter is none."""
    found = {what: _role(kind) for what, kind in kinds.items()}
    if found == {"target": "drafter", "drafter": "target"}:
        return (
            f"Target and drafter are swapped: {names['target']} holds a drafter and "
            f"{names['drafter']} a target. Give --model {quote(names['drafter'])} "
            f"--draft-model {quote(names['target'])}."
        )
    for what, other in (("target", "drafter"), ("drafter", "target")):
        if found.get(what, what) == other:
            return (
                f"{names[what]} holds a {other}, not a {what}; give it with {_OPTIONS[other]}, and "
                f"a {what} with {_OPTIONS[what]}."
            )
    return None


def _role(kind: str) -> str:
    return {DRAFTER: "drafter", MLX_DRAFTER: "drafter", TARGET: "target", UNKNOWN: "unknown"}[kind]


def _drafter_config(folder: Path) -> DrafterConfig:
    """Of a drafter in any format.

    Raises:
        UserError: this version does not run it.
    """
    source = find_source(folder, None)
    if is_mlx_format(source):
        return DrafterConfig.from_dict(read_json_object(source.folder / "config.json"))
    return read_raw(source, Additions()).config


def _sizes(folder: Path) -> _Sizes | None:
    """None if the config leaves some of them to the model's own defaults."""
    config: Mapping[str, Any] = text_config(read_json_object(folder / "config.json"))
    sizes = [config.get(key) for key in ("num_hidden_layers", "hidden_size", "vocab_size")]
    return _Sizes(*sizes) if all(isinstance(size, int) for size in sizes) else None


def _compare(config: DrafterConfig, sizes: _Sizes | None) -> Finding | None:
    if sizes is None:
        text = "Whether they belong together is told when they are loaded: the target's config "
        return Finding("pair", "ok", f"{text}does not name its sizes.")
    try:
        check_pair(config, sizes)
    except UserError as error:
        text = f"They do not belong together. {error} Take a drafter that was made for this target."
        return Finding("pair", "fault", text, sizes._asdict())
    text = (
        f"The drafter fits a target of {sizes.num_layers} layers, hidden size {sizes.hidden_size} "
        f"and a vocabulary of {sizes.vocab_size}, as this one is."
    )
    return Finding("pair", "ok", text, sizes._asdict())
