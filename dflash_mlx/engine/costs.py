"""What a round costs: a table of measured seconds, corrected by the rounds that follow."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from statistics import median
from typing import Any, Self

GREEDY = "greedy"
# A process's first round in a cell moves it by this share of the deviation, the next ones by 1/3,
# 1/4, …: the table may be of another day, and beyond the measured contexts it is a guess.
FIRST_RATE = 0.5
# However many rounds have corrected a cell, the next one moves it by this share of the deviation.
LEAST_RATE = 0.1
# A round's deviation counts as this share at most: a hiccup of the machine moves a cell that many
# rounds have corrected by 3%.
LARGEST_DEVIATION = 0.3
# At least this share of a correction is made at the other block sizes as well, and at the farther
# of the two contexts around: machines slow down as a whole more often than at one place.
SHARED = 0.5
# The acceptance over all texts so far counts as much as so many drafts of the next text.
KNOWN_DRAFTS = 100
# A way of choosing tokens without costs of its own is taken for greedy until so many of its rounds
# were timed.
UNKNOWN_ROUNDS = 5
# Choosing a token in such a way is believed to take at most this share of a plain round more than
# greedily: what rounds took beyond that, the machine was slower by.
LARGEST_SURPLUS = 0.05


@dataclass
class CostTable:
    """Seconds of rounds on one machine, for one pair.

    In the context length, costs are taken for linear, between the measured lengths and beyond them.

    Attributes:
        contexts: measured context lengths, ascending, two or more.
        rounds: for each way of choosing tokens, block size to the seconds of a whole round at each
            context; size 1 is plain decoding. Greedy rounds are measured, others learned.
        drafts: block size to the seconds of the round's draft alone, at each context.
        verifies: block size to the seconds of the target's forward alone, at each context.
        acceptance: how likely a draft is accepted, over the texts so far; None before the first.
        uncertain: whether the measurement contradicted itself; such a table is not to be stored.
    """

    contexts: list[int]
    rounds: dict[str, dict[int, list[float]]]
    drafts: dict[int, list[float]] = field(default_factory=dict)
    verifies: dict[int, list[float]] = field(default_factory=dict)
    acceptance: float | None = None
    uncertain: bool = field(default=False, compare=False)
    _rates: dict[tuple[str, int, int], float] = field(
        default_factory=dict, compare=False, repr=False
    )
    _unknown: dict[str, list[tuple[float, float]]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def sizes(self) -> list[int]:
        """The measured block sizes, ascending."""
        return sorted(self.rounds[GREEDY])

    def column(self, context: int, choice: str = GREEDY) -> dict[int, float]:
        """Seconds of a round of each measured size.

        A block never costs more than a larger one does: where the table says so, the machine was
        busy while the smaller was timed.

        Args:
            context: committed tokens.
            choice: how tokens are chosen; taken for greedy if no round has told.
        """
        seconds = self._timed(context, choice)
        descending = sorted(seconds, reverse=True)
        least = accumulate((seconds[size] for size in descending), min)
        return dict(reversed(list(zip(descending, least, strict=True))))

    def learn(self, block_size: int, context: int, seconds: float, choice: str = GREEDY) -> None:
        """Move the table towards what a round of a measured size took.

        Sizes that no round of this process has timed follow: the nearer, the more.
        """
        self._extend(context)
        if choice not in self.rounds:
            self._begin(choice, block_size, context, seconds)
            return
        timed = self._timed(context, choice)
        deviation = seconds / timed[block_size] - 1
        cell = choice, block_size, self._nearest(context)
        # A smaller block cannot take longer: what says so was timed on a busier machine.
        contradicted = any(seconds < timed[size] for size in timed if size < block_size)
        rate = self._rates.get(cell, 1.0 if contradicted else FIRST_RATE)
        self._rates[cell] = 1 / (1 / rate + 1)
        step = max(rate, LEAST_RATE) * max(-LARGEST_DEVIATION, min(deviation, LARGEST_DEVIATION))
        for size in timed:
            self._scale(size, context, choice, 1 + step * _share(block_size, size))
        self._order(block_size, context, choice)

    def _order(self, block_size: int, context: int, choice: str) -> None:
        """Have sizes that were not timed in this process cost no more, or no less, than one was."""
        known = self._timed(context, choice)
        for size, seconds in known.items():
            wrong = (seconds > known[block_size]) == (size < block_size)
            if size != block_size and wrong and not self.confirmed(size, context, choice):
                self._scale(size, context, choice, known[block_size] / seconds)

    def _scale(self, block_size: int, context: int, choice: str, factor: float) -> None:
        """Multiply what a round costs at a context, and the farther measured one by less."""
        cells, weights = self.rounds[choice][block_size], self._weights(context)
        norm = sum(w * w for w in weights.values())
        for i, weight in weights.items():
            # Weighted by the columns' shares, the parts add up to 1.
            cells[i] *= 1 + (factor - 1) * (SHARED + (1 - SHARED) * weight / norm)

    def _begin(self, choice: str, block_size: int, context: int, seconds: float) -> None:
        """Take in a round of a way of choosing without costs of its own.

        What it took longer than a greedy one is laid to the choosing, which is done at every
        position, and what that can hardly take to the machine.
        """
        greedy = self.column(context)
        surplus = (seconds - greedy[block_size]) / block_size
        each = max(0.0, min(surplus, LARGEST_SURPLUS * greedy[1]))
        seen = self._unknown.setdefault(choice, [])
        seen.append((each, seconds / (greedy[block_size] + each * block_size)))
        if len(seen) == UNKNOWN_ROUNDS:
            each, slower = map(median, zip(*seen, strict=True))
            self.rounds[choice] = {
                size: [slower * (x + each * size) for x in cells]
                for size, cells in self.rounds[GREEDY].items()
            }

    def confirmed(self, block_size: int, context: int, choice: str = GREEDY) -> bool:
        """Whether a round of this process has corrected the cell that counts most."""
        cell = choice, block_size, self._nearest(context)
        return context <= 1.5 * self.contexts[-1] and cell in self._rates

    def learn_acceptance(self, examined: int, accepted: int) -> None:
        """Take a text into account of whose ``examined`` drafts ``accepted`` were right."""
        if examined:
            rate = accepted / examined
            before = rate if self.acceptance is None else self.acceptance
            share = examined / (examined + KNOWN_DRAFTS)
            self.acceptance = before + (rate - before) * share

    def differs(self, other: "CostTable", share: float) -> bool:
        """Whether the cells are others, or a time or the acceptance differs by more than a share.

        Args:
            other: of the same pair.
            share: of the other's times.
        """
        ours, theirs = self._cells(), other._cells()
        known = [table.acceptance for table in (self, other) if table.acceptance is not None]
        if ours.keys() != theirs.keys() or len(known) == 1:
            return True
        moved = [abs(seconds / theirs[cell] - 1) for cell, seconds in ours.items()]
        return max([*moved, max(known, default=0) - min(known, default=0)]) > share

    def to_dict(self) -> dict[str, Any]:
        """What JSON is to hold; :meth:`from_dict` reads it back."""
        names = ("contexts", "rounds", "drafts", "verifies", "acceptance")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read a table.

        Raises:
            ValueError: it is not one, or a number in it is none that a measurement gives.
        """
        try:
            rounds = {choice: _by_size(sizes) for choice, sizes in content["rounds"].items()}
            alone = (_by_size(content[name]) for name in ("drafts", "verifies"))
            contexts = [int(x) for x in content["contexts"]]
            table = cls(contexts, rounds, *alone, content["acceptance"])
            sound = table._sound()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a cost table ({error!r})") from error
        if not sound:
            raise ValueError("not a sound cost table")
        return table

    def _timed(self, context: int, choice: str) -> dict[int, float]:
        """Seconds of a round of each size, as they were timed."""
        weights = self._weights(context)
        rounds = self.rounds.get(choice, self.rounds[GREEDY])
        return {
            size: max(sum(cells[i] * weight for i, weight in weights.items()), 1e-9)
            for size, cells in rounds.items()
        }

    def _weights(self, context: int) -> dict[int, float]:
        """How much each measured context counts at ``context``, by its index."""
        i = min(max(bisect_right(self.contexts, context), 1), len(self.contexts) - 1)
        low, high = self.contexts[i - 1], self.contexts[i]
        part = max((context - low) / (high - low), 0.0)
        return {i - 1: 1 - part, i: part}

    def _nearest(self, context: int) -> int:
        weights = self._weights(context)
        return max(weights, key=weights.__getitem__)

    def _extend(self, context: int) -> None:
        """Have a cell near ``context``, so that what is learned there stays there."""
        while context > 1.5 * self.contexts[-1]:
            further = 2 * self.contexts[-1]
            weights = self._weights(further)
            for cells in self._rows():
                cells.append(sum(cells[i] * weight for i, weight in weights.items()))
            self.contexts.append(further)

    def _rows(self) -> list[list[float]]:
        """Every list of seconds by context."""
        tables = (*self.rounds.values(), self.drafts, self.verifies)
        return [cells for table in tables for cells in table.values()]

    def _cells(self) -> dict[tuple[str, int, int], float]:
        """The seconds of rounds by choice, block size and context."""
        return {
            (choice, size, context): seconds
            for choice, sizes in self.rounds.items()
            for size, cells in sizes.items()
            for context, seconds in zip(self.contexts, cells, strict=True)
        }

    def _sound(self) -> bool:
        rows, sizes = self._rows(), self.rounds[GREEDY].keys()
        return (
            len(self.contexts) > 1
            and all(0 < a < b for a, b in pairwise(self.contexts))
            and {1, 2} <= sizes
            and all(rounds.keys() == sizes for rounds in self.rounds.values())
            and all(len(cells) == len(self.contexts) for cells in rows)
            and all(math.isfinite(x) and x > 0 for cells in rows for x in cells)
            and (self.acceptance is None or 0 <= float(self.acceptance) <= 1)
        )


