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
class Block:
    """The target's pass that chose a token in a round.

    Attributes:
        begin: index of the emitted token that its first row chose; 0 follows the prompt.
        rows: rows of the pass.
    """

    begin: int
    rows: int


@dataclass(frozen=True)
class Difference:
    """The first token at which a text is not plain's, and what the target says there.

    Logits are those of a plain pass, one row at a time, over the text that both share. When
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
        rows: rows of the pass that chose ``found``, or None if that is not known.
        moved: how far any logit moves when mlx-lm's caches get those rows in one pass, or None.
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
    rows: int | None = None
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
    block: Block | None = None,
) -> Difference:
    """Look at the token where ``other`` leaves ``plain``, with the target's own logits.

    Args:
        target: chose both.
        sampling: how both were chosen; a sampler is not supported.
        prompt: the prompt's tokens.
        plain: tokens of plain decoding.
        other: tokens of the other way.
        index: of the first token that differs.
        block: the pass that chose the other's token, if it was of more than one row.
    """
    expected, found = (text[index] if index < len(text) else None for text in (plain, other))
    if expected is None or found is None:
        return Difference(index, expected, found)
    shared = plain[:index]
    logits = row_logits(target, prompt, shared)
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
    if block is not None and block.rows > 1:
        in_block = block_logits(target, prompt, shared, block)
        difference |= {
            "rows": block.rows,
            "moved": mx.abs(in_block - logits).max().item(),
            "preferred": int(mx.argmax(chosen_by(sampling, in_block, position)).item()),
        }
    return Difference(index, expected, found, **difference)


def row_logits(target: Target, prompt: Sequence[int], emitted: Sequence[int]) -> mx.array:
    """Logits ``[vocab]`` float32 after prompt and ``emitted``, a pass of one row each token."""
    return _logits(target, prompt, [[token] for token in [prompt[-1], *emitted]], -1)


def block_logits(
    target: Target, prompt: Sequence[int], emitted: Sequence[int], block: Block
) -> mx.array:
    """As :func:`row_logits`, with the last rows in one pass of ``block.rows``.

    What a round had drafted beyond the token is not known here; causal rows do not see it.
    """
    inputs = [prompt[-1], *emitted]
    known = inputs[block.begin :]
    filled = known + [known[-1]] * (block.rows - len(known))
    passes = [*([token] for token in inputs[: block.begin]), filled]
    return _logits(target, prompt, passes, len(known) - 1)


def _logits(
    target: Target, prompt: Sequence[int], passes: Sequence[Sequence[int]], row: int
) -> mx.array:
    """Logits of a row of the last of these passes, on mlx-lm's own caches."""
    caches = target.make_cache()
    prefill(target, None, prompt[:-1], caches, None, 0, PREFILL_STEP, lambda *_: None)
    for tokens in passes:
        logits, _ = target.forward(mx.array([tokens]), caches)
        mx.eval([cache.state for cache in caches])
    return logits[0, row].astype(mx.float32)


def chosen_by(sampling: Sampling, logits: mx.array, position: int) -> mx.array:
    """What the token at ``position`` is the argmax of, in the units of the logits ``[vocab]``."""
    if sampling.greedy:
        return logits
    seeds = row_seeds(sampling.seed, 1)[:, TARGET]
    noise = gumbel(seeds, mx.array([[position]]), logits.shape[-1])[0, 0]
    return (sampling.scores(logits[None])[0] + noise) * sampling.temp
