"""The exact Metal text that MLX makes for a call, with or without a GPU.

MLX prints it when a kernel is called with ``verbose=True``. While an export is being traced it does
so without running anything, so this works on machines that have no Metal.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx


def metal_source(kernel: Callable, inputs: list[mx.array], arguments: dict) -> str:
    """Returns the text between the fences that MLX prints.

    Args:
        kernel: What ``mx.fast.metal_kernel`` returned.
        inputs: The call's inputs, as arrays.
        arguments: The call's other keyword arguments.
    """
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder, "printed")
        with _standard_output_in(printed):
            mx.export_function(
                str(Path(folder, "trace.mlxfn")),
                lambda *arrays: kernel(inputs=list(arrays), verbose=True, **arguments),
                *inputs,
            )
        text = printed.read_text()
    match = re.search(r"```\n(.*)\n```", text, re.DOTALL)
    if match is None:
        raise RuntimeError(f"MLX printed no kernel source, but: {text[:300]!r}")
    return match.group(1)


@contextmanager
def _standard_output_in(path: Path) -> Iterator[None]:
    """Sends file descriptor 1 to a file; MLX prints from C++, which sys.stdout does not see."""
    sys.stdout.flush()
    saved = os.dup(1)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.dup2(file, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(file)
