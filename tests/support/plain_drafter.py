"""A drafter written out in numpy: every row from scratch, no cache, one loop a query."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from dflash_mlx.drafter.model import Drafter


class PlainDrafter:
    """The hidden states of a block, in float64.

    Args:
        drafter: not stacked yet.
    """

    def __init__(self, drafter: Drafter):
        self._config = drafter.config
        self._weights = {
            name: np.array(w.astype(mx.float32)).astype(np.float64)
            for name, w in tree_flatten(drafter.parameters())
        }

    def __call__(self, features: np.ndarray, block: np.ndarray, first: int = 0) -> np.ndarray:
        """Hidden states ``[b, hidden]`` of ``block [b, hidden]`` after ``features [t, width]``.

        Args:
            features: of all context rows.
            block: the input embeddings.
            first: the position of the first context row.
        """
        config, w = self._config, self._weights
        c = features
        if config.has_hidden_dim_adapter:
            taps = c.reshape(len(c), -1, config.target_hidden_size)
            c = (taps @ w["hidden_dim_adapter.weight"].T).reshape(len(c), -1)
        c = self._norm("hidden_norm", c @ w["fc.weight"].T if config.target_layer_ids else c)
        x = block
        for i in range(config.num_hidden_layers):
            layer = f"layers.{i}"
            h = self._norm(f"{layer}.input_layernorm", x)
            x = x + self._between(
                f"{layer}.attention_conv", lambda h, i=i: self._attend(i, h, c, first), h
            )
            h = self._norm(f"{layer}.post_attention_layernorm", x)
            x = x + self._between(f"{layer}.mlp_conv", lambda h, i=i: self._mlp(i, h), h)
        return self._norm("norm", x)

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        scale = np.sqrt((x**2).mean(-1, keepdims=True) + self._config.rms_norm_eps)
        return x / scale * self._weights[f"{name}.weight"]

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self._weights[f"{name}.weight"].T + self._weights.get(f"{name}.bias", 0)

    def _between(
        self, name: str, inner: Callable[[np.ndarray], np.ndarray], x: np.ndarray
    ) -> np.ndarray:
        if self._config.conv_kernel_size is None:
            return inner(x)
        taps = self._config.conv_kernel_size
        dynamic = self._linear(f"{name}.kernel_projection", x).reshape(len(x), 2, taps, -1)
        for side in (0, 1):
            out = np.zeros_like(x)
            for t in range(len(x)):
                for tap in range(min(taps, t + 1)):
                    kernel = np.repeat(dynamic[t, side, tap], self._config.conv_group_size)
                    kernel = kernel + self._weights[f"{name}.base_kernel"][side, tap]
                    out[t] += kernel * x[t - tap]
            x = inner(out) if side == 0 else out
        return x

    def _mlp(self, i: int, x: np.ndarray) -> np.ndarray:
        gate = self._linear(f"layers.{i}.mlp.gate_proj", x)
        up = self._linear(f"layers.{i}.mlp.up_proj", x)
        return self._linear(f"layers.{i}.mlp.down_proj", gate / (1 + np.exp(-gate)) * up)

    def _attend(self, i: int, h: np.ndarray, c: np.ndarray, first: int) -> np.ndarray:
        config, name = self._config, f"layers.{i}.self_attn"
        positions = first + np.arange(len(c) + len(h))
        rows = np.concatenate([c, h])

        def heads(kind: str, x: np.ndarray) -> np.ndarray:
            return self._linear(f"{name}.{kind}_proj", x).reshape(len(x), -1, config.head_dim)

        q = self._rope(self._norm(f"{name}.q_norm", heads("q", h)), positions[len(c) :])
        k = self._rope(self._norm(f"{name}.k_norm", heads("k", rows)), positions)
        v = heads("v", rows)
        group = config.num_attention_heads // config.num_key_value_heads
        out = np.zeros_like(q)
        for row in range(len(h)):
            seen = [at for at in range(len(rows)) if self._sees(i, len(c) + row, at, anchor=len(c))]
            for head in range(config.num_attention_heads):
                scores = k[seen, head // group] @ q[row, head] * config.head_dim**-0.5
                p = np.exp(scores - scores.max())
                out[row, head] = p / p.sum() @ v[seen, head // group]
        return self._linear(f"{name}.o_proj", out.reshape(len(h), -1))

    def _sees(self, i: int, row: int, at: int, anchor: int) -> bool:
        config = self._config
        if config.causal[i] and at > row:
            return False
        if not config.sliding[i]:
            return True
        if config.window_rule == "anchor":
            return at >= anchor or anchor - at <= config.sliding_window
        return abs(row - at) < config.sliding_window

    def _rope(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        half = self._config.head_dim // 2
        angles = positions[:, None] / self._config.rope.theta ** (np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        pairs = x.reshape(*x.shape[:-1], half, 2)
        if not self._config.rope.traditional:
            pairs = x.reshape(*x.shape[:-1], 2, half).swapaxes(-1, -2)
        a, b = pairs[..., 0], pairs[..., 1]
        pairs = np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1)
        return (pairs if self._config.rope.traditional else pairs.swapaxes(-1, -2)).reshape(x.shape)
