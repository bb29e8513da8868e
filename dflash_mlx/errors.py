"""The exception that means "what you asked for cannot be done, and here is why"; its wording."""

import errno
from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake that the user can mend: a wrong id, a bad file, an option that does not fit.

    The message is one or two sentences: what was found, what was needed, and what to do. It has
    options as Python's keywords in backquotes, which the command line shows as flags. There it is
    printed, and the exit code is 2; in Python it is a ``ValueError``. What a message quotes may
    come from a checkpoint, so it is made :func:`printable`.
    """

    def __init__(self, message: str):
        super().__init__(printable(message))


def printable(text: str) -> str:
    """A text on one line, with escapes for what would move a cursor or cannot be encoded."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def at_least_one(name: str, value: int) -> int:
    """The value of an option, checked to be a whole number above 0."""
    if not (isinstance(value, int) and value > 0):
        raise UserError(f"`{name}` must be a whole number from 1 up, not {value}.")
    return value


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence on a word that is not ``known``: the nearest one that is."""
    known = list(known)
    near = get_close_matches(word, known, n=1) or [x for x in known if word.startswith(x)]
    return f"; did you mean {near[0]}?" if near else "."


def counted(number: int | str, thing: str, things: str | None = None) -> str:
    """A number of things, such as "1 layer" or "2 layers".

    Args:
        number: how many; a word, such as No, stands for several.
        thing: the name of one.
        things: the name of several, if it is not made by an s.
    """
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"


def os_reason(error: OSError | RuntimeError) -> str:
    """Why the system refused a file, in the words of somebody who can mend it.

    Args:
        error: Python's, or what MLX raises when it cannot write to a file that it has opened. That
            does not tell why, and there is one usual reason.
    """
    if isinstance(error, RuntimeError):
        if "Unable to write" not in str(error):
            return str(error).rstrip(".")
        error = OSError(errno.ENOSPC, "")
    reasons = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "your quota of the disk is used up",
        errno.EFBIG: "the file is larger than the system lets it be",
        errno.EROFS: "the file system is read-only",
        errno.EACCES: "permission is denied",
        errno.EPERM: "permission is denied",
    }
    return reasons.get(error.errno, error.strerror or str(error))


def brief(error: BaseException) -> str:
    """An exception's kind and the first line of its message, without a full stop."""
    first, *_ = str(error).strip().splitlines() or [""]
    kind = type(error).__name__
    return f"{kind}: {first.rstrip('.')}" if first else kind
