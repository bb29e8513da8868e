"""What the user adds to a checkpoint's config when the config alone is not enough."""

from dataclasses import asdict, dataclass
from typing import Any

from ..errors import UserError


@dataclass(frozen=True, kw_only=True)
class Additions:
    """Values that a config.json may lack and that nothing else tells.

    Attributes:
        block_size: The config's ``block_size``, in the checkpoint's own meaning, if it has none.
        mask_token_id: The config's ``mask_token_id``, if it has none.
        attention_factor: YaRN's amplitude, in place of the one that the config leads to: engines
            disagree on it where a config gives ``mscale`` instead.
        allow_final_tap: Whether a tap on the target's last layer is its output BEFORE the final
            norm. Trainers that read Hugging Face's last hidden state saw it after that norm, and
            a config does not say.
    """

    block_size: int | None = None
    mask_token_id: int | None = None
    attention_factor: float | None = None
    allow_final_tap: bool = False

    @property
    def values(self) -> dict[str, Any]:
        """The config keys that are filled in."""
        return {"block_size": self.block_size, "mask_token_id": self.mask_token_id}

    @property
    def given(self) -> dict[str, Any]:
        """What was added, for the record."""
        return {key: value for key, value in asdict(self).items() if value not in (None, False)}

    def check_final_tap(self, taps: tuple[int, ...], depth: Any) -> None:
        """Refuse a tap on the target's last layer, unless it is allowed.

        Raises:
            UserError: Says which tap, and how to allow it.
        """
        if not self.allow_final_tap and taps and taps[-1] + 1 == depth:
            raise UserError(
                f"This drafter has a tap on the target's last layer ({taps[-1]} of {depth}), and "
                "its config does not say whether before or after the final norm; if before, "
                "convert it with --allow-final-tap."
            )
