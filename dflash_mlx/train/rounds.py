"""τ of a pair by real rounds, by kind of prompt and by position."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..engine.statistics import Statistics
from ..errors import UserError
from ..generation.stream import stream_generate
from ..loading.pair import Pair


@dataclass(frozen=True)
class Question:
    """A prompt in tokens, and its kind."""

    tokens: list[int]
    kind: str


@dataclass
class Score:
    """What the rounds of some prompts came to.

    Attributes:
        prompts: how many.
        tokens: emitted by all of them.
        seconds: that emitting them took.
        rounds: counts over all rounds.
    """

    prompts: int = 0
    tokens: int = 0
    seconds: float = 0.0
    rounds: Statistics = field(default_factory=Statistics)

    @property
    def tau(self) -> float:
        """Emitted tokens a round; in the last round of a text, those within the text."""
        return self.tokens / max(self.rounds.total, 1)


def play(
    pair: Pair,
    tokenizer: TokenizerWrapper,
    questions: Iterable[Question],
    block_size: int | None = None,
    **options: object,
) -> Iterator[dict[str, Score]]:
    """Generate the answer to every question, in rounds of one size.

    Args:
        pair: with a drafter.
        tokenizer: the target's.
        questions: prompts in tokens.
        block_size: rows a round, anchor included; None takes the drafter's.
        options: further ones of :func:`dflash_mlx.stream_generate`.

    Yields:
        After each answer, the scores so far by kind, in the order that the kinds come in.

    Raises:
        UserError: the drafter was not trained for blocks of that size.
    """
    size = pair.drafter.block_size if block_size is None else block_size
    if not 1 <= size <= pair.drafter.block_size:
        raise UserError(
            f"block_size must be between 1 and {pair.drafter.block_size}, which this drafter was "
            f"trained for, not {size}."
        )
    scores: dict[str, Score] = {}
    for question in questions:
        score = scores.setdefault(question.kind, Score())
        *_, response = stream_generate(pair, tokenizer, question.tokens, block_size=size, **options)
        score.prompts += 1
        score.tokens += response.generation_tokens
        score.seconds += response.generation_tokens / response.generation_tps
        score.rounds.rounds.update(response.statistics.rounds)
        score.rounds.accepted.update(response.statistics.accepted)
        yield scores


def total(scores: dict[str, Score]) -> Score:
    """All kinds together."""
    result = Score()
    for score in scores.values():
        result.prompts += score.prompts
        result.tokens += score.tokens
        result.seconds += score.seconds
        result.rounds.rounds.update(score.rounds.rounds)
        result.rounds.accepted.update(score.rounds.accepted)
    return result
