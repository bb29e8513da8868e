"""What a round costs: a table of measured seconds, corrected by the rounds that follow."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

# Share of a round's deviation that its cell takes over, and the most that one round can deviate:
# a hiccup of the machine moves a cell by 3%. The table may be of another day, and beyond the
# measured contexts it is a guess, so the first rounds of a process move it more: 1/2, 1/3, 1/4, …
RATE = 0.1
FIRST_RATE = 0.5
LARGEST_DEVIATION = 0.3
# How much of a correction the other sizes share, and the other of the two columns that a context
# lies between: machines slow down as a whole more often than at one place.
SHARED = 0.5
GREEDY = "greedy"


@dataclass
class CostTable:
    """Seconds of rounds on one machine, for one pair.

    Verify cost is a staircase in the rows, so nothing is assumed between measured sizes but the
    straight line from one to the next. In the context length it is linear, between the measured
    lengths and beyond them.

    Attributes:
        contexts: measured context lengths, ascending, two or more.
        rounds: rows to the seconds of a whole greedy round at each context; 1 is plain decoding.
        drafts: rows to the seconds of the round's draft alone, at each context.
        verifies: rows to the seconds of the target's forward alone, at each context.
        choices: way of choosing tokens to the seconds that a draft and choosing take, by rows.
        acceptance: how likely a draft is accepted, over the texts so far; None before the first.
    """

    contexts: list[int]
    rounds: dict[int, list[float]]
    drafts: dict[int, list[float]] = field(default_factory=dict)
    verifies: dict[int, list[float]] = field(default_factory=dict)
    choices: dict[str, dict[int, float]] = field(default_factory=dict)
    acceptance: float | None = None
    _rates: dict[tuple[int, int], float] = field(default_factory=dict, compare=False, repr=False)

    @property
    def sizes(self) -> list[int]:
        """The measured numbers of rows, ascending."""
        return sorted(self.rounds)

    def seconds(self, rows: int, context: int, choice: str = GREEDY) -> float:
        """Seconds of a round.

        Args:
            rows: rows verified, anchor included.
            context: committed tokens.
            choice: how tokens are chosen; taken for greedy if that way was never measured.
        """
        column = self.column(context, choice)
        return sum(column[size] * weight for size, weight in _neighbours(column, rows))

    def column(self, context: int, choice: str = GREEDY) -> dict[int, float]:
        """Seconds of a round of each measured size, after ``context`` committed tokens."""
        weights = self._weights(context)
        ours, greedy = self.choices.get(choice), self.choices.get(GREEDY)
        column = {}
        for size, row in self.rounds.items():
            seconds = sum(row[i] * weight for i, weight in weights.items())
            if ours is not None and choice != GREEDY:
                seconds += ours[size] - greedy[size]
            column[size] = max(seconds, 1e-9)
        return column

    def learn(self, rows: int, context: int, seconds: float, choice: str = GREEDY) -> None:
        """Move the table towards what a round took."""
        if rows not in self.rounds:
            return
        self._extend(context)
        deviation = seconds / self.seconds(rows, context, choice) - 1
        weights = self._weights(context)
        rate = self._rate(rows, self._nearest(context))
        step = rate * max(-LARGEST_DEVIATION, min(deviation, LARGEST_DEVIATION))
        norm = sum(w * w for w in weights.values())
        for size, row in self.rounds.items():
            share = 1.0 if size == rows else SHARED
            for i, weight in weights.items():
                # Weighted by the columns' shares, the parts add up to 1.
                part = SHARED + (1 - SHARED) * weight / norm
                row[i] *= 1 + step * share * part

    def confirmed(self, rows: int, context: int) -> bool:
        """Whether a round of this process has corrected the cell that counts most."""
        return context <= 1.5 * self.contexts[-1] and (rows, self._nearest(context)) in self._rates

    def learn_acceptance(self, examined: int, accepted: int) -> None:
        """Take a text into account of whose ``examined`` drafts ``accepted`` were right."""
        if examined:
            rate = accepted / examined
            before = rate if self.acceptance is None else self.acceptance
            self.acceptance = before + (rate - before) * examined / (examined + 100)

    def _rate(self, rows: int, column: int) -> float:
        """The share of a deviation that a cell takes over; it falls each time."""
        rate = self._rates.get((rows, column), FIRST_RATE)
        self._rates[rows, column] = 1 / (1 / rate + 1)
        return max(rate, RATE)

    def _at(self, row: list[float], context: int) -> float:
        return sum(row[i] * weight for i, weight in self._weights(context).items())

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
            for row in self._measured():
                row.append(self._at(row, further))
            self.contexts.append(further)

    def differs(self, other: "CostTable", share: float) -> bool:
        """Whether a round's time differs by more than a share, acceptance by as much, or the shape.

        Args:
            other: of the same pair.
            share: of the other's times.
        """
        if (self.contexts, self.choices.keys()) != (other.contexts, other.choices.keys()):
            return True
        if (self.acceptance is None) != (other.acceptance is None):
            return True
        if abs((self.acceptance or 0) - (other.acceptance or 0)) > share:
            return True
        cells = zip(self.rounds.values(), other.rounds.values(), strict=True)
        return any(abs(a / b - 1) > share for row in cells for a, b in zip(*row, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """The table as JSON holds it; :meth:`from_dict` reads it back."""
        return {
            "contexts": self.contexts,
            "rounds": {str(k): v for k, v in self.rounds.items()},
            "drafts": {str(k): v for k, v in self.drafts.items()},
            "verifies": {str(k): v for k, v in self.verifies.items()},
            "choices": {
                name: {str(k): v for k, v in rows.items()} for name, rows in self.choices.items()
            },
            "acceptance": self.acceptance,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read a table.

        Raises:
            ValueError: it is not one, or a number in it is none that a measurement gives.
        """
        try:
            table = cls(
                [int(x) for x in content["contexts"]],
                _rows(content["rounds"]),
                _rows(content["drafts"]),
                _rows(content["verifies"]),
                {
                    name: {int(k): float(v) for k, v in rows.items()}
                    for name, rows in content["choices"].items()
                },
                content["acceptance"],
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a cost table ({error!r})") from error
        table._check()
        return table

    def _measured(self) -> list[list[float]]:
        """Every row of the three tables."""
        tables = (self.rounds, self.drafts, self.verifies)
        return [row for table in tables for row in table.values()]

    def _check(self) -> None:
        rows = self._measured()
        seconds = [x for row in rows for x in row]
        seconds += [x for choice in self.choices.values() for x in choice.values()]
        sound = (
            len(self.contexts) > 1
            and all(0 < a < b for a, b in pairwise(self.contexts))
            and {1, 2} <= self.rounds.keys()
            and all(len(row) == len(self.contexts) for row in rows)
            and all(math.isfinite(x) and x > 0 for x in seconds)
            and all(choice.keys() == self.rounds.keys() for choice in self.choices.values())
            and (not self.choices or GREEDY in self.choices)
            and (self.acceptance is None or 0 <= float(self.acceptance) <= 1)
        )
        if not sound:
            raise ValueError("not a sound cost table")


def _neighbours(measured: Collection[int], rows: int) -> list[tuple[int, float]]:
    """The measured sizes around ``rows``, each with its weight; flat beyond the last."""
    sizes = sorted(measured)
    rows = min(max(rows, sizes[0]), sizes[-1])
    i = max(bisect_left(sizes, rows), 1)
    low, high = sizes[i - 1], sizes[i]
    part = (rows - low) / (high - low)
    return [(low, 1 - part), (high, part)]


def _rows(content: Mapping[str, Any]) -> dict[int, list[float]]:
    return {int(rows): [float(x) for x in cells] for rows, cells in content.items()}
