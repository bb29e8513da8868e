"""The drafter that is taken for a target when none is named."""

from pathlib import Path
from typing import NamedTuple

from ..convert import convert_cached
from ..errors import UserError
from ..files import read_json_object
from .embedded import embedded_drafter, is_embedded_target
from .hub import fetch, is_path
from .known_pairs import KnownPair, pairs_of_config, pairs_of_target

_HOW_TO_NAME = "name a drafter with draft_model (--draft-model on the command line)"


class Choice(NamedTuple):
    """A drafter, or none, and a sentence that says why.

    Attributes:
        message: The sentence.
        folder: The drafter in MLX format, or None to decode plainly.
        drafter: Its Hub id.
        revision: Its commit, if the known pair names one.
    """

    message: str
    folder: Path | None = None
    drafter: str | None = None
    revision: str | None = None


def choose_drafter(target: str | Path) -> Choice:
    """Choose a known drafter for a target.

    A target on the Hub is told by its name, whatever its owner and quantization, and its drafter is
    downloaded and converted if need be. A local folder is told by the sizes in its config.json if
    these mean one drafter only, and nothing is downloaded for it.

    Args:
        target: A folder or a Hub id.

    Raises:
        UserError: The drafter of a target on the Hub cannot be fetched or converted.
    """
    folder = Path(target).expanduser()
    if folder.exists() or is_path(str(target)):
        return _for_folder(fetch(target))
    pairs = pairs_of_target(str(target))
    runs = next((pair for pair in pairs if pair.unsupported is None), None)
    if runs is None:
        return Choice(_plain(str(target), pairs))
    try:
        path = convert_cached(runs.drafter, runs.revision)
    except UserError as error:
        raise UserError(
            f"{error} It is the drafter known for {target}; without it, pass draft_model=False "
            f"(--no-draft on the command line) to decode plainly, or {_HOW_TO_NAME}."
        ) from error
    message = f"Drafter for {target}: {_named(runs)}."
    return Choice(message, path, runs.drafter, runs.revision)


def _for_folder(folder: Path) -> Choice:
    if is_embedded_target(folder):
        return Choice(f"Drafter for {folder}: the default pair's.", embedded_drafter())
    config_file = folder / "config.json"
    config = read_json_object(config_file) if config_file.is_file() else {}
    pairs = pairs_of_config(config)
    # Models that share their sizes may each have a drafter; another's would accept little.
    if len({target for pair in pairs for target in pair.targets}) != 1:
        pairs = []
    runs = next((pair for pair in pairs if pair.unsupported is None), None)
    if runs is None:
        return Choice(_plain(str(folder), pairs))
    try:
        path = convert_cached(runs.drafter, runs.revision, local_only=True)
    except UserError:
        return Choice(
            f"{folder} looks like {runs.targets[0]}, whose drafter {_named(runs)} is not on this "
            f"machine, so it decodes plainly; {_HOW_TO_NAME} to fetch it.",
        )
    message = f"Drafter for {folder}, which looks like {runs.targets[0]}: {_named(runs)}."
    return Choice(message, path, runs.drafter, runs.revision)


def _plain(target: str, pairs: list[KnownPair]) -> str:
    why = "no drafter is known for it"
    if pairs:
        reasons = ", ".join(f"{pair.drafter}: {pair.unsupported}" for pair in pairs)
        why = f"what this version does not run is in each drafter known for it ({reasons})"
    return (
        f"{target} decodes plainly, because {why}; {_HOW_TO_NAME}. `dflash-mlx models` lists the "
        "known pairs."
    )


def _named(pair: KnownPair) -> str:
    return pair.drafter if pair.revision is None else f"{pair.drafter} at {pair.revision[:8]}"
