"""One line on the terminal that says what is going on; nothing where nobody watches."""

from types import TracebackType

from tqdm import tqdm


class Progress:
    """A bar on standard error. It is off when that is not a terminal."""

    def __init__(self, unit: str):
        self._bar = tqdm(disable=None, leave=False, unit=unit, dynamic_ncols=True)

    def expect(self, total: int) -> None:
        """Count from here to ``total``."""
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
        self._bar.close()
