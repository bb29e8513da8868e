"""Rotary positions by explicit inverse frequencies, with the scalings that drafters use."""

import math

import mlx.core as mx

from ..kernels.norm_rope import NormRope
from .config import DrafterConfig
from .rope_config import RopeConfig


def inverse_frequencies(dims: int, rope: RopeConfig) -> mx.array:
    """The angle a position step adds to each of the ``dims / 2`` planes, float32.

    The formulas are those of transformers' ``modeling_rope_utils`` (default, linear, llama3) and
    of the YaRN paper (arXiv 2309.00071, section 3.2).
    """
    inv_freq = 1.0 / rope.theta ** (mx.arange(0, dims, 2, dtype=mx.float32) / dims)
    if rope.rope_type == "linear":
        return inv_freq / rope.factor
    if rope.rope_type == "llama3":
        return _llama3(inv_freq, rope)
    if rope.rope_type == "yarn":
        return _yarn(inv_freq, dims, rope)
    return inv_freq


def _llama3(inv_freq: mx.array, rope: RopeConfig) -> mx.array:
    turns = rope.original_max_position_embeddings * inv_freq / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    keep = mx.clip((turns - low) / (high - low), 0, 1)
    return inv_freq * (keep + (1 - keep) / rope.factor)


def _yarn(inv_freq: mx.array, dims: int, rope: RopeConfig) -> mx.array:
    def plane(turns: float) -> float:
        """The plane that turns this often over the original context."""
        span = rope.original_max_position_embeddings / (turns * 2 * math.pi)
        return dims * math.log(span) / (2 * math.log(rope.theta))

    low = max(math.floor(plane(rope.beta_fast)), 0)
    high = min(math.ceil(plane(rope.beta_slow)), dims - 1)
    # A ramp of no width would divide by zero; transformers widens it by the same amount.
    width = (high - low) or 0.001
    ramp = mx.clip((mx.arange(dims // 2, dtype=mx.float32) - low) / width, 0, 1)
    return inv_freq * (1 - ramp) + inv_freq / rope.factor * ramp


def norm_rope(config: DrafterConfig) -> NormRope:
    """The norm and rotation of the drafter's queries and keys; see :func:`norm_weights`."""
    periods = 1.0 / inverse_frequencies(config.head_dim, config.rope)
    mx.eval(periods)
    return NormRope(periods, config.rms_norm_eps, config.rope.traditional)


def norm_weights(weight: mx.array, rope: RopeConfig) -> mx.array:
    """Weights of a Q or K norm in front of a rotation, float32.

    The rotation is linear, so its amplitude may as well scale what goes into it.
    """
    return weight.astype(mx.float32) * rope.attention_factor
