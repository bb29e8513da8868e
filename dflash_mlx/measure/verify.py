"""Is the text the target's own? Every way of generating against plain decoding, token by token."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..engine.sampling import Sampling
from ..generation.response import GenerationResponse
from ..loading.pair import Pair
from .arms import Arm, BlockSize, Choice, mlx_lm_arms, our_arms
from .difference import Block, Difference, explain
from .run import Case, first_difference


@dataclass(frozen=True)
class Check:
    """One text against plain decoding's.

    Attributes:
        prompt: the prompt's id.
        choice: how tokens were chosen.
        arm: what is checked.
        tokens: how many it emitted.
        tau: mean tokens a round, or None if it does not draft.
        difference: the first one, or None if all tokens are plain's.
    """

    prompt: str
    choice: str
    arm: str
    tokens: int
    tau: float | None
    difference: Difference | None

    @property
    def verdict(self) -> Literal["equal", "near-tie", "different"]:
        """What came out."""
        if self.difference is None:
            return "equal"
        return "near-tie" if self.difference.near_tie else "different"


@dataclass(frozen=True)
class Text:
    """What an arm emitted, and the rounds that did.

    Attributes:
        tokens: their ids.
        blocks: of each token the pass that chose it, or None where mlx-lm does not tell.
        tau: mean tokens a round, or None.
    """

    tokens: list[int]
    blocks: list[Block | None]
    tau: float | None


def number_of_checks(prompts: int, block_sizes: Sequence[BlockSize]) -> int:
    """How many checks :func:`verify` makes."""
    return prompts * (2 * len(block_sizes) + 1)


def verify(
    pair: Pair,
    tokenizer: TokenizerWrapper,
    cases: Sequence[Case],
    block_sizes: Sequence[BlockSize],
    choice: Choice,
    max_tokens: int,
    announce: Callable[[str], None],
) -> Iterator[Check]:
    """Check greedy decoding and coupled sampling with every block size, and mlx-lm's greedy text.

    Args:
        pair: with a drafter.
        tokenizer: the target's.
        cases: the prompts.
        block_sizes: to draft with.
        choice: how to sample; greedy decoding is checked as well.
        max_tokens: how many tokens a text has at most.
        announce: is told what is about to run.
    """
    greedy = Choice()
    theirs = mlx_lm_arms(pair.model, tokenizer, greedy)
    ways = (
        (greedy, [*our_arms(pair, tokenizer, greedy, block_sizes), *theirs]),
        (choice, our_arms(pair, tokenizer, choice, block_sizes)),
    )
    for case in cases:
        for how, (plain, *arms) in ways:
            announce(f"{case.prompt}, {how}, plain")
            expected = emit(plain, case.tokens, max_tokens)
            for arm in arms:
                announce(f"{case.prompt}, {how}, {arm.name}")
                found = emit(arm, case.tokens, max_tokens)
                difference = _difference(pair, how, case.tokens, expected, found)
                size = len(found.tokens)
                yield Check(case.prompt, str(how), arm.name, size, found.tau, difference)


def emit(arm: Arm, prompt: list[int], max_tokens: int) -> Text:
    """All tokens of a generation."""
    tokens, blocks, block, next_round, tau = [], [], None, 0, None
    for response in arm.stream(prompt, max_tokens):
        if isinstance(response, GenerationResponse):
            if len(tokens) == next_round:
                # A round emits its accepted drafts and the bonus.
                block = Block(next_round, response.block_size)
                next_round += response.accepted + 1
            tau = response.tau
        tokens.append(response.token)
        blocks.append(block)
    return Text(tokens, blocks, tau)


def _difference(
    pair: Pair, choice: Choice, prompt: list[int], expected: Text, found: Text
) -> Difference | None:
    index = first_difference(expected.tokens, found.tokens)
    if index is None:
        return None
    block = found.blocks[index] if index < len(found.blocks) else None
    sampling = Sampling(temp=choice.temp, seed=choice.seed)
    return explain(pair.target, sampling, prompt, expected.tokens, found.tokens, index, block)
