"""Sizes that change without reason, for what must not depend on them."""

import random
from collections.abc import Sequence

from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx import Pair
from dflash_mlx.engine.block_size import BlockSizes
from dflash_mlx.engine.session import Session
from dflash_mlx.generation.options import Options
from dflash_mlx.generation.resolve import resolve
from dflash_mlx.generation.stream import emit


class Scripted(BlockSizes):
    """The sizes of a list, then the last one."""

    def __init__(self, sizes: Sequence[int]):
        super().__init__(max(sizes))
        self._sizes = iter(sizes)
        self._last = sizes[-1]
        self.observed: list[tuple[int, int]] = []

    def choose(self, context: int) -> int:
        return next(self._sizes, self._last)

    def observe(
        self, block_size: int, accepted: int, context: int, seconds: float | None = None
    ) -> None:
        self.observed.append((block_size, accepted))


def jumps(n: int, seed: int, largest: int = 16) -> list[int]:
    """Random sizes, among them plain stretches of every length up to 70."""
    luck, sizes = random.Random(seed), []
    while len(sizes) < n:
        sizes += [1] * luck.choice((0, 0, 1, 2, 31, 32, 33, 70))
        sizes += [luck.randint(1, largest) for _ in range(luck.randint(1, 6))]
    return sizes[:n]


def emitted(
    pair: Pair,
    tokenizer: TokenizerWrapper,
    prompt: Sequence[int],
    n: int,
    sizes: Sequence[int],
    **options: object,
) -> tuple[list[int], list[tuple[int, int]]]:
    """``n`` tokens, by rounds of the given sizes.

    Returns:
        The tokens, and block size and accepted drafts of each round.
    """
    request = resolve(pair, tokenizer, prompt, Options(max_tokens=n, **options))
    script = Scripted(sizes)
    session = Session(pair, request, script)
    tokens = []
    for token in emit(pair, session):
        tokens.append(token.token)
        session.taken += 1
    return tokens, script.observed
