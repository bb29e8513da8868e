"""Uploading: what is sent, and that every failure is one sentence and spares the folder."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

from dflash_mlx.convert.upload import check_upload, upload
from dflash_mlx.errors import UserError
from dflash_mlx.loading.hub import TRANSPORT_ERROR


class Address(str):
    """As ``RepoUrl``: a string with the full id."""

    repo_id = "me/drafter"


class Api:
    """A Hub that records, or fails."""

    calls: list[tuple[str, dict[str, Any]]]
    failure: Exception | None

    def create_repo(self, repo: str, **options: Any) -> Address:
        self.calls.append((repo, options))
        return Address(f"https://huggingface.co/{repo}")

    def upload_folder(self, **options: Any) -> None:
        if self.failure is not None:
            raise self.failure
        self.calls.append(("upload", options))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    api = Api()
    api.calls, api.failure = [], None
    monkeypatch.setattr("dflash_mlx.convert.upload.HfApi", lambda: api)
    return api


def refused(status: int, kind: type[HfHubHTTPError] = HfHubHTTPError) -> HfHubHTTPError:
    response = type("Response", (), {"status_code": status, "headers": {}, "request": None})()
    return kind(f"{status} Client Error\nmore", response=response)


def test_folder_goes_to_a_repository_that_is_made(api: Api, tmp_path: Path) -> None:
    assert upload(tmp_path, "drafter") == "https://huggingface.co/drafter"
    (name, made), (_, sent) = api.calls
    assert name == "drafter" and made["exist_ok"]
    assert (sent["repo_id"], sent["folder_path"]) == ("me/drafter", tmp_path)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (refused(401), "may not write to me/drafter"),
        (refused(403), "may not write to me/drafter"),
        (refused(404, RepositoryNotFoundError), "may not write to me/drafter"),
        (refused(500), r"refused it \(500 Client Error\)"),
        (OfflineModeIsEnabled("offline"), "cannot be reached"),
        (TRANSPORT_ERROR("no route"), "cannot be reached"),
    ],
)
def test_failure(api: Api, tmp_path: Path, failure: Exception, reason: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    api.failure = failure
    with pytest.raises(UserError, match=reason) as error:
        upload(tmp_path, "me/drafter")
    assert len(str(error.value).splitlines()) == 1
    assert f"hf upload me/drafter {tmp_path}" in str(error.value)
    assert (tmp_path / "config.json").exists()


def test_checked_before_a_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_mlx.convert.upload.get_token", lambda: "token")
    check_upload("me/drafter")
    with pytest.raises(UserError, match="not a valid Hub id"):
        check_upload("me/drafter/again")
    monkeypatch.setattr("dflash_mlx.convert.upload.get_token", lambda: None)
    with pytest.raises(UserError, match="hf auth login"):
        check_upload("me/drafter")
