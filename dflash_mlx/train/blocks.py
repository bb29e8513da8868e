"""Which blocks of a text are trained on: anchors at random, and the tokens a block is given."""

from dataclasses import dataclass

import numpy as np

# NeMo AutoModel's variable prefix: a length is this much likelier than the next longer one.
PREFIX_RATIO = 0.9


@dataclass(frozen=True)
class Sequence:
    """A text to train on.

    Attributes:
        tokens: ``[S]`` int32.
        supervised: ``[S]`` bool, the tokens that a drafter is to predict: the answers.
    """

    tokens: np.ndarray
    supervised: np.ndarray

    def anchors(self) -> np.ndarray:
        """Every position whose next token is supervised, ascending.

        The last token of a prompt is one of them: the first round of a generation starts there.
        """
        return np.flatnonzero(self.supervised[1:])

    def answers(self) -> list[tuple[int, int]]:
        """Where each run of supervised tokens begins and ends; the first token is in none."""
        padded = np.concatenate([[False], self.supervised[1:], [False]]).astype(np.int8)
        begins, ends = (np.flatnonzero(np.diff(padded) == step) + 1 for step in (1, -1))
        return list(zip(begins.tolist(), ends.tolist(), strict=True))


@dataclass(frozen=True)
class Blocks:
    """Blocks of one sequence, ``N`` of ``b`` positions each, in the order of their anchors.

    Position ``k`` of a block is ``anchor + k`` in the text; it predicts the token there.

    Attributes:
        anchors: ``[N]`` int32.
        given: ``[N]`` int32, how many leading positions hold the text's own tokens, anchor
            included; the rest hold the mask token.
        tokens: ``[N, b]`` int32, the text at these positions; 0 past its end.
        active: ``[N, b]`` bool, those with a loss: not given, in the text, and supervised.
    """

    anchors: np.ndarray
    given: np.ndarray
    tokens: np.ndarray
    active: np.ndarray

    def __len__(self) -> int:
        return len(self.anchors)

    def part(self, begin: int, end: int) -> "Blocks":
        """The blocks from ``begin`` to before ``end``."""
        return Blocks(*(x[begin:end] for x in vars(self).values()))


def make_blocks(
    sequence: Sequence, anchors: np.ndarray, block_size: int, given: np.ndarray | None = None
) -> Blocks:
    """The blocks at ``anchors``, which are ascending; ``given`` is 1 each unless said."""
    length = len(sequence.tokens)
    given = np.ones(len(anchors), np.int32) if given is None else given
    within = np.arange(block_size)
    positions = anchors[:, None] + within
    inside = positions < length
    clipped = np.minimum(positions, length - 1)
    tokens = np.where(inside, sequence.tokens[clipped], 0)
    active = inside & sequence.supervised[clipped] & (within >= given[:, None])
    return Blocks(anchors.astype(np.int32), given, tokens.astype(np.int32), active)


def sample_blocks(
    sequence: Sequence,
    block_size: int,
    count: int,
    random: np.random.Generator,
    prefixes: bool = False,
) -> Blocks:
    """At most ``count`` blocks with distinct random anchors.

    Args:
        sequence: has at least one anchor.
        block_size: anchor included.
        count: how many anchors to draw, without replacement.
        random: draws them.
        prefixes: give every second block some of its true tokens, as a second draft pass sees
            it: ``l`` of them in all, from 2 up, with probability proportional to ``0.9 ** l``; near
            an answer's end fewer, so that every block has an active position.
    """
    anchors = sequence.anchors()
    if len(anchors) > count:
        anchors = np.sort(random.choice(anchors, count, replace=False))
    blocks = make_blocks(sequence, anchors, block_size)
    if prefixes and block_size > 2:
        lengths = np.arange(2, block_size)
        odds = PREFIX_RATIO**lengths
        drawn = random.choice(lengths, len(anchors), p=odds / odds.sum())
        given = np.where(random.random(len(anchors)) < 0.5, drawn, 1)
        last = block_size - 1 - np.argmax(blocks.active[:, ::-1], axis=1)
        given = np.minimum(given, last).astype(np.int32)
        blocks = make_blocks(sequence, anchors, block_size, given)
    return blocks
