"""Which estimate of acceptance serves the choice of block sizes best, in the tests' simulator?

    PYTHONPATH=tests python benchmarks/acceptance.py

Machines are cost tables and texts say which drafts are right, so nothing here depends on the
computer. The numbers are speeds relative to the best fixed size in hindsight, mean over machines,
texts and the luck of three seeds. A text that switches can be above 1: no fixed size suits all of
it.
"""

import sys
from collections.abc import Iterable
from statistics import mean
from unittest.mock import patch

from support.simulator import (
    MACHINES,
    STEADY,
    SWITCHING,
    Machine,
    Text,
    best_fixed,
    controlled,
    recorded,
    recorded_names,
    switching,
)

from dflash_mlx.engine import block_size

SEEDS = range(3)
TOKENS = 1000
VARIANTS = {
    "as it is": {"SHRINKAGE": block_size.SHRINKAGE},
    "one pooled rate": {"SHRINKAGE": 1e9},
    "positions drawn together by 5 only": {"SHRINKAGE": 5.0},
    "the short memory alone": {"MEMORIES": block_size.MEMORIES[:1]},
    "the long memory alone": {"MEMORIES": block_size.MEMORIES[1:]},
}


def texts() -> dict[str, list[Text]]:
    """All texts, by kind."""
    return {
        "steady": [Text(TOKENS, rate(s), s) for rate in STEADY.values() for s in SEEDS],
        "switching": [Text(TOKENS, switching(*x), s) for x in SWITCHING.values() for s in SEEDS],
        "recorded": [recorded(name, 600) for name in recorded_names()],
    }


def relative(cases: Iterable[tuple[Machine, Text, float]]) -> float:
    """Mean speed of the controller, relative to the best fixed size of each case."""
    return mean(controlled(machine, text).speed / best for machine, text, best in cases)


def main() -> int:
    cases = {
        kind: [
            (machine, text, best_fixed(machine, text).speed)
            for machine in MACHINES.values()
            for text in some
        ]
        for kind, some in texts().items()
    }
    print(f"| estimate | {' | '.join(cases)} |\n|---" + "|---" * len(cases) + "|")
    for name, constants in VARIANTS.items():
        with patch.multiple(block_size, **constants):
            cells = [f"{relative(some):.3f}" for some in cases.values()]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
