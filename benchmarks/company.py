"""Do sequences that join and leave one loop write what they write alone? At length.

    python benchmarks/company.py [--rounds 20000] [--seed 0]

The schedules of ``tests/engine/test_company.py`` with other random numbers, over all its families
and batches of 1 to 8, until so many rounds were decoded. Exit code 1 at the first difference.
"""

import argparse
import random
import sys
from itertools import count
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "engine")]

from support.company import company, play  # noqa: E402
from support.tiny import shared_model  # noqa: E402
from test_company import FAMILIES, MORE_FAMILIES, cases_of  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    families = FAMILIES + MORE_FAMILIES
    luck, rounds, texts = random.Random(args.seed), 0, 0
    for number in count():
        family = families[number % len(families)]
        batch = luck.randint(1, 8)
        with company(shared_model(family), luck.randrange(2**32), batch) as (pair, loop, chance):
            cases = cases_of(family, 24, chance)
            got, steps = play(pair, loop, chance, cases)
        wrong = [i for i, case in enumerate(cases) if got[i] != case.text[: case.wanted]]
        if wrong:
            print(f"schedule {number}, {family}, batch {batch}: texts {wrong} differ")
            return 1
        rounds, texts = rounds + steps, texts + len(cases)
        print(f"{rounds} rounds, {texts} texts of {len(families)} families, all equal", flush=True)
        if rounds >= args.rounds:
            return 0


if __name__ == "__main__":
    sys.exit(main())
