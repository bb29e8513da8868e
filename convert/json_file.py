"""Read a JSON object from a file that somebody else wrote."""

import json
from pathlib import Path
from typing import Any

from ..errors import UserError


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        UserError: The file is missing, is not JSON, is not an object, or has a key twice.
    """
    try:
        return parse_json_object(path.read_bytes(), str(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error


def parse_json_object(text: bytes, name: str) -> dict[str, Any]:
    """The object in ``text``; ``name`` is what messages call it.

    Raises:
        UserError: It is not JSON, is not an object, or has a key twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # Python's reader would keep the last of two values and say nothing.
        result = dict(pairs)
        if len(result) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise UserError(f"{name} has {', '.join(twice)} twice; remove one.")
        return result

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{name} is not valid JSON ({error}); download it again.") from error
    if not isinstance(value, dict):
        raise UserError(f"{name} holds a {type(value).__name__}, not an object.")
    return value
