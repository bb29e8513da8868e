"""Is the text the target's own? Every way of generating against plain decoding, token by token."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..engine.sampling import Sampling
from ..errors import counted
from ..generation.response import GenerationResponse
from ..loading.pair import Pair
from .arms import Arm, BlockSize, in_words, mlx_lm_arms, our_arms
from .difference import Difference, Pass, explain
from .run import Case, first_difference
from .tables import Table, as_text

Decode = Callable[[list[int]], str]

_NEAR_TIES = (
    "A near-tie is no fault of drafting: a pass over several rows may use another kernel than a "
    "pass over one row, which rounds sums differently, and where the best tokens are closer than "
    "that, either may come out. mlx-lm's own text changes in the same way between batch sizes and "
    "lengths of prompt chunks. Both texts are then the target's."
)


@dataclass(frozen=True)
class Check:
    """One text against plain decoding's.

    Attributes:
        name: the prompt's id, how tokens were chosen, and the arm that is checked.
        tokens: how many it emitted.
        tau: mean tokens a round, or None if it does not draft.
        difference: the first one, or None if all tokens are plain's.
    """

    name: str
    tokens: int
    tau: float | None
    difference: Difference | None

    @property
    def outcome(self) -> Literal["equal", "near-tie", "different"]:
        """What came out."""
        if self.difference is None:
            return "equal"
        return "near-tie" if self.difference.near_tie else "different"


@dataclass(frozen=True)
class Text:
    """What an arm emitted, and the rounds that did.

    Attributes:
        tokens: their ids.
        passes: of each token the pass that chose it, or None where mlx-lm does not tell.
        tau: mean tokens a round, or None.
    """

    tokens: list[int]
    passes: list[Pass | None]
    tau: float | None


def number_of_checks(prompts: int, block_sizes: Sequence[BlockSize]) -> int:
    """How many checks :func:`check_texts` makes."""
    return prompts * (2 * len(block_sizes) + 1)


def check_texts(
    pair: Pair,
    tokenizer: TokenizerWrapper,
    cases: Sequence[Case],
    block_sizes: Sequence[BlockSize],
    sampling: Sampling,
    max_tokens: int,
    announce: Callable[[str], None],
) -> Iterator[Check]:
    """Check greedy decoding and coupled sampling with every block size, and mlx-lm's greedy text.

    Args:
        pair: with a drafter.
        tokenizer: the target's.
        cases: the prompts.
        block_sizes: to draft with.
        sampling: how to sample; greedy decoding is checked as well.
        max_tokens: how many tokens a text has at most.
        announce: is told what is about to run.
    """
    greedy = Sampling()
    theirs = mlx_lm_arms(pair.model, tokenizer, greedy)
    ways = (
        (greedy, [*our_arms(pair, tokenizer, greedy, block_sizes), *theirs]),
        (sampling, our_arms(pair, tokenizer, sampling, block_sizes)),
    )
    for case in cases:
        for how, (plain, *arms) in ways:
            name = f"{case.prompt}, {in_words(how)}"
            announce(f"{name}, plain")
            expected = emit(plain, case.tokens, max_tokens).tokens
            for arm in arms:
                announce(f"{name}, {arm.name}")
                found, difference = emit(arm, case.tokens, max_tokens), None
                index = first_difference(expected, found.tokens)
                if index is not None:
                    chosen_in = found.passes[index] if index < len(found.tokens) else None
                    texts = case.tokens, expected, found.tokens
                    difference = explain(pair.target, how, *texts, index, chosen_in)
                yield Check(f"{name}, {arm.name}", len(found.tokens), found.tau, difference)


def emit(arm: Arm, prompt: list[int], max_tokens: int) -> Text:
    """All tokens of a generation."""
    tokens, passes, chosen_in, next_round, tau = [], [], None, 0, None
    for response in arm.stream(prompt, max_tokens):
        if isinstance(response, GenerationResponse):
            if len(tokens) == next_round:
                # A round emits its accepted drafts and the bonus.
                chosen_in = Pass(next_round, response.block_size)
                next_round += response.accepted + 1
            tau = response.tau
        tokens.append(response.token)
        passes.append(chosen_in)
    return Text(tokens, passes, tau)


def lossless_report(checks: Sequence[Check], decode: Decode) -> str:
    """All checks as a table, each difference explained, and what it comes to.

    Args:
        checks: what was found.
        decode: from token ids to text.
    """
    rows = [
        [
            check.name,
            str(check.tokens),
            "-" if check.tau is None else f"{check.tau:.2f}",
            check.outcome + (f" at token {check.difference.index}" if check.difference else ""),
        ]
        for check in checks
    ]
    table = Table("Against plain decoding", ["text", "tokens", "τ", "verdict"], rows)
    parts = [as_text(table), *(_explained(check, decode) for check in checks if check.difference)]
    outcomes = [check.outcome for check in checks]
    if "near-tie" in outcomes:
        parts.append(_NEAR_TIES)
    equal, number = outcomes.count("equal"), len(checks)
    if equal == number:
        texts = f"All {number} texts are" if number > 1 else "The text is"
        parts.append(f"{texts} equal to plain decoding's, token for token.")
    else:
        parts.append(
            f"{equal} of {number} texts are equal to plain decoding's, "
            f"{outcomes.count('near-tie')} part at a near-tie, and {outcomes.count('different')} "
            "differ without that explanation."
        )
    return "\n\n".join(parts)


def _explained(check: Check, decode: Decode) -> str:
    """One difference: where, which tokens, and how nearly the target could have chosen either."""

    def named(token: int) -> str:
        return f"{decode([token])!r} ({token})"

    found = check.difference
    if found.expected is None or found.found is None:
        sides = ("goes on", "has ended") if found.found is None else ("has ended", "goes on")
        return (
            f"{check.name}: at token {found.index} plain's text {sides[0]} and this one {sides[1]}."
        )
    lines = [
        f"{check.name}: token {found.index} is {named(found.found)}, and plain's is "
        f"{named(found.expected)}.",
        f"  Row by row, the target's best two logits there are {found.gap:.3g} apart, and the "
        f"lesser of these two tokens is {found.behind:.3g} behind the best. Rounding explains up "
        f"to {found.tolerance:.3g}, which is {found.roundings} roundings of {found.dtype} at the "
        "largest logit.",
    ]
    if found.moved is not None:
        same = " as well" if found.preferred == found.found else ""
        lines.append(
            f"  mlx-lm's own caches, given {counted(found.block_size, 'row')} in one pass, move "
            f"the logits by up to {found.moved:.3g} and prefer {named(found.preferred)}{same}."
        )
    if found.near_tie:
        lines.append("  This is a near-tie.")
    else:
        lines.append("  Rounding does not explain this: it is a fault, please report it.")
    return "\n".join(lines)
