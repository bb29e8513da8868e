"""The models that the doctor was given: is each what it was named as, and are they a pair?"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from types import SimpleNamespace

from ..convert.inspection import DRAFTER, MLX_DRAFTER, TARGET, kind_of
from ..convert.keys import Additions
from ..convert.reader import read_raw
from ..convert.source import find_source
from ..drafter.config import DrafterConfig
from ..errors import UserError
from ..files import read_json_object
from ..loading.known_pairs import text_config
from ..loading.pairing import check_pair
from .finding import Finding

_OPTIONS = {TARGET: "--model", DRAFTER: "--draft-model"}


@dataclass(frozen=True)
class Given:
    """A model that was named.

    Attributes:
        name: as it was named.
        folder: where it is on this machine, or None.
    """

    name: str
    folder: Path | None


Models = Mapping[str, Given]
"""Models by what they were named as: ``target``, ``drafter`` or both."""


def check_pairing(models: Models) -> Finding | None:
    """Compare the configs of a target and a drafter; weights stay where they are.

    Returns:
        None if one of them is not on this machine, or there is nothing to compare.
    """
    folders = {what: model.folder for what, model in models.items()}
    if not all(folder and (folder / "config.json").is_file() for folder in folders.values()):
        return None
    try:
        kinds = {what: _kind(what, folder) for what, folder in folders.items()}
        if wrong := _wrong_kinds(models, kinds):
            return Finding("pair", "fault", wrong, {"kinds": kinds})
        config = drafter_config(folders[DRAFTER]) if DRAFTER in folders else None
    except UserError as error:
        return Finding("pair", "fault", str(error))
    if config is None or TARGET not in folders:
        return None
    return _compare(config, folders[TARGET])


def drafter_config(folder: Path) -> DrafterConfig:
    """Of a drafter in any format.

    Raises:
        UserError: this version does not run it.
    """
    source = find_source(folder, None)
    if source.is_converted:
        return DrafterConfig.from_dict(source.config)
    return read_raw(source, Additions()).config


def _kind(what: str, folder: Path) -> str:
    # A target's repository may keep its drafter in a subfolder.
    place = find_source(folder, None).folder if what == DRAFTER else folder
    return kind_of(read_json_object(place / "config.json"))


def _wrong_kinds(models: Models, kinds: Mapping[str, str]) -> str | None:
    """A sentence if a target or a drafter is none."""
    found = {what: DRAFTER if kind == MLX_DRAFTER else kind for what, kind in kinds.items()}
    if found == {TARGET: DRAFTER, DRAFTER: TARGET}:
        target, drafter = models[TARGET].name, models[DRAFTER].name
        return (
            f"Target and drafter are swapped: {target} holds a drafter and {drafter} a target. "
            f"Give --model {quote(drafter)} --draft-model {quote(target)}."
        )
    for what, other in ((TARGET, DRAFTER), (DRAFTER, TARGET)):
        if found.get(what) == other:
            return (
                f"{models[what].name} holds a {other}, not a {what}; give it with "
                f"{_OPTIONS[other]}, and a {what} with {_OPTIONS[what]}."
            )
    return None


def _compare(config: DrafterConfig, target: Path) -> Finding:
    text = text_config(read_json_object(target / "config.json"))
    keys = ("num_hidden_layers", "hidden_size", "vocab_size")
    layers, hidden, vocab = (text.get(key) for key in keys)
    if not all(isinstance(size, int) for size in (layers, hidden, vocab)):
        later = "Whether they belong together is told when they are loaded: the target's config "
        return Finding("pair", "ok", f"{later}does not name its sizes.")
    sizes = {"num_layers": layers, "hidden_size": hidden, "vocab_size": vocab}
    try:
        check_pair(config, SimpleNamespace(**sizes))
    except UserError as error:
        wrong = (
            f"They do not belong together. {error} Take a drafter that was made for this target."
        )
        return Finding("pair", "fault", wrong, sizes)
    fits = (
        f"The drafter fits a target of {layers} layers, hidden size {hidden} and a vocabulary of "
        f"{vocab}, as this one is."
    )
    return Finding("pair", "ok", fits, sizes)
