"""Checks of single values in a drafter's configuration; each refusal names the field."""

import math
from typing import Any, NoReturn

from ..errors import UserError

_LARGEST = 2**31 - 1
# What float16 tells from nothing and from infinity: some drafters compute in it.
_FACTORS = (2.0**-14, 65504.0)


def check_integer(name: str, value: Any, low: int, high: int = _LARGEST) -> None:
    # bool is an int in Python, but `true` in a config is a mistake.
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        reject(name, value, f"an integer from {low} to {high}")


def check_number(
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    at_most: float = math.inf,
) -> None:
    # Comparing takes integers of any length; math.isfinite would overflow.
    limits = (f"above {above}", f"at least {at_least}", f"at most {at_most}")
    bounded = (above > -math.inf, at_least > -math.inf, at_most < math.inf)
    wanted = " and ".join(limit for limit, is_set in zip(limits, bounded, strict=True) if is_set)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not -math.inf < value < math.inf:
        reject(name, value, f"a finite number {wanted}")
    if value <= above or value < at_least or value > at_most:
        reject(name, value, wanted)


def check_factor(name: str, value: Any) -> None:
    low, high = _FACTORS
    check_number(name, value, at_least=low, at_most=high)


def check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        reject(name, value, "true or false")


def reject(name: str, value: Any, wanted: str) -> NoReturn:
    raise UserError(f"{name} is {shown(value)} in the drafter's config; it must be {wanted}.")


def shown(value: Any, most: int = 300) -> str:
    """A value for a message, cut off where nobody reads on."""
    # Python refuses to write an integer of over 4300 digits.
    text = "a huge integer" if type(value) is int and abs(value) > 10**most else repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."
