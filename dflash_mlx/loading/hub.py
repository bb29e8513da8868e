"""Turn a local folder or a Hugging Face Hub id into a local folder, or say plainly why not."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ..errors import UserError, os_reason
from ..files import check_path

# huggingface_hub has changed its HTTP library between versions; this is that library's own error.
TRANSPORT_ERROR = HfHubHTTPError.__bases__[0]

# How long the Hub may take to begin an answer.
ANSWER_SECONDS = 4

# A model's weights in MLX's naming, its configuration and its tokenizer; never code.
MODEL_FILES = (
    "*.json",
    "*.jinja",
    "*.tiktoken",
    "*.txt",
    "model*.safetensors",
    "tokenizer.model",
)


def is_path(name: str) -> bool:
    """Whether a name can only mean a folder, because no Hub id is spelled like it."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def fetch(
    path_or_repo: str | Path,
    revision: str | None = None,
    allow_patterns: Sequence[str] = MODEL_FILES,
    *,
    local_only: bool = False,
) -> Path:
    """A local folder with a model's files, downloaded if need be.

    Args:
        path_or_repo: an existing folder, or a Hub id such as ``z-lab/Qwen3-4B-DFlash-b16``.
        revision: branch, tag or commit on the Hub.
        allow_patterns: which files to download.
        local_only: download nothing; what the Hub cache holds must do.

    Raises:
        UserError: there is no such folder or repository, or it cannot be reached.
    """
    path = Path(path_or_repo).expanduser()
    check_path(path)
    if path.is_dir():
        if revision is not None:
            raise UserError(
                f"A revision ({revision}) was given for the local folder {path}; revisions exist "
                "only on the Hub. Leave it out."
            )
        return path
    if path.exists():
        raise UserError(f"{path} is a file; a model is a folder with config.json and weights.")
    name = str(path_or_repo)
    if is_path(name):
        raise UserError(f"There is no folder {path}.")
    with hub_errors(name, revision):
        local_only = local_only or not _reachable(name, revision)
        return Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=list(allow_patterns),
                local_files_only=local_only,
            )
        )


def _reachable(name: str, revision: str | None) -> bool:
    """Whether the Hub answers about a repository.

    Asked once: snapshot_download would try again for 23 seconds before it says that it cannot.
    What the Hub refuses may be in the cache all the same, so a refusal is an answer as well.
    """
    try:
        HfApi().model_info(name, revision=revision, timeout=ANSWER_SECONDS)
    except HfHubHTTPError:
        return True
    except (OfflineModeIsEnabled, TRANSPORT_ERROR):
        return False
    return True


@contextmanager
def hub_errors(name: str, revision: str | None) -> Iterator[None]:
    """Turn what huggingface_hub raises about a repository into a sentence.

    Raises:
        UserError: it raised something.
    """
    try:
        yield
    except HFValidationError as error:
        raise UserError(f"{name!r} is neither a folder nor a valid Hub id.") from error
    except GatedRepoError as error:
        raise UserError(
            f"{name} is gated: accept its terms on huggingface.co and log in with `hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        raise UserError(f"{name} has no revision {revision!r} on the Hub.") from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"There is no folder and no Hub repository {name!r}; check the spelling, or log in "
            "with `hf auth login` if it is private."
        ) from error
    # Before the transport's error, of which it is a kind.
    except HfHubHTTPError as error:
        first, *_ = str(error).strip().splitlines() or ["no reason given"]
        reason = first.rstrip(".")
        raise UserError(f"The Hub refused {name} ({reason}); try again later.") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, TRANSPORT_ERROR) as error:
        raise UserError(
            f"{name} is neither a local folder nor in the Hub cache, and the Hub cannot be "
            "reached; connect to the network or give a local folder."
        ) from error
    except OSError as error:
        raise UserError(f"{name} cannot be kept in the Hub cache ({os_reason(error)}).") from error


def find_local(path_or_repo: str | Path, revision: str | None = None) -> Path | None:
    """Where a model's files are on this machine, or None. Nothing is downloaded, nobody is asked.

    Args:
        path_or_repo: a folder, or a Hub id.
        revision: branch, tag or commit on the Hub.

    Returns:
        The folder, or the snapshot in the Hub's cache. It may lack files.
    """
    path = Path(path_or_repo).expanduser()
    if path.is_dir():
        return path
    try:
        config = try_to_load_from_cache(str(path_or_repo), "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None
