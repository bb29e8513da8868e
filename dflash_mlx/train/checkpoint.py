"""Checkpoints of a training that goes on exactly as if it had not been interrupted."""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import mlx.core as mx

from ..errors import UserError
from .disk import replacing
from .optimizer import Updater


@dataclass
class Progress:
    """How far a training has come. Random draws depend on the step alone, so they need no state.

    Attributes:
        step: steps taken.
        best_tau: the best simulated τ, 0 before the first evaluation.
        best_step: when it was reached.
        worse: evaluations since then.
    """

    step: int = 0
    best_tau: float = 0.0
    best_step: int = 0
    worse: int = 0


def save(folder: Path, updater: Updater, progress: Progress) -> None:
    """Write a checkpoint and remove those before it; one that is cut short is never read.

    Raises:
        UserError: it cannot be written; the one before it is still there.
    """
    path = folder / f"checkpoint-{progress.step:07d}"
    state = updater.state()
    mx.eval(state)
    with replacing(path) as partial:
        partial.mkdir(parents=True)
        mx.save_safetensors(str(partial / "state.safetensors"), state)
        (partial / "progress.json").write_text(json.dumps(asdict(progress)), encoding="utf-8")
        shutil.rmtree(path, ignore_errors=True)
    for old in folder.glob("checkpoint-*"):
        if old != path:
            shutil.rmtree(old)


def find(folder: Path) -> Path | None:
    """The last checkpoint in a folder, if there is one."""
    found = sorted(p for p in folder.glob("checkpoint-*") if p.suffix != ".partial")
    return found[-1] if found else None


def restore(folder: Path, updater: Updater) -> Progress:
    """Give the updater what the last checkpoint holds.

    Raises:
        UserError: it is another drafter's, or damaged.
    """
    last = find(folder)
    try:
        state = mx.load(str(last / "state.safetensors"))
        progress = Progress(**json.loads((last / "progress.json").read_bytes()))
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise UserError(
            f"{last} is damaged ({error}); remove it, and --resume begins with the first step "
            "again, with the answers that are there."
        ) from error
    wanted = {f"parameters.{k}": v.shape for k, v in updater.parameters.items()}
    if wanted != {k: v.shape for k, v in state.items() if k.startswith("parameters.")}:
        raise UserError(f"{last} is of a drafter with other weights.")
    updater.restore(state)
    return progress
