"""A table of options: a dataclass that checks its values, and of which the flags are made."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ..errors import UserError


def option(default: object, text: str, group: str | None = None, **more: object) -> Any:
    """A field of a table that is a flag of the command line as well.

    Args:
        default: the default of both; ``dataclasses.MISSING`` where there is none.
        text: what the option is; the flag's help.
        group: the part of the help that it stands in.
        more: for its numbers ``least`` and ``most``, the smallest and largest, or ``above``, what
            they must be larger than; ``choices`` and ``metavar`` as argparse has them; ``flags``,
            its names where they are not the field's; ``unset``, what a default of None means.
    """
    return field(default=default, metadata={"help": text, "group": group, **more})


@dataclass(frozen=True)
class OptionTable:
    """Checks the options among its fields by their types, ranges and choices.

    Raises:
        UserError: a value is not of its type, or out of its range.
    """

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for f in fields(self):
            kinds, value = get_args(hints[f.name]) or (hints[f.name],), getattr(self, f.name)
            if "help" not in f.metadata or (value is None and type(None) in kinds):
                continue
            _check_kind(f.name, value, kinds)
            if kinds[0] in (int, float) and str not in kinds:
                _check_number(f.name, value, kinds[0], f.metadata)
            choices = f.metadata.get("choices")
            if choices is not None and value not in choices:
                names = ", ".join(map(str, choices))
                raise UserError(f"`{f.name}` must be one of {names}, not {value!r}.")


def _check_kind(name: str, value: Any, kinds: Sequence[Any]) -> None:
    """A bool is a number to Python and any word is true, so both are taken for what they are."""
    if isinstance(value, bool) and bool not in kinds:
        raise UserError(f"`{name}` cannot be {value}.")
    wanted = {bool: "True or False", str: "a text", Path: "a path"}.get(kinds[0])
    plain = all(isinstance(kind, type) for kind in kinds)
    if wanted is not None and plain and not isinstance(value, kinds):
        raise UserError(f"`{name}` must be {wanted}, not {value!r}.")


def _check_number(name: str, value: Any, kind: type, limits: dict[str, Any]) -> None:
    least, most = limits.get("least", -math.inf), limits.get("most", math.inf)
    above = limits.get("above", -math.inf)
    fits = isinstance(value, Real if kind is float else int) and math.isfinite(value)
    if fits and least <= value <= most and value > above:
        return
    wanted = "a finite number" if kind is float else "a whole number"
    if most < math.inf:
        wanted = f"between {least} and {most}"
    elif least > -math.inf:
        wanted += f" from {least} up"
    elif above > -math.inf:
        wanted += f" above {above}"
    raise UserError(f"`{name}` must be {wanted}, not {value!r}.")


def check_callable(name: str, value: object) -> None:
    """Check that an option is None or can be called."""
    if value is not None and not callable(value):
        raise UserError(f"`{name}` cannot be called: {value!r}.")
