"""What the tests of paths share."""

from collections.abc import Iterator

import mlx.core as mx
import pytest


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    """These tests are about choices and plain numbers; a GPU's sine and cosine may be coarser."""
    with mx.stream(mx.cpu):
        yield
