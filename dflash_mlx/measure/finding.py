"""What a check says."""

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "advice", "fault"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        topic: what was looked at, in a word.
        status: ``"fault"`` if something does not work, ``"advice"`` if it could work better.
        text: what was found and what to do, in plain sentences.
        data: the same in numbers, for programs.
    """

    topic: str
    status: Status
    text: str
    data: dict[str, Any] = field(default_factory=dict)
