"""Where a checkpoint comes from: a local folder, or a snapshot of a Hub repository."""

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..loading.hub import fetch

MASK_FILE = "mask_embedding.pt"
# Never *.py: code of a checkpoint is neither fetched nor run.
_METADATA = ["config.json", "hf_quant_config.json", "README.md"]
_INDEX = "*.safetensors.index.json"
_WEIGHTS = ["*.safetensors", MASK_FILE]
# Where a repository that is named after its target keeps the drafter.
SUBFOLDER = "dflash"


@dataclass(frozen=True)
class Source:
    """A checkpoint's folder and what is known about where it came from.

    Attributes:
        folder: Where its files are.
        name: What messages call it: the Hub id, or the folder's name.
        repo: The Hub id, or None for a local folder.
        revision: The commit hash of the snapshot, or None for a local folder.
        subfolder: The part of the repository that the drafter is in, or empty.
        local_only: Whether nothing may be downloaded.
    """

    folder: Path
    name: str
    repo: str | None
    revision: str | None
    subfolder: str = ""
    local_only: bool = False


def find_source(
    path_or_repo: str | Path, revision: str | None, *, local_only: bool = False
) -> Source:
    """Find a checkpoint; of a Hub repository, only the small files are fetched.

    A config that is refused is thereby refused before gigabytes are downloaded. The drafter is
    looked for in a subfolder ``dflash/`` first.

    Args:
        path_or_repo: A folder, or a Hub id.
        revision: Branch, tag or commit of a Hub repository.
        local_only: Take a Hub repository from the cache, and download nothing.

    Raises:
        UserError: There is no such folder or repository, or it has no config.json.
    """
    if str(path_or_repo).endswith(".gguf"):
        raise UserError(
            f"{path_or_repo} is a GGUF file, which this version does not read; give the original "
            "checkpoint, a folder or a Hugging Face id."
        )
    small = [*_METADATA, _INDEX, *_inside(_METADATA)]
    root = fetch(path_or_repo, revision, small, local_only=local_only)
    subfolder = SUBFOLDER if (root / SUBFOLDER / "config.json").is_file() else ""
    folder = root / subfolder
    if Path(path_or_repo).expanduser().is_dir():
        source = Source(folder, root.resolve().name, None, None, subfolder)
    else:
        # A snapshot's folder is named after its commit.
        repo = str(path_or_repo)
        source = Source(folder, repo, repo, root.name, subfolder, local_only)
    if not (source.folder / "config.json").is_file():
        raise UserError(
            f"{source.name} has no config.json, so it is not a drafter checkpoint that this "
            "version reads (a GGUF file is none)."
        )
    return source


def fetch_weights(source: Source) -> None:
    """Fetch the weights of a Hub repository at the revision already found.

    Raises:
        UserError: The download failed.
    """
    if source.repo is not None:
        wanted = _inside(_WEIGHTS) if source.subfolder else _WEIGHTS
        patterns = [*_METADATA, _INDEX, *_inside(_METADATA), *wanted]
        fetch(source.repo, source.revision, patterns, local_only=source.local_only)


def weights_folder(source: Source) -> Path:
    """Where a checkpoint's weights are: beside its config, or in a subfolder ``dflash/``."""
    below = source.folder / SUBFOLDER
    beside = any(any(source.folder.glob(pattern)) for pattern in ("*.safetensors", _INDEX))
    return below if below.is_dir() and not beside else source.folder


def _inside(patterns: list[str]) -> list[str]:
    return [f"{SUBFOLDER}/{pattern}" for pattern in patterns]


def find_license(source: Source) -> str | None:
    """The licence id in the front matter of the checkpoint's model card, if it has one."""
    card = source.folder / "README.md"
    if not card.is_file():
        return None
    text = card.read_text(encoding="utf-8", errors="replace")
    front = re.match(r"---\r?\n(.*?)\r?\n---", text, re.DOTALL)
    found = front and re.search(r"^license:[ \t]*([\w.+-]+)[ \t]*\r?$", front[1], re.MULTILINE)
    return found[1] if found else None
