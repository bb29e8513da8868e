"""AdamW over the drafter's float32 parameters, with warm-up, cosine and clipping; checkpoints.

A training goes on from a checkpoint exactly as if it had not been interrupted.
"""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import mlx.core as mx
from mlx.optimizers import AdamW, clip_grad_norm
from mlx.utils import tree_flatten, tree_unflatten

from ..errors import UserError
from .disk import replacing
from .forward import Parameters

Schedule = Callable[[mx.array], mx.array]


def warmup_cosine(peak: float, steps: int, warmup: float) -> Schedule:
    """Learning rate by step: up in a line to ``peak``, then down in half a cosine towards 0.

    Args:
        peak: the largest learning rate.
        steps: steps of the whole training.
        warmup: fraction of them on the way up. Neither the first step nor the last is at 0.
    """
    rising = max(1, round(warmup * steps))
    falling = steps - rising + 1

    def rate(step: mx.array) -> mx.array:
        # MLX counts steps in unsigned numbers, whose differences wrap.
        step = step.astype(mx.float32)
        up = (step + 1) / rising
        part = mx.clip((step - rising + 1) / falling, 0, 1)
        return peak * mx.minimum(up, 0.5 * (1 + mx.cos(math.pi * part)))

    return rate


class Updater:
    """The parameters and what AdamW remembers of them.

    Args:
        parameters: float32, by name.
        learning_rate: a number, or a schedule.
        clip: the largest norm of all gradients together.
        weight_decay: decoupled.

    Attributes:
        parameters: the current ones.
    """

    def __init__(
        self,
        parameters: Parameters,
        learning_rate: float | Schedule,
        clip: float = 1.0,
        weight_decay: float = 0.0,
    ):
        self.parameters = parameters
        self._clip = clip
        # Without its bias correction MLX's Adam is not PyTorch's.
        self._adam = AdamW(learning_rate, weight_decay=weight_decay, bias_correction=True)

    @property
    def learning_rate(self) -> float:
        """That of the last step."""
        return self._adam.learning_rate.item()

    def update(self, gradients: Parameters) -> mx.array:
        """Take one step; returns the gradients' norm before clipping."""
        clipped, norm = clip_grad_norm(gradients, self._clip)
        trees = (tree_unflatten(list(x.items())) for x in (clipped, self.parameters))
        self.parameters = dict(tree_flatten(self._adam.apply_gradients(*trees)))
        mx.eval(self.parameters, self._adam.state, norm)
        return norm

    def state(self) -> dict[str, mx.array]:
        """All that the next step depends on, by name."""
        remembered = {f"adam.{k}": v for k, v in tree_flatten(self._adam.state)}
        return {f"parameters.{k}": v for k, v in self.parameters.items()} | remembered

    def restore(self, state: dict[str, mx.array]) -> None:
        """Go on from what :meth:`state` said."""
        parts = {"parameters": {}, "adam": {}}
        for name, value in state.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value
        # A file has its own order, and the gradients' norm is summed in that of the parameters.
        self.parameters = {name: parts["parameters"][name] for name in self.parameters}
        self._adam.state = tree_unflatten(list(parts["adam"].items()))


@dataclass
class Advance:
    """How far a training has come.

    Attributes:
        step: steps taken.
        best_tau: the best simulated τ, 0 before the first evaluation.
        best_loss: the held-out loss there, which tells between equal τ.
        best_step: when it was reached.
        worse: evaluations since then.
    """

    step: int = 0
    best_tau: float = 0.0
    best_loss: float = math.inf
    best_step: int = 0
    worse: int = 0


def save_checkpoint(folder: Path, updater: Updater, progress: Advance) -> None:
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


def find_checkpoint(folder: Path) -> Path | None:
    """The last checkpoint in a folder, if there is one."""
    found = sorted(p for p in folder.glob("checkpoint-*") if p.suffix != ".partial")
    return found[-1] if found else None


def restore_checkpoint(folder: Path, updater: Updater) -> Advance | None:
    """Give the updater what the last checkpoint holds, if there is one.

    Raises:
        UserError: it is another drafter's, or damaged.
    """
    last = find_checkpoint(folder)
    if last is None:
        return None
    try:
        state = mx.load(str(last / "state.safetensors"))
        progress = _read_advance(last / "progress.json")
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{last} is damaged ({error}); remove it, and --resume begins with the first step "
            "again, with the answers that are there."
        ) from error
    wanted = {f"parameters.{k}": v.shape for k, v in updater.parameters.items()}
    if wanted != {k: v.shape for k, v in state.items() if k.startswith("parameters.")}:
        raise UserError(f"{last} is of a drafter with other weights.")
    updater.restore(state)
    return progress


def _read_advance(path: Path) -> Advance:
    """What a checkpoint says of how far its training has come.

    Raises:
        ValueError: it says something else.
    """
    content = json.loads(path.read_bytes())
    # Earlier versions did not write the loss.
    wanted = {"best_loss": math.inf} | (content if isinstance(content, dict) else {})
    sound = wanted.keys() == asdict(Advance()).keys() and all(
        type(number) is float if name in ("best_tau", "best_loss") else type(number) is int
        for name, number in wanted.items()
    )
    if not sound or min(wanted.values()) < 0:
        raise ValueError(f"{path.name} does not say how far the training has come")
    return Advance(**wanted)
