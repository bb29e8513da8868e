"""Upload a converted drafter to the Hugging Face Hub."""

from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from ..errors import UserError
from ..loading.hub import TRANSPORT_ERROR

_FORBIDDEN = (401, 403)


def check_upload(repo: str) -> None:
    """Check what can be known before a conversion, without the network.

    Raises:
        UserError: The id is not one, or nobody is logged in.
    """
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(f"{repo!r} is not a valid Hub id; give one like my-name/my-drafter.") from (
            error
        )
    if get_token() is None:
        raise UserError(
            f"To upload to {repo}, log in first: `hf auth login` with a token that may write."
        )


def upload(folder: Path, repo: str) -> str:
    """Upload a folder in one commit; the repository is made if there is none.

    Args:
        folder: A drafter, complete.
        repo: The Hub id.

    Returns:
        The repository's address.

    Raises:
        UserError: The Hub refuses or cannot be reached. The folder stays as it is.
    """
    api = HfApi()
    try:
        address = api.create_repo(repo, exist_ok=True)
        api.upload_folder(
            repo_id=address.repo_id, folder_path=folder, commit_message="Upload DFlash drafter"
        )
    except (HfHubHTTPError, OfflineModeIsEnabled, TRANSPORT_ERROR) as error:
        raise UserError(
            f"{folder} is complete, but it was not uploaded: {_reason(error, repo)}. Then run "
            f"`hf upload {repo} {folder}`."
        ) from error
    return str(address)


def _reason(error: Exception, repo: str) -> str:
    if not isinstance(error, HfHubHTTPError):
        return "the Hub cannot be reached; connect to the network"
    forbidden = isinstance(error, RepositoryNotFoundError) or (
        error.response.status_code in _FORBIDDEN
    )
    if forbidden:
        return (
            f"your login may not write to {repo}; use your own name or organization, and a token "
            "that may write (`hf auth login`)"
        )
    first, *_ = str(error).strip().splitlines() or ["no reason given"]
    return f"the Hub refused it ({first.rstrip('.')}); see whether {repo} can be written to"
