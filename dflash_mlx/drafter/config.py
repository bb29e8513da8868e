"""The drafter's configuration: what a converted drafter's ``config.json`` says, checked once."""

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from ..errors import UserError
from .checks import check_bool, check_factor, check_integer, check_number, reject
from .rope_config import RopeConfig

MODEL_TYPE = "dflash"
FORMAT_VERSION = 1
# What mlx-lm and the converter write beside the drafter's own fields.
COMPANION_KEYS = frozenset({"source", "quantization", "quantization_config"})

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """A drafter in this project's MLX format, every field range-checked.

    Fields without a default must be in the file; the defaults are those of a z-lab v1 drafter.

    Attributes:
        hidden_size: Width of the drafter.
        target_hidden_size: Width of one tap; ``fc`` reads ``len(target_layer_ids)`` of them.
        intermediate_size: Width of the MLP.
        num_hidden_layers: Number of drafter layers.
        num_attention_heads: Query heads.
        num_key_value_heads: Key/value heads.
        head_dim: Width of one head.
        rms_norm_eps: Epsilon of every RMS norm.
        vocab_size: Tokens of the target's table that the drafter was trained with.
        block_size: Block size: the tokens that a round verifies, anchor included.
        mask_token_id: Token that stands for a position to be drafted.
        target_layer_ids: Taps: 0-based target layers whose OUTPUT is read, before any final norm,
            in ``fc``'s order. None at all means the target's last hidden state after its final
            norm, and no ``fc``.
        num_target_layers: Depth of the target, if the checkpoint says.
        rope: Rotary position embedding.
        attention_bias: Whether q, k, v and o projections have a bias.
        max_position_embeddings: Trained context length, if the checkpoint says.
        has_mask_embedding: Whether the weights hold ``mask_embedding`` [hidden_size], which then
            replaces the mask token's embedding.
        layer_types: ``"full_attention"`` or ``"sliding_attention"``, one a layer; empty: all full.
        sliding_window: Positions that a sliding layer sees, its own included.
        window_rule: How the window falls on position ``k``. ``"row"``: a row at ``p`` sees
            ``p - k < sliding_window``, and ahead in its block ``k - p < sliding_window`` if the
            layer is not causal. ``"anchor"``: every row of a block whose anchor is at ``a``
            sees ``a - k <= sliding_window``, and all of its block.
        causal_layers: Whether a row sees only itself and what precedes it in its block, one a
            layer; empty: no layer is causal. Context is visible either way.
        embed_scale: ``"target"``: block embeddings are what the target's first layer receives;
            ``"raw"``: the table's as they are.
        input_embedding_scale: Further factor on embeddings, the mask embedding excepted.
        output_multiplier: Factor on the head's logits.
        final_logit_softcapping: ``cap * tanh(logits / cap)`` after it, or None.
        has_embed_tokens: Whether the drafter brings its own embedding table.
        has_lm_head: Whether the drafter brings its own head, for ``draft_vocab_size`` tokens.
        draft_vocab_size: Tokens that the drafter can draft, or None for all of ``vocab_size``.
            If fewer, ``d2t`` [draft_vocab_size] int32 holds their ids in the target's vocabulary.
        has_hidden_dim_adapter: Whether each tap goes through ``hidden_dim_adapter``, a projection
            from ``target_hidden_size`` to ``hidden_size``, before ``fc``.
        sample_from_anchor: Whether row ``j`` of a block predicts the token after its own position,
            the anchor's row included, and the last row of the block is never run; else row
            ``j`` predicts the token at its own position.
        conv_kernel_size: Taps of DFlash 2's grouped dynamic causal convolutions, or None.
        conv_group_size: Channels that share a dynamic kernel there, or None.
        selector_rank: Width of DFlash 2's candidate selector, or None.
        selector_top_k: Candidates a position there, or None.
        draft_passes: 2: the block is drafted again, its first ``draft_prefix`` rows holding the
            anchor and the first pass's likeliest tokens; the rows after them are the second's.
        draft_prefix: rows given in the second pass, anchor included, or None.

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
    layer_types: tuple[str, ...] = ()
    sliding_window: int | None = None
    window_rule: Literal["row", "anchor"] = "row"
    causal_layers: tuple[bool, ...] = ()
    embed_scale: Literal["target", "raw"] = "target"
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    has_embed_tokens: bool = False
    has_lm_head: bool = False
    draft_vocab_size: int | None = None
    has_hidden_dim_adapter: bool = False
    sample_from_anchor: bool = False
    conv_kernel_size: int | None = None
    conv_group_size: int | None = None
    selector_rank: int | None = None
    selector_top_k: int | None = None
    draft_passes: int = 1
    draft_prefix: int | None = None

    def __post_init__(self) -> None:
        for name in ("hidden_size", "target_hidden_size", "intermediate_size", "vocab_size"):
            check_integer(name, getattr(self, name), 1)
        for name in ("num_attention_heads", "num_key_value_heads"):
            check_integer(name, getattr(self, name), 1, 4096)
        check_integer("head_dim", self.head_dim, 2, 4096)
        check_integer("num_hidden_layers", self.num_hidden_layers, 1, 1024)
        check_integer("block_size", self.block_size, 2, 256)
        check_integer("mask_token_id", self.mask_token_id, 0)
        check_integer("draft_passes", self.draft_passes, 1, 2)
        for name in ("num_target_layers", "max_position_embeddings"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1)
        for name in ("input_embedding_scale", "output_multiplier"):
            check_factor(name, getattr(self, name))
        if self.final_logit_softcapping is not None:
            check_factor("final_logit_softcapping", self.final_logit_softcapping)
        # From float32's smallest number on: with less, a row of zeros becomes NaN.
        check_number("rms_norm_eps", self.rms_norm_eps, at_least=2.0**-126, at_most=0.01)
        for field in dataclasses.fields(self):
            if field.type is bool:
                check_bool(field.name, getattr(self, field.name))
        self._require("rope", isinstance(self.rope, RopeConfig), "a RopeConfig")
        self._check_heads()
        self._check_taps()
        self._check_layers()
        self._check_tables()
        self._check_dflash2()
        self._check_passes()

    @property
    def sliding(self) -> tuple[bool, ...]:
        """Whether each layer is a sliding one."""
        if not self.layer_types:
            return (False,) * self.num_hidden_layers
        return tuple(kind == SLIDING for kind in self.layer_types)

    @property
    def causal(self) -> tuple[bool, ...]:
        """Whether each layer's block is causal."""
        return self.causal_layers or (False,) * self.num_hidden_layers

    def _require(self, name: str, ok: bool, wanted: str) -> None:
        if not ok:
            value = getattr(self, name)
            reject(name, list(value) if isinstance(value, tuple) else value, wanted)

    def _check_heads(self) -> None:
        self._require(
            "num_key_value_heads",
            self.num_attention_heads % self.num_key_value_heads == 0,
            f"a divisor of num_attention_heads ({self.num_attention_heads})",
        )
        self._require("head_dim", self.head_dim % 2 == 0, "even, because RoPE rotates pairs")

    def _check_taps(self) -> None:
        taps, depth = self.target_layer_ids, self.num_target_layers
        self._require(
            "target_layer_ids", isinstance(taps, tuple), "a list of 0-based target layers"
        )
        for tap in taps:
            check_integer("target_layer_ids", tap, 0)
        ascending = all(a < b for a, b in itertools.pairwise(taps))
        self._require("target_layer_ids", ascending, "strictly increasing")
        self._require(
            "target_layer_ids",
            not taps or depth is None or taps[-1] < depth,
            f"below num_target_layers ({depth})",
        )
        bare = not taps and not self.has_hidden_dim_adapter
        self._require(
            "hidden_size",
            not bare or self.hidden_size == self.target_hidden_size,
            f"target_hidden_size ({self.target_hidden_size}) without taps and adapter",
        )

    def _check_layers(self) -> None:
        count = self.num_hidden_layers
        for name, items in (("layer_types", "types"), ("causal_layers", "flags")):
            value = getattr(self, name)
            fits = isinstance(value, tuple) and len(value) in (0, count)
            self._require(name, fits, f"a list of {count} {items}, or empty")
        for kind in self.layer_types:
            if kind not in (FULL, SLIDING):
                reject("layer_types", kind, f"{FULL!r} or {SLIDING!r}")
        for flag in self.causal_layers:
            check_bool("causal_layers", flag)
        self._require("window_rule", self.window_rule in ("row", "anchor"), "'row' or 'anchor'")
        if any(self.sliding):
            check_integer("sliding_window", self.sliding_window, 1)
        else:
            none = self.sliding_window is None
            self._require("sliding_window", none, "null without a sliding layer")

    def _check_tables(self) -> None:
        self._require(
            "mask_token_id",
            self.mask_token_id < self.vocab_size or self.has_mask_embedding,
            f"below vocab_size ({self.vocab_size}), unless the drafter has a mask embedding",
        )
        scale = self.embed_scale
        self._require("embed_scale", scale in ("target", "raw"), "'target' or 'raw'")
        own = scale == "raw" or not self.has_embed_tokens
        self._require("embed_scale", own, "'raw' with its own embedding table")
        if self.draft_vocab_size is not None:
            check_integer("draft_vocab_size", self.draft_vocab_size, 1, self.vocab_size - 1)
            self._require("draft_vocab_size", self.has_lm_head, "null without its own head")

    def _check_dflash2(self) -> None:
        pairs = (("conv_kernel_size", "conv_group_size"), ("selector_rank", "selector_top_k"))
        for names in pairs:
            if any(getattr(self, name) is not None for name in names):
                for name in names:
                    check_integer(name, getattr(self, name), 1)
        if self.conv_kernel_size is not None:
            check_integer("conv_kernel_size", self.conv_kernel_size, 1, self.block_size)
            self._require(
                "conv_group_size",
                self.hidden_size % self.conv_group_size == 0,
                f"a divisor of hidden_size ({self.hidden_size})",
            )
        if self.selector_top_k is not None:
            check_integer("selector_top_k", self.selector_top_k, 1, self.vocab_size)
            full = self.draft_vocab_size is None
            self._require("selector_top_k", full, "null with a reduced vocabulary")

    def _check_passes(self) -> None:
        if self.draft_passes == 2:
            check_integer("draft_prefix", self.draft_prefix, 2, self.block_size - 1)
            self._require("draft_passes", not self.sample_from_anchor, "1 with sample_from_anchor")
        else:
            self._require("draft_prefix", self.draft_prefix is None, "null with a single pass")

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
            reject("rope", rope, "an object")
        _check_keys(RopeConfig, rope, "rope in the drafter's config.json")
        lists = {key: tuple(x) for key, x in fields.items() if isinstance(x, list)}
        return cls(**{**fields, **lists, "rope": RopeConfig(**rope)})

    def to_dict(self) -> dict[str, Any]:
        """The MLX format's ``config.json`` as an object; ``from_dict`` reads it back."""
        fields = dataclasses.asdict(self)
        lists = {key: list(x) for key, x in fields.items() if isinstance(x, tuple)}
        return {"model_type": MODEL_TYPE, "format_version": FORMAT_VERSION, **fields, **lists}


def _check_keys(cls: type, found: Mapping[str, Any], where: str) -> None:
    fields = dataclasses.fields(cls)
    wanted = {field.name for field in fields}
    required = {field.name for field in fields if field.default is dataclasses.MISSING}
    if missing := sorted(required - set(found)):
        raise UserError(f"{where} lacks {', '.join(missing)}; convert the checkpoint again.")
    if unknown := sorted(set(found) - wanted):
        raise UserError(
            f"{where} has keys this version does not know: {', '.join(unknown)}; "
            "convert the checkpoint again, or use a newer dflash-mlx."
        )
