"""A Hub on this machine, asked by the real client in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from support.hub_server import HubServer


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """It has what a test publishes, and the client's cache is empty."""
    with HubServer() as server:
        files = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        yield server
