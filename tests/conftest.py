"""What tests of several parts share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_mlx.engine import calibration, cost_file
from dflash_mlx.errors import UserError
from dflash_mlx.loading.embedded import embedded_target


@pytest.fixture(scope="session", autouse=True)
def costs_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Costs that tests measure are kept among themselves, and are measured less carefully."""
    folder = tmp_path_factory.mktemp("costs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost_file, "cache_dir", lambda: folder)
        patch.setattr(calibration, "WARM_UP_SECONDS", 0.0)
        patch.setattr(calibration, "CONTEXTS", (32, 128))
        # Tests that run beside others have to do with what they measure.
        patch.setattr(calibration, "UNBELIEVABLE", float("inf"))
        yield folder


@pytest.fixture(scope="session")
def target_folder() -> Path:
    """The embedded target's folder; tests that ask for it carry the marker ``pair``."""
    try:
        return embedded_target()
    except UserError as error:
        if "could not be downloaded" not in str(error):
            raise
        pytest.skip(f"no embedded pair in the cache, and none can be fetched: {error}")
