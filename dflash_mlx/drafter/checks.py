"""Checks of single values in a drafter's configuration; each refusal names the field."""

import math
from typing import Any, NoReturn

from ..errors import UserError

_LARGEST = 2**31 - 1


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
    limits = (f"above {above}", f"at least {at_least}", f"at most {at_most}")
    bounded = (above > -math.inf, at_least > -math.inf, at_most < math.inf)
    wanted = " and ".join(limit for limit, is_set in zip(limits, bounded, strict=True) if is_set)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        reject(name, value, f"a finite number {wanted}")
    if value <= above or value < at_least or value > at_most:
        reject(name, value, wanted)


def check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        reject(name, value, "true or false")


def reject(name: str, value: Any, wanted: str) -> NoReturn:
    raise UserError(f"{name} is {value!r} in the drafter's config; it must be {wanted}.")
