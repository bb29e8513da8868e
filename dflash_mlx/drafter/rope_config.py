"""A drafter's rotary position embedding, as its configuration says it."""

from dataclasses import dataclass
from typing import Literal

from .checks import check_bool, check_factor, check_integer, check_number, reject

_ROPE_EXTRAS = {
    "default": (),
    "linear": (),
    "llama3": ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("beta_fast", "beta_slow", "original_max_position_embeddings"),
}


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding, with every number that the rotation depends on.

    Attributes:
        rope_type: How the frequencies are scaled.
        theta: Base of the frequencies.
        factor: Context extension factor, 1.0 for ``default``.
        attention_factor: YaRN's amplitude, by which the rotated part is multiplied; 1.0 for
            the other types.
        traditional: Rotate neighbouring pairs instead of the two halves of a head.
        original_max_position_embeddings: Trained context (``llama3`` and ``yarn`` only).
        beta_fast: ``yarn`` only.
        beta_slow: ``yarn`` only.
        low_freq_factor: ``llama3`` only.
        high_freq_factor: ``llama3`` only.

    Raises:
        UserError: A value is out of range, or does not belong to the type.
    """

    rope_type: Literal["default", "linear", "llama3", "yarn"]
    theta: float
    factor: float
    attention_factor: float
    traditional: bool
    original_max_position_embeddings: int | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None

    def __post_init__(self) -> None:
        if self.rope_type not in _ROPE_EXTRAS:
            reject("rope_type", self.rope_type, f"one of {', '.join(_ROPE_EXTRAS)}")
        # Periods in float32 reach theta times factor.
        check_number("theta", self.theta, at_least=2.0, at_most=1e30)
        check_number("factor", self.factor, at_least=1.0, at_most=65504.0)
        check_factor("attention_factor", self.attention_factor)
        check_bool("traditional", self.traditional)
        if self.rope_type == "default" and self.factor != 1.0:
            reject("factor", self.factor, "1.0 with rope_type 'default'")
        if self.rope_type != "yarn" and self.attention_factor != 1.0:
            reject("attention_factor", self.attention_factor, "1.0 unless rope_type is 'yarn'")
        self._check_extras()

    def _check_extras(self) -> None:
        """The fields of one type only: present there, absent elsewhere, low before high."""
        wanted = _ROPE_EXTRAS[self.rope_type]
        for name in sorted({name for names in _ROPE_EXTRAS.values() for name in names}):
            value = getattr(self, name)
            if name not in wanted:
                if value is not None:
                    reject(name, value, f"absent with rope_type {self.rope_type!r}")
            elif name == "original_max_position_embeddings":
                check_integer(name, value, 1)
            else:
                check_factor(name, value)
        if self.rope_type == "yarn" and self.beta_slow >= self.beta_fast:
            reject("beta_slow", self.beta_slow, f"smaller than beta_fast ({self.beta_fast})")
        if self.rope_type == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            reject(
                "low_freq_factor",
                self.low_freq_factor,
                f"smaller than high_freq_factor ({self.high_freq_factor})",
            )
