"""What tests of several parts share."""

from pathlib import Path

import pytest

from dflash_mlx.embedded import embedded_target
from dflash_mlx.errors import UserError


@pytest.fixture(scope="session")
def target_folder() -> Path:
    """The embedded target's folder; tests that ask for it carry the marker ``pair``."""
    try:
        return embedded_target()
    except UserError as error:
        if "could not be downloaded" not in str(error):
            raise
        pytest.skip(f"no embedded pair in the cache, and none can be fetched: {error}")
