"""Texts and machines in numbers: how fast a choice of block sizes is, without a model."""

import json
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from dflash_mlx.engine.block_size import BlockController, BlockSizes
from dflash_mlx.engine.costs import CostTable

RECORDED = Path(__file__).parents[1] / "fixtures" / "traces" / "embedded.json"


class Machine:
    """What rounds cost, in milliseconds: a cost table that is right and learns nothing.

    Args:
        verify: of a forward, by block size; straight between them.
        draft: of a draft.
        growth: per token of context beyond 512, by block size.
    """

    acceptance = None

    def __init__(
        self,
        verify: dict[int, float],
        draft: float,
        growth: Callable[[int], float] = lambda size: 0.0,
    ):
        self.sizes = range(1, max(verify) + 1)
        steps = list(pairwise(sorted(verify.items())))
        self._costs = {}
        for size in self.sizes:
            (low, a), (high, b) = next(step for step in steps if size <= step[1][0])
            forward = a + (b - a) * (size - low) / (high - low)
            self._costs[size] = forward + draft * (size > 1), growth(size)

    def cost(self, block_size: int, context: int) -> float:
        """Of a round."""
        base, growth = self._costs[block_size]
        return base + growth * (context - 512)

    def column(self, context: int, choice: str = "greedy") -> dict[int, float]:
        """Of a round of each size."""
        return {size: self.cost(size, context) for size in self.sizes}

    def confirmed(self, block_size: int, context: int, choice: str) -> bool:
        """Nothing is in doubt."""
        return True

    def table(self, factor: Callable[[int], float] = lambda size: 1.0) -> CostTable:
        """Its costs as a table that learns, each size's wrong by a factor."""
        contexts = [512, 4096]
        rounds = {s: [self.cost(s, c) * factor(s) for c in contexts] for s in self.sizes}
        return CostTable(contexts, {"greedy": rounds})


# 4-bit matrix products of 5120 x 17408 on an M3 Max relative to one row (mlx issue 3863).
_QUANTIZED = {1: 1, 2: 1.0, 4: 1.28, 6: 2.04, 8: 2.5, 9: 3.14, 10: 3.95, 16: 3.95}
MACHINES = {
    # 57 and 59 ms for 4 and 16 rows, published for an M5 Max.
    "bf16": Machine({1: 55, 4: 57, 16: 59}, 6),
    "4-bit": Machine({size: 30.77 * (0.12 + 0.88 * x) for size, x in _QUANTIZED.items()}, 4),
    # Qwen3.8-27B-4bit measured at 1 to 3 rows; weights read again every 5 rows, a tile from 10.
    "steep 4-bit": Machine({1: 30.77, 2: 34, 3: 41.3, 5: 44, 6: 70, 9: 95, 10: 110, 16: 112}, 4),
    # A 6-bit mixture of experts on an M5 Max (vllm-mlx issue 763), its slope continued.
    "experts": Machine({1: 8.5, 2: 13.5, 3: 15.6, 5: 20.7, 8: 28.1, 16: 46}, 1.5),
    # Weights are read once a row.
    "m1": Machine({1: 30, 16: 30 * 15.2}, 4),
    # Attention to the context is unfused from 9 rows on.
    "long": Machine(
        {1: 30, 8: 34, 9: 40, 16: 42}, 4, lambda n: 6e-4 * (1 + 0.3 * (n > 1) + (n > 8))
    ),
    # The embedded pair on two cores.
    "cpu": Machine({1: 45, 2: 55, 4: 62, 8: 81}, 20),
}


class Text:
    """Which drafts are right, whatever sizes are chosen.

    Args:
        rate: how likely a draft is right if those before it in its block are, from its place in
            the text and its position in the block.
        seed: of the luck.
    """

    def __init__(self, tokens: int, rate: Callable[[int, int], float], seed: int = 0):
        luck = random.Random(seed)
        self.tokens = tokens
        self._luck = [luck.random() for _ in range(tokens + 64)]
        self._rate = rate

    def accepted(self, at: int, block_size: int) -> int:
        """Accepted drafts of a round that begins at a token."""
        n = 0
        while n < block_size - 1 and self._luck[at + n] < self._rate(at + n, n):
            n += 1
        return n


def steady(rate: float) -> Callable[[int, int], float]:
    """The same everywhere."""
    return lambda at, position: rate


def fading(rate: float) -> Callable[[int, int], float]:
    """Less likely further into the block."""
    return lambda at, position: rate * (1 - 0.04 * position)


