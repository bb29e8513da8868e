"""Where a checkpoint comes from: a local folder, or a snapshot of a Hub repository."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..drafter.config import MODEL_TYPE
from ..errors import UserError, printable
from ..files import read_json_object
from ..loading.hub import fetch
from .weights import INDEX

MASK_FILE = "mask_embedding.pt"
MLX = "MLX"
# Where a repository that is named after its target keeps the drafter.
SUBFOLDER = "dflash"
# Never *.py: code of a checkpoint is neither fetched nor run.
_METADATA = ("config.json", "hf_quant_config.json", "README.md")
_SMALL = [INDEX, *(place + name for place in ("", f"{SUBFOLDER}/") for name in _METADATA)]
_WEIGHTS = ("*.safetensors", MASK_FILE)


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

    @cached_property
    def config(self) -> dict[str, Any]:
        """The parsed config.json; reading it raises UserError."""
        return read_json_object(self.folder / "config.json")

    @property
    def is_converted(self) -> bool:
        """Whether it is in MLX format already."""
        return is_mlx_config(self.config)

    @property
    def weights_folder(self) -> Path:
        """Where the weights are: beside the config, or in a subfolder ``dflash/``."""
        below = self.folder / SUBFOLDER
        beside = any(any(self.folder.glob(pattern)) for pattern in ("*.safetensors", INDEX))
        return below if below.is_dir() and not beside else self.folder

    @property
    def license(self) -> str | None:
        """The licence id in the front matter of the checkpoint's model card, if it has one."""
        card = self.folder / "README.md"
        text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
        front = re.match(r"---\r?\n(.*?)\r?\n---", text, re.DOTALL)
        found = front and re.search(r"^license:[ \t]*([\w.+-]+)[ \t]*\r?$", front[1], re.MULTILINE)
        return found[1] if found else None

    def fetch_weights(self) -> None:
        """Fetch the weights of a Hub repository at the revision already found.

        Raises:
            UserError: The download failed.
        """
        if self.repo is not None:
            place = f"{SUBFOLDER}/" if self.subfolder else ""
            wanted = [*_SMALL, *(place + pattern for pattern in _WEIGHTS)]
            fetch(self.repo, self.revision, wanted, local_only=self.local_only)


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
    root = fetch(path_or_repo, revision, _SMALL, local_only=local_only)
    subfolder = SUBFOLDER if (root / SUBFOLDER / "config.json").is_file() else ""
    folder = root / subfolder
    if Path(path_or_repo).expanduser().is_dir():
        source = Source(folder, printable(root.resolve().name), None, None, subfolder)
    else:
        # A snapshot's folder is named after its commit.
        repo = str(path_or_repo)
        source = Source(folder, repo, repo, root.name, subfolder, local_only)
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{source.name} has no config.json, so it is not a drafter checkpoint that this "
            "version reads (a GGUF file is none)."
        )
    return source


def is_mlx_config(config: dict[str, Any]) -> bool:
    """Whether a config is a converted drafter's."""
    # AngelSpec's checkpoints have the same model_type, but no format_version.
    return config.get("model_type") == MODEL_TYPE and "format_version" in config
