"""AdamW over the drafter's float32 parameters, with warm-up, cosine and clipping."""

import math
from collections.abc import Callable

import mlx.core as mx
from mlx.optimizers import AdamW, clip_grad_norm
from mlx.utils import tree_flatten, tree_unflatten

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
