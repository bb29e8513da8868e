"""Data parallelism under ``mlx.launch``: what the processes tell one another."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

import mlx.core as mx
from tqdm import tqdm

from ..errors import UserError
from .learner import Sums

T = TypeVar("T")
# Where no terminal shows a bar, it is a line after so many seconds.
SILENCE = 30.0


class ProgressBar(tqdm):
    """A bar on standard error; where that is not a terminal, a line now and then.

    Args:
        arguments: tqdm's.
        shown: whether this process shows it.
        options: tqdm's.
    """

    def __init__(self, *arguments: Any, shown: bool, **options: Any):
        if not sys.stderr.isatty():
            options |= {"mininterval": SILENCE, "delay": SILENCE, "leave": False}
        super().__init__(*arguments, disable=not shown, **options)

    @staticmethod
    def status_printer(file: TextIO) -> Callable[[str], None]:
        """What tqdm shows its bar with."""
        if file.isatty():
            return tqdm.status_printer(file)
        # tqdm clears its line with an empty one.
        return lambda text: print(text, file=file, flush=True) if text.strip() else None


class PeerStopped(Exception):
    """Another process has stopped, and has told the user why."""

    def __init__(self) -> None:
        super().__init__("Another process of this training has stopped, so this one stops too.")


class World:
    """The processes of one training; a single one is a world of its own.

    Every process takes its share of each batch and of the held-out sequences, and all of them
    make the same update, so parameters never need to be sent.
    """

    def __init__(self) -> None:
        self._group = mx.distributed.init()
        self.rank = self._group.rank()
        self.size = self._group.size()

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and speaks to the user."""
        return self.rank == 0

    def share(self, items: list) -> list:
        """This process's part of ``items``."""
        return items[self.rank :: self.size]

    def average(self, sums: Sums) -> Sums:
        """The mean of all processes' sums; ratios of them are those of the whole batch."""
        if self.size == 1:
            return sums
        gradients = {k: self.total(v) / self.size for k, v in sums.gradients.items()}
        return Sums(gradients, self.total(sums.scalars) / self.size)

    def total(self, numbers: mx.array) -> mx.array:
        """The sum over all processes; waits for them."""
        if self.size == 1:
            return numbers
        return mx.distributed.all_sum(numbers, group=self._group, stream=mx.cpu)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process; waits for them."""
        return bool(self.total(mx.array(int(flag))).item())

    def agree(self, work: Callable[[], T]) -> T:
        """Do something in every process, and go on if it succeeds in all of them.

        Nothing in ``work`` may wait for the others.

        Raises:
            UserError: it failed here, and in no process of a lower rank.
            OSError: the same.
            PeerStopped: it failed elsewhere, where it is said.
        """
        failure = result = None
        try:
            result = work()
        except (OSError, UserError) as error:
            failure = error
        flags = [int(failure is not None and rank == self.rank) for rank in range(self.size)]
        failed = self.total(mx.array(flags)).tolist()
        if failure is not None and not any(failed[: self.rank]):
            raise failure
        if any(failed):
            raise PeerStopped from failure
        return result

    def first(self, work: Callable[[], T]) -> T | None:
        """Do something in the first process alone, while the others wait; see :meth:`agree`."""
        return self.agree(work if self.is_first else lambda: None)

    def in_turn(self, work: Callable[[], T]) -> T:
        """Do something in the first process, and then in the others; see :meth:`agree`."""
        done = self.first(work)
        return self.agree(lambda: done if self.is_first else work())

    @contextmanager
    def together(self) -> Iterator[None]:
        """Whatever waits in the block for a process that is gone ends plainly.

        Raises:
            PeerStopped: another process is gone.
        """
        try:
            yield
        except RuntimeError as error:
            if str(error).startswith("[ring]"):
                raise PeerStopped from error
            raise