def bursts(high: float, low: float, stay: float, seed: int) -> Callable[[int, int], float]:
    """Easy and hard stretches of some tokens."""
    luck, easy, rates = random.Random(1000 + seed), True, []
    for _ in range(5000):
        easy ^= luck.random() > stay
        rates.append(high if easy else low)
    return lambda at, position: rates[at]


def switching(rates: Sequence[float], every: int) -> Callable[[int, int], float]:
    """One rate after the other, each for so many tokens."""
    return lambda at, position: rates[at // every % len(rates)]


# Texts of one kind throughout: from the seed of their luck to their rate.
STEADY = {
    **{f"rate {rate}": lambda seed, r=rate: steady(r) for rate in (0, 0.2, 0.4, 0.6, 0.8, 0.95)},
    "fading from 0.9": lambda seed: fading(0.9),
    "fading from 0.7": lambda seed: fading(0.7),
    "bursts": lambda seed: bursts(0.95, 0.3, 0.9, seed),
    "long bursts": lambda seed: bursts(0.97, 0.1, 0.95, seed),
}
# Texts that change: the rates that follow one another, and the tokens of each.
SWITCHING = {
    "prose, code, …": ((0.2, 0.85), 250),
    "code, prose, …": ((0.85, 0.2), 250),
    "fair, good, …": ((0.3, 0.7), 125),
    "good, fair, bad, …": ((0.9, 0.5, 0.1), 200),
    "nothing, then code": ((0.05, 0.9), 500),
}


def recorded(name: str, tokens: int) -> Text:
    """A recorded text, over and over."""
    content = json.loads(RECORDED.read_text())
    right = []
    for accepted in content["accepted"][name]:
        # After a whole block the next token was not drafted; it counts as one that would be right.
        right += [1.0] * accepted + [float(accepted == content["block_size"] - 1)]
    return Text(tokens, lambda at, position: right[at % len(right)])


def recorded_names() -> list[str]:
    """The recorded texts."""
    return list(json.loads(RECORDED.read_text())["accepted"])


@dataclass(frozen=True)
class Outcome:
    """What a text took.

    Attributes:
        rounds: place, block size and accepted drafts of each.
        tokens: emitted.
        milliseconds: of all rounds.
    """

    rounds: list[tuple[int, int, int]]
    tokens: int
    milliseconds: float

    @property
    def speed(self) -> float:
        return self.tokens / self.milliseconds


def decode(
    sizes: BlockSizes,
    text: Text,
    machine: Machine,
    context: int = 512,
    lag: int = 1,
    begin: int = 0,
    end: int | None = None,
    noise: Callable[[], float] | None = None,
) -> Outcome:
    """Decode a text; each round is chosen ``lag`` rounds before the one it follows is observed.

    With ``noise``, a factor, the time of each round is told that follows one of its own size, or
    stands between two of one size.
    """
    at, spent, rounds = begin, 0.0, []
    flight = deque(sizes.choose(context) for _ in range(lag))
    while at < (text.tokens if end is None else end):
        flight.append(sizes.choose(context + at))
        size = flight.popleft()
        accepted, cost = text.accepted(at, size), machine.cost(size, context + at)
        seconds = None
        if noise is not None and rounds:
            before = rounds[-1][1]
            if before == size:
                seconds = cost * noise()
            elif flight and flight[0] == before:
                # Beside another round of the size before, whose time is known.
                other = machine.cost(before, context + at)
                seconds = max(cost * noise() + other * (noise() - noise()), 0.0)
        sizes.observe(size, accepted, context + at, seconds)
        spent += cost
        rounds.append((at, size, accepted))
        at += accepted + 1
    return Outcome(rounds, at - begin, spent)


def controlled(machine: Machine, text: Text, context: int = 512, lag: int = 1) -> Outcome:
    """Decode with the controller, which knows what rounds cost."""
    return decode(BlockController(machine), text, machine, context, lag)


def best_fixed(
    machine: Machine, text: Text, context: int = 512, begin: int = 0, end: int | None = None
) -> Outcome:
    """Decode with the size that is best in hindsight."""
    outcomes = [
        decode(BlockSizes(size), text, machine, context, begin=begin, end=end)
        for size in machine.sizes
    ]
    return max(outcomes, key=lambda outcome: outcome.speed)


def plain(machine: Machine, text: Text, context: int = 512) -> Outcome:
    """Decode plainly."""
    return decode(BlockSizes(1), text, machine, context)
