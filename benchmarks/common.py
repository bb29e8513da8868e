"""What the benchmark scripts share: the embedded pair, the prompts, and a drafter with a script."""

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.cache.linear import LinearCache
from dflash_mlx.drafter.bound import BoundDrafter
from dflash_mlx.drafter.proposal import IndependentRows, Proposal
from dflash_mlx.measure.prompts import prompt_tokens, read_prompts

HERE = Path(__file__).parent


def prompts(tokenizer: TokenizerWrapper) -> dict[str, list[int]]:
    """The benchmark prompts through the chat template, by id."""
    return {prompt.id: prompt_tokens(tokenizer, prompt) for prompt in read_prompts()}


def machine() -> str:
    """One line on where the numbers come from."""
    return (
        f"{platform.system()} {platform.machine()}, {mx.default_device()}, "
        f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')}"
    )


class ScriptedDrafter:
    """The real drafter's work, with its tokens replaced by the truth at a chosen acceptance.

    Args:
        drafter: does all that it always does; its logits are only added to.
        truth: prompt and plain continuation.
        acceptance: how likely each draft is right, given that those before it are.
        vocab: vocabulary size.
    """

    def __init__(self, drafter: BoundDrafter, truth: Sequence[int], acceptance: float, vocab: int):
        self.block_size = drafter.block_size
        self.fingerprint = f"scripted {drafter.fingerprint}"
        self.kernels = drafter.kernels
        self.make_context = drafter.make_context
        self.write_context = drafter.write_context
        self._drafter = drafter
        right = mx.random.uniform(shape=(len(truth),), key=mx.random.key(0)) < acceptance
        truth = mx.array(truth)
        self._script = mx.where(right, truth, (truth + 1) % vocab)
        mx.eval(self._script)

    def draft(self, anchor: mx.array, block_size: int, context: list[LinearCache]) -> Proposal:
        logits = self._drafter.draft(anchor, block_size, context).logits
        at = context[0].offset[:, None] + 1 + mx.arange(block_size - 1)
        tokens = self._script[mx.minimum(at, self._script.size - 1)]
        chosen = mx.put_along_axis(
            mx.zeros_like(logits), tokens[..., None], mx.array(1e6, logits.dtype), axis=-1
        )
        return IndependentRows(logits + chosen)
