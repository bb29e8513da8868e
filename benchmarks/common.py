"""What the benchmark scripts share: the prompts, a round's stages, and a drafter with a script."""

import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx import Pair
from dflash_mlx.cache.adopt import adopt
from dflash_mlx.cache.protocol import ContextBuffer
from dflash_mlx.drafter.bound import BoundDrafter
from dflash_mlx.drafter.proposal import IndependentRows, Proposal
from dflash_mlx.engine.choose import Chooser
from dflash_mlx.engine.prefill import prefill
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.engine.state import State
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


def stages(pair: Pair, tokens: Sequence[int], block_size: int, times: int = 15) -> dict[str, float]:
    """Seconds of a round's stages at the context of ``tokens``, each built, run and waited for.

    They are ``draft``, ``verify``, ``rest`` (accept and commit) and ``plain step``.
    """
    target, drafter, chooser = pair.target, pair.drafter, Chooser(Sampling())
    stock, context = target.make_cache(), drafter.make_context(mx.array([0], mx.int32))
    *prompt, anchor = tokens
    prefill(target, drafter, prompt, stock, context, 0, 2048, lambda *_: None)
    offset = mx.array([len(prompt)], mx.int32)
    caches = [adopt([cache]) for cache in stock]
    state = State(mx.array([anchor], mx.int32), offset, caches, context)
    state.reserve(len(tokens) + block_size)

    def draft() -> list[mx.array]:
        return [chooser.draft(drafter.draft(state.anchor, block_size, context), state).tokens]

    def verify() -> list[mx.array]:
        logits, features = target.forward(block, caches)
        return [mx.argmax(logits, axis=-1), features]

    def rest() -> list[mx.array]:
        verdict = chooser.judge(drafts, logits, state)
        drafter.write_context(features, context)
        return [verdict.tokens, verdict.accepted, *(a for c in context for a in c.arrays())]

    def plain_step() -> list[mx.array]:
        return [mx.argmax(target.forward(block[:, :1], caches)[0], axis=-1)]

    drafts = chooser.draft(drafter.draft(state.anchor, block_size, context), state)
    block = mx.concatenate([state.anchor[:, None], drafts.tokens], axis=1)
    logits, features = target.forward(block, caches)
    mx.eval(block, logits, features)
    works = {"draft": draft, "verify": verify, "rest": rest, "plain step": plain_step}
    return {name: seconds(work, times) for name, work in works.items()}


def seconds(work: Callable[[], object], times: int, warm_up: int = 2) -> float:
    """Median time of ``work``, which returns arrays to be waited for."""
    taken = []
    for _ in range(warm_up + times):
        begun = time.perf_counter()
        mx.eval(work())
        taken.append(time.perf_counter() - begun)
    return median(taken[warm_up:])


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

    def draft(self, anchor: mx.array, block_size: int, context: list[ContextBuffer]) -> Proposal:
        logits = self._drafter.draft(anchor, block_size, context).logits
        at = context[0].offset[:, None] + 1 + mx.arange(block_size - 1)
        tokens = self._script[mx.minimum(at, self._script.size - 1)]
        chosen = mx.put_along_axis(
            mx.zeros_like(logits), tokens[..., None], mx.array(1e6, logits.dtype), axis=-1
        )
        return IndependentRows(logits + chosen)
