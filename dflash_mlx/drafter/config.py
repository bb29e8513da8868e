"""The drafter's configuration: what a converted drafter's ``config.json`` says, checked once."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from ..errors import UserError

MODEL_TYPE = "dflash"
FORMAT_VERSION = 1
# What mlx-lm and the converter write beside the drafter's own fields.
COMPANION_KEYS = frozenset({"source", "quantization", "quantization_config"})

_LARGEST = 2**31 - 1
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
            _reject("rope_type", self.rope_type, f"one of {', '.join(_ROPE_EXTRAS)}")
        _check_number("theta", self.theta, above=1.0)
        _check_number("factor", self.factor, at_least=1.0)
        _check_number("attention_factor", self.attention_factor, above=0.0)
        _check_bool("traditional", self.traditional)
        if self.rope_type == "default" and self.factor != 1.0:
            _reject("factor", self.factor, "1.0 with rope_type 'default'")
        if self.rope_type != "yarn" and self.attention_factor != 1.0:
            _reject("attention_factor", self.attention_factor, "1.0 unless rope_type is 'yarn'")
        self._check_extras()

    def _check_extras(self) -> None:
        """The fields of one type only: present there, absent elsewhere, low before high."""
        wanted = _ROPE_EXTRAS[self.rope_type]
        for name in sorted({name for names in _ROPE_EXTRAS.values() for name in names}):
            value = getattr(self, name)
            if name not in wanted:
                if value is not None:
                    _reject(name, value, f"absent with rope_type {self.rope_type!r}")
            elif name == "original_max_position_embeddings":
                _check_integer(name, value, 1)
            else:
                _check_number(name, value, above=0.0)
        if self.rope_type == "yarn" and self.beta_slow >= self.beta_fast:
            _reject("beta_slow", self.beta_slow, f"smaller than beta_fast ({self.beta_fast})")
        if self.rope_type == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            _reject(
                "low_freq_factor",
                self.low_freq_factor,
                f"smaller than high_freq_factor ({self.high_freq_factor})",
            )


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """A drafter in this project's MLX format, every field explicit and range-checked.

    Attributes:
        hidden_size: Width of the drafter.
        target_hidden_size: Width of one tap; ``fc`` reads ``len(target_layer_ids)`` of them.
        intermediate_size: Width of the MLP.
        num_hidden_layers: Number of drafter layers.
        num_attention_heads: Query heads.
        num_key_value_heads: Key/value heads.
        head_dim: Width of one head.
        rms_norm_eps: Epsilon of every RMS norm.
        vocab_size: Rows of the target's table that the drafter was trained with.
        block_size: Block size, anchor included.
        mask_token_id: Token that stands for a position to be drafted.
        target_layer_ids: Taps: 0-based target layers whose OUTPUT is read, in ``fc``'s order.
        num_target_layers: Depth of the target, if the checkpoint says.
        rope: Rotary position embedding.
        attention_bias: Whether q, k, v and o projections have a bias.
        max_position_embeddings: Trained context length, if the checkpoint says.
        has_mask_embedding: Whether the weights hold ``mask_embedding`` [hidden_size], which then
            replaces the mask token's row of the target's table.

    Raises:
        UserError: A value is of the wrong type or out of range; the message names the field.
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    rope: RopeConfig
    attention_bias: bool
    max_position_embeddings: int | None
    has_mask_embedding: bool

    def __post_init__(self) -> None:
        for name in ("hidden_size", "target_hidden_size", "intermediate_size", "vocab_size"):
            _check_integer(name, getattr(self, name), 1)
        _check_integer("num_hidden_layers", self.num_hidden_layers, 1, 1024)
        _check_integer("block_size", self.block_size, 2, 256)
        _check_number("rms_norm_eps", self.rms_norm_eps, above=0.0, at_most=0.01)
        _check_bool("attention_bias", self.attention_bias)
        _check_bool("has_mask_embedding", self.has_mask_embedding)
        for name in ("num_target_layers", "max_position_embeddings"):
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), 1)
        if not isinstance(self.rope, RopeConfig):
            _reject("rope", self.rope, "a RopeConfig")
        self._check_heads()
        self._check_mask_token()
        self._check_taps()

    def _check_heads(self) -> None:
        _check_integer("num_attention_heads", self.num_attention_heads, 1, 4096)
        _check_integer("num_key_value_heads", self.num_key_value_heads, 1, 4096)
        _check_integer("head_dim", self.head_dim, 2, 4096)
        if self.num_attention_heads % self.num_key_value_heads:
            _reject(
                "num_key_value_heads",
                self.num_key_value_heads,
                f"a divisor of num_attention_heads ({self.num_attention_heads})",
            )
        if self.head_dim % 2:
            _reject("head_dim", self.head_dim, "even, because RoPE rotates pairs")

    def _check_mask_token(self) -> None:
        _check_integer("mask_token_id", self.mask_token_id, 0)
        if self.mask_token_id >= self.vocab_size and not self.has_mask_embedding:
            _reject(
                "mask_token_id",
                self.mask_token_id,
                f"below vocab_size ({self.vocab_size}), unless the drafter has a mask embedding",
            )

    def _check_taps(self) -> None:
        taps = self.target_layer_ids
        if not isinstance(taps, tuple) or not taps:
            _reject("target_layer_ids", taps, "a non-empty list of 0-based target layers")
        for tap in taps:
            _check_integer("target_layer_ids", tap, 0)
        if any(a >= b for a, b in itertools.pairwise(taps)):
            _reject("target_layer_ids", list(taps), "strictly increasing")
        if self.num_target_layers is not None and taps[-1] >= self.num_target_layers:
            _reject(
                "target_layer_ids",
                list(taps),
                f"below num_target_layers ({self.num_target_layers})",
            )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Self:
        """Read the MLX format's ``config.json``; mlx-lm's ``load_model`` calls this.

        Args:
            config: The parsed JSON object.

        Raises:
            UserError: It is not this format, or a key is missing, unknown or out of range.
        """
        found = (config.get("model_type"), config.get("format_version"))
        if found != (MODEL_TYPE, FORMAT_VERSION):
            raise UserError(
                f"This config.json has model_type {found[0]!r} and format_version {found[1]!r}; "
                f"a drafter in MLX format has {MODEL_TYPE!r} and {FORMAT_VERSION}. "
                "Convert the checkpoint with `dflash-mlx convert`."
            )
        ignored = COMPANION_KEYS | {"model_type", "format_version"}
        fields = {key: value for key, value in config.items() if key not in ignored}
        _check_keys(cls, fields, "The drafter's config.json")
        rope = fields["rope"]
        if not isinstance(rope, Mapping):
            _reject("rope", rope, "an object")
        _check_keys(RopeConfig, rope, "rope in the drafter's config.json")
        taps = fields["target_layer_ids"]
        fields["target_layer_ids"] = tuple(taps) if isinstance(taps, list) else taps
        return cls(**{**fields, "rope": RopeConfig(**rope)})

    def to_dict(self) -> dict[str, Any]:
        """The MLX format's ``config.json`` as an object; ``from_dict`` reads it back."""
        fields = dataclasses.asdict(self)
        fields["target_layer_ids"] = list(self.target_layer_ids)
        return {"model_type": MODEL_TYPE, "format_version": FORMAT_VERSION, **fields}


def _check_keys(cls: type, found: Mapping[str, Any], where: str) -> None:
    wanted = {field.name for field in dataclasses.fields(cls)}
    if missing := sorted(wanted - set(found)):
        raise UserError(f"{where} lacks {', '.join(missing)}; convert the checkpoint again.")
    if unknown := sorted(set(found) - wanted):
        raise UserError(
            f"{where} has keys this version does not know: {', '.join(unknown)}; "
            "convert the checkpoint again, or use a newer dflash-mlx."
        )


def _check_integer(name: str, value: Any, low: int, high: int = _LARGEST) -> None:
    # bool is an int in Python, but `true` in a config is a mistake.
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        _reject(name, value, f"an integer from {low} to {high}")


def _check_number(
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
        _reject(name, value, f"a finite number {wanted}")
    if value <= above or value < at_least or value > at_most:
        _reject(name, value, wanted)


def _check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        _reject(name, value, "true or false")


def _reject(name: str, value: Any, wanted: str) -> None:
    raise UserError(f"{name} is {value!r} in the drafter's config; it must be {wanted}.")
