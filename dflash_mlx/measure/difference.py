"""Where two texts part: which tokens, and how nearly the target could have chosen either."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..engine.noise import TARGET, gumbel, row_seeds
from ..engine.prefill import prefill
from ..engine.sampling import Sampling
from ..target.target import Target

PREFILL_STEP = 2048

# How many roundings of the target's dtype, at the largest logit, two logits may be moved apart by
# another order of summation. In 16 bit, sums are kept in float32 and rounded at the end of each
# layer; in float32 the sums of thousands of terms are themselves rounded in another order.
ROUNDINGS = {mx.float32: 64, mx.float16: 4, mx.bfloat16: 4}


@dataclass(frozen=True)
class Pass:
    """The target's pass that chose a token: a round's verify.

    Attributes:
        begin: index of the emitted token that its first position chose; 0 follows the prompt.
        block_size: positions of the pass.
    """

    begin: int
    block_size: int


@dataclass(frozen=True)
class Difference:
    """The first token at which a text is not plain's, and what the target says there.

    Logits are those of plain passes, one position each, over the text that both share. When
    sampling, a logit has the temperature's share of its position's noise in it.

    Attributes:
        index: of the token among the emitted ones.
        expected: plain's token, or None if its text has ended.
        found: the other's, or None.
        gap: how far the best token leads the second best.
        behind: how far the lesser of the two tokens is behind the best token.
        tolerance: the most that rounding is taken to explain.
        roundings: how many roundings of the dtype that is.
        dtype: the dtype of the target's hidden states.
        block_size: of the pass that chose ``found``, or None if that is not known.
        moved: how far any logit moves when mlx-lm's caches get that block in one pass, or None.
        preferred: the token that is best then, or None.
    """

    index: int
    expected: int | None
    found: int | None
    gap: float = 0.0
    behind: float = float("inf")
    tolerance: float = 0.0
    roundings: int = 0
    dtype: str = ""
    block_size: int | None = None
    moved: float | None = None
    preferred: int | None = None

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains it: by the tolerance, or because mlx-lm itself does the same.

        The latter is the stronger evidence: none of this project's caches or rounds take part.
        """
        if self.expected is None or self.found is None:
            return False
        return self.behind <= self.tolerance or self.preferred == self.found


def explain(
    target: Target,
    sampling: Sampling,
    prompt: Sequence[int],
    plain: Sequence[int],
    other: Sequence[int],
    index: int,
    chosen_in: Pass | None = None,
) -> Difference:
    """Look at the token where ``other`` leaves ``plain``, with the target's own logits.

    Args:
        target: chose both.
        sampling: how both were chosen; a sampler is not supported.
        prompt: the prompt's tokens.
        plain: tokens of plain decoding.
        other: tokens of the other way.
        index: of the first token that differs.
        chosen_in: the pass that chose the other's token, if it is known.
    """
    expected, found = (text[index] if index < len(text) else None for text in (plain, other))
    if expected is None or found is None:
        return Difference(index, expected, found)
    shared = plain[:index]
    logits = logits_after(target, prompt, shared)
    position = len(prompt) + index
    scores = chosen_by(sampling, logits, position)
    top = mx.sort(scores)[-2:]
    roundings = ROUNDINGS[target.dtype]
    largest = mx.abs(logits).max().item()
    difference = {
        "gap": (top[1] - top[0]).item(),
        "behind": (top[1] - mx.minimum(scores[expected], scores[found])).item(),
        "tolerance": roundings * mx.finfo(target.dtype).eps * largest,
        "roundings": roundings,
        "dtype": str(target.dtype).removeprefix("mlx.core."),
    }
    if chosen_in is not None and chosen_in.block_size > 1:
        in_block = logits_after(target, prompt, shared, chosen_in)
        difference |= {
            "block_size": chosen_in.block_size,
            "moved": mx.abs(in_block - logits).max().item(),
            "preferred": int(mx.argmax(chosen_by(sampling, in_block, position)).item()),
        }
    return Difference(index, expected, found, **difference)


def logits_after(
    target: Target, prompt: Sequence[int], emitted: Sequence[int], last: Pass | None = None
) -> mx.array:
    """Logits ``[vocab]`` float32 after prompt and ``emitted``, on mlx-lm's own caches.

    Args:
        target: whose they are.
        prompt: is prefilled.
        emitted: the tokens after it, a pass for each of them.
        last: a pass that takes the last of them together, in a block. What a round had drafted
            beyond them is not known here; a causal pass does not see it.
    """
    inputs = [prompt[-1], *emitted]
    last = last or Pass(len(emitted), 1)
    known = inputs[last.begin :]
    filled = known + [known[-1]] * (last.block_size - len(known))
    caches = target.make_cache()
    prefill(target, None, prompt[:-1], caches, None, 0, PREFILL_STEP, lambda *_: None)
    for tokens in (*([token] for token in inputs[: last.begin]), filled):
        logits, _ = target.forward(mx.array([tokens]), caches)
        mx.eval([cache.state for cache in caches])
    return logits[0, len(known) - 1].astype(mx.float32)


def chosen_by(sampling: Sampling, logits: mx.array, position: int) -> mx.array:
    """What the token at ``position`` is the argmax of, in the units of the logits ``[vocab]``."""
    if sampling.greedy:
        return logits
    seeds = row_seeds(sampling.seed, 1)[:, TARGET]
    noise = gumbel(seeds, mx.array([[position]]), logits.shape[-1])[0, 0]
    return (sampling.scores(logits[None])[0] + noise) * sampling.temp
