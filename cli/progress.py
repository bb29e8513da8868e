"""One line on the terminal that says what is going on; nothing where nobody watches."""

import threading
from functools import partial
from types import TracebackType

from tqdm import tqdm


class Progress:
    """A bar on standard error, whose clock runs. It is off when that is not a terminal.

    Args:
        unit: what is counted.
        shown: whether there is a bar at all.
    """

    def __init__(self, unit: str, shown: bool = True):
        self._bar = tqdm(
            disable=None if shown else True,
            leave=False,
            unit=unit,
            dynamic_ncols=True,
            bar_format="{desc} [{elapsed}]",
        )
        self._closed = threading.Event()
        if not self._bar.disable:
            threading.Thread(target=self._run_clock, daemon=True).start()

    def _run_clock(self) -> None:
        """Show every second that something goes on: a long prompt may take a minute."""
        while not self._closed.wait(1.0):
            self._bar.refresh()

    def expect(self, total: int) -> None:
        """Count from here to ``total``, and show tqdm's own bar."""
        self._bar.bar_format = None
        self._bar.reset(total)

    def announce(self, text: str) -> None:
        """Say what is about to happen."""
        self._bar.set_description(text)

    def advance(self) -> None:
        """Count one."""
        self._bar.update()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._bar.close()


class Steps:
    """A bar on standard error for what tells how much is done and how much there is in all.

    Args:
        text: what is going on.
        unit: what is counted.
        shown: whether there is a bar at all.
        more_than: how much there must be for a bar.
        patience: seconds without a bar.
    """

    def __init__(
        self,
        text: str,
        unit: str = "it",
        shown: bool = True,
        more_than: int = 0,
        patience: float = 0.0,
    ):
        self._more_than = more_than
        self._make = partial(
            tqdm, desc=text, unit=unit, disable=not shown, delay=patience, leave=False
        )
        self._bar: tqdm | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None and total > self._more_than:
            self._bar = self._make(total=total)
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
            if done == total:
                self._bar.close()
