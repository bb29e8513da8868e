"""One line on the terminal that says what is going on; nothing where nobody watches."""

import threading
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
