"""Declaring and checking one generation option."""

import math
from dataclasses import field
from numbers import Real
from typing import Any

from ..errors import UserError


def option(default: object, text: str, **flag: object) -> Any:
    """A field of a dataclass of options, which is a flag of the command line as well.

    Args:
        default: the default of both.
        text: what the option is; the flag's help.
        flag: further arguments of argparse's ``add_argument``; ``flags``, its names where they are
            not the field's; and ``unset``, what a default of None means.
    """
    return field(default=default, metadata={"help": text, **flag})


def check_number(name: str, value: float, least: float = -math.inf, most: float = math.inf) -> None:
    """Check that an option is a finite number in a range."""
    if not (isinstance(value, Real) and math.isfinite(value) and least <= value <= most):
        wanted = "a finite number" if math.isinf(least) else f"a number from {least} up"
        if math.isfinite(most):
            wanted = f"between {least} and {most}"
        raise UserError(f"`{name}` must be {wanted}, not {value!r}.")


def check_callable(name: str, value: object) -> None:
    """Check that an option is None or can be called."""
    if value is not None and not callable(value):
        raise UserError(f"`{name}` cannot be called: {value!r}.")
