"""DFlash 2's grouped dynamic causal convolutions, before and after attention and MLP.

Row ``t`` of a block becomes ``sum_j (base[j] + dynamic[t, j]) * x[t - j]``, where the dynamic
kernel is one number a group of channels, and the rows before the block's first are zero.
"""

from collections.abc import Callable
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from .config import DrafterConfig

# The two sides that share one product of the dynamic kernels.
BEFORE, AFTER = 0, 1


class DynamicConvolution(nn.Module):
    def __init__(self, config: DrafterConfig):
        super().__init__()
        hidden, taps, group = config.hidden_size, config.conv_kernel_size, config.conv_group_size
        self._taps, self._groups = taps, hidden // group
        self.base_kernel = mx.zeros((2, taps, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * taps * self._groups, bias=False)

    def __call__(self, inner: Callable[[mx.array], mx.array], x: mx.array) -> mx.array:
        """``inner`` between the two convolutions, over a whole block ``x [B, n, hidden]``."""
        dynamic = self.kernel_projection(x)
        dynamic = dynamic.reshape(*x.shape[:2], 2, self._taps, self._groups, 1)
        x = self._convolve(x, dynamic[:, :, BEFORE], self.base_kernel[BEFORE])
        return self._convolve(inner(x), dynamic[:, :, AFTER], self.base_kernel[AFTER])

    def _convolve(self, x: mx.array, dynamic: mx.array, base: mx.array) -> mx.array:
        B, n, hidden = x.shape
        past = self._taps - 1
        x = mx.pad(x, [(0, 0), (past, 0), (0, 0)]).reshape(B, past + n, self._groups, -1)
        base = base.reshape(self._taps, self._groups, -1)
        out = mx.zeros_like(x[:, past:])
        for tap in range(self._taps):
            first = past - tap
            out = _add_tap(out, base[tap], dynamic[:, :, tap], x[:, first : first + n])
        return out.reshape(B, n, hidden)


@partial(mx.compile, shapeless=True)
def _add_tap(out: mx.array, base: mx.array, dynamic: mx.array, x: mx.array) -> mx.array:
    return out + (base + dynamic) * x
