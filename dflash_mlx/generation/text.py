"""Stop strings in a stream of text."""

from collections.abc import Sequence


class StopStrings:
    """Passes text on until a stop string appears, wherever its pieces fall.

    Text that may be the beginning of a stop string is held back until it is clear.

    Args:
        stops: the strings to stop at; they are not part of the text.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, segment: str) -> tuple[str, bool]:
        """Take a segment; return the text to pass on, and whether a stop string ended it."""
        text = self._held + segment
        found = [i for i in (text.find(s) for s in self._stops) if i >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        keep = max((_overlap(text, s) for s in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """The text that was held back, when no more will come."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
