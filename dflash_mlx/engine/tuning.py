"""A pair's cost table: found in the cache directory, or measured once and put there."""

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import wired_limit

from ..errors import UserError
from ..files import cache_dir, fingerprint, read_json_object
from ..generation.request import most_rows
from ..loading.pair import Pair
from .calibration import calibrate
from .costs import CostTable

FORMAT = 2
# A table is stored again after a text when a time in it has moved by more than this share, or the
# acceptance by as much.
MOVED = 0.05


def tune(
    model: Pair,
    progress: Callable[[int, int], None] = lambda done, total: None,
    again: bool = False,
) -> CostTable:
    """What rounds of this pair cost on this machine: known, stored, or measured and stored.

    Generation with ``block_size="auto"`` asks for it by itself; the first time takes seconds.

    Args:
        model: from :func:`dflash_mlx.load`, with a drafter.
        progress: called with measurements done and in all, if there are any to be made.
        again: measure, whatever is known.

    Raises:
        UserError: the pair has no drafter.
    """
    if model.drafter is None:
        raise UserError("No drafter is loaded, so there is no block size to tune.")
    if model.costs is not None and not again:
        return model.costs
    table = None if again else _load(model)
    if table is None:
        with wired_limit(model.model):
            table = calibrate(
                model.target,
                model.drafter,
                most_rows(model, model.target.make_cache()),
                model.context_length,
                progress,
            )
        mx.clear_cache()
        store(model, table)
    model.costs = table
    return table


def table_path(model: Pair) -> Path:
    """The file that keeps the pair's cost table."""
    return _path(_key(model))


def store(model: Pair, table: CostTable) -> None:
    """Write the pair's file, in one step; where that is not possible, warn and go on."""
    key = _key(model)
    path = _path(key)
    content = {"format": FORMAT, "key": key, "table": table.to_dict()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as scratch:
            written = Path(scratch) / path.name
            written.write_text(json.dumps(content, indent=1) + "\n")
            os.replace(written, path)
    except OSError as error:
        warnings.warn(
            f"What rounds cost here cannot be stored in {path} ({error.strerror or error}), so it "
            "will be measured again next time.",
            stacklevel=2,
        )


def store_if_moved(model: Pair, table: CostTable) -> None:
    """Store what texts have taught, if that is news beside what is stored."""
    stored = _load(model)
    if stored is None or table.differs(stored, MOVED):
        store(model, table)


def _load(model: Pair) -> CostTable | None:
    """The stored table; None if there is none, or what is there cannot be trusted."""
    try:
        key = _key(model)
        content = read_json_object(_path(key))
        if content.get("format") != FORMAT or content.get("key") != key:
            return None
        return CostTable.from_dict(content.get("table"))
    except (UserError, ValueError):
        return None


def _path(key: dict[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_dir() / "costs" / f"{digest[:16]}.json"


def _key(model: Pair) -> dict[str, Any]:
    """All that costs depend on."""
    device = mx.device_info()
    return {
        "device": device["device_name"],
        "architecture": device["architecture"],
        "backend": str(mx.default_device().type),
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in ("mlx", "mlx-lm", "dflash-mlx")},
        "target": fingerprint(model.model),
        "drafter": model.drafter.fingerprint,
        "largest_block": most_rows(model, model.target.make_cache()),
    }
