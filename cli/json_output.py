"""The JSON that commands print for programs."""

import json
from collections.abc import Mapping

from .. import __version__

# Of what all commands print with --json; it changes when a field gets another meaning or is gone.
FORMAT_VERSION = 1


def print_json(content: Mapping[str, object]) -> None:
    """Print an object, behind the version of its format and that of this program."""
    head = {"format_version": FORMAT_VERSION, "dflash_mlx": __version__}
    # JSON escapes every control character but one.
    print(json.dumps(head | content, indent=2).replace("\x7f", "\\u007f"))