def _share(block_size: int, other: int) -> float:
    """How much of a correction of one block size another one follows."""
    if block_size == other:
        return 1.0
    smaller, larger = sorted((block_size, other))
    # A plain round has no draft, so it is near to none.
    return SHARED if smaller == 1 else max(smaller / larger, SHARED)


def _by_size(content: Mapping[str, Any]) -> dict[int, list[float]]:
    return {int(size): [float(x) for x in cells] for size, cells in content.items()}


def guess_for_batch(table: CostTable, batch: int) -> CostTable:
    """What rounds of ``batch`` texts cost, guessed from those of one, until rounds have told.

    ``batch`` blocks of ``n`` positions are taken for one of ``batch * n``; beyond the measured
    sizes, seconds grow in proportion.
    """

    def guessed(cells: Mapping[int, list[float]]) -> dict[int, list[float]]:
        sizes = sorted(cells)
        columns = [[cells[size][i] for size in sizes] for i in range(len(table.contexts))]
        return {n: [_at(sizes, seconds, batch * n) for seconds in columns] for n in sizes}

    return CostTable(
        list(table.contexts),
        {GREEDY: guessed(table.rounds[GREEDY])},
        acceptance=table.acceptance,
    )


def _at(sizes: Sequence[int], seconds: Sequence[float], positions: int) -> float:
    """Seconds of a block of ``positions``, between measured sizes and beyond them."""
    if positions >= sizes[-1]:
        return seconds[-1] * positions / sizes[-1]
    i = bisect_right(sizes, positions)
    part = (positions - sizes[i - 1]) / (sizes[i] - sizes[i - 1])
    return seconds[i - 1] + (seconds[i] - seconds[i - 1]) * part
