"""A target and its drafter, ready to generate."""

import threading
from types import TracebackType
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..cache.prompt import PromptCache
from ..drafter.proposal import Drafting
from ..engine.cost_file import CostFile
from ..engine.costs import CostTable
from ..target.stock import PlainTarget
from ..target.target import Target


class Pair:
    """What :func:`dflash_mlx.load` returns as the model.

    It can be called as the target can, and has the target's attributes, so mlx-lm's own functions
    take it too, and decode plainly.

    Attributes:
        target: the target, tapped for the drafter.
        drafter: bound to the target, or None: then every generation decodes plainly.
        context_length: positions that the target was made for, or None if it does not say.
        context_ends: whether it surely was not made for more.
        generating: held by a generation that has the machine to itself.
        costs: what rounds cost on this machine, once :func:`dflash_mlx.tune` was asked for it.
        cost_file: keeps them for the next process; None before, and for costs set by hand.
        batch_costs: what rounds of several sequences cost, by their number, and what keeps it.
    """

    def __init__(
        self,
        target: Target | PlainTarget,
        drafter: Drafting | None = None,
        context_length: int | None = None,
        context_ends: bool = True,
    ):
        self.target = target
        self.drafter = drafter
        self.context_length = context_length
        self.context_ends = context_ends
        self.generating = threading.Lock()
        self.costs: CostTable | None = None
        self.cost_file: CostFile | None = None
        self.batch_costs: dict[int, tuple[CostTable, CostFile | None]] = {}

    @property
    def model(self) -> nn.Module:
        """The target as mlx-lm knows it."""
        return self.target.model

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        """A forward of the target."""
        return self.model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # Asked for what a pair itself does not have. Before __init__ there is no target either.
        if name == "target":
            raise AttributeError(name)
        return getattr(self.model, name)

    def make_prompt_cache(self, max_kv_size: int | None = None) -> PromptCache:
        """An empty prompt cache for several calls that continue one another.

        Args:
            max_kv_size: rows that a layer of the target keeps at most, as in mlx-lm: the first 4
                and the last ones. Default: all.

        Raises:
            UserError: the size is too small, or the target's family shapes its own caches.
        """
        return PromptCache(self.target.make_cache(max_kv_size))

    def release(self) -> None:
        """Give the target's layers their own classes back. The pair cannot generate any more."""
        self.target.release()

    def __enter__(self) -> "Pair":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
