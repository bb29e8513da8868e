"""Is the text the target's own? The embedded pair over all prompts, with and without drafting.

    python benchmarks/lossless.py [--max-tokens 128]

Greedy decoding and sampling at temperature 0.8 (coupled) must equal plain decoding token for token,
and greedy decoding also ``mlx_lm.stream_generate``. Exit code 1 if anything differs.
"""

import argparse
import itertools
import sys

from common import machine, prompts

import dflash_mlx
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.measure.lossless import Check, check_texts
from dflash_mlx.measure.run import Case


def verdict(check: Check) -> str:
    """``=`` or the index of the first token that differs."""
    return "=" if check.difference is None else str(check.difference.index)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-tokens", type=int, default=128)
    n = parser.parse_args().max_tokens
    pair, tokenizer = dflash_mlx.load()
    cases = [Case(name, "", 0, prompt) for name, prompt in prompts(tokenizer).items()]
    sizes, sampled = [pair.drafter.block_size], Sampling(temp=0.8, seed=1)
    checks = check_texts(pair, tokenizer, cases, sizes, sampled, n, lambda _: None)

    print(f"{machine()}, {n} tokens\n")
    print("| prompt | tokens | τ greedy | greedy | = mlx-lm | τ T=0.8 | coupled T=0.8 |")
    print("|---|---|---|---|---|---|---|")
    differing = 0
    for case in cases:
        greedy, theirs, warm = found = list(itertools.islice(checks, 3))
        differing += sum(check.difference is not None for check in found)
        print(
            f"| {case.prompt} | {greedy.tokens} | {greedy.tau:.2f} | {verdict(greedy)} "
            f"| {verdict(theirs)} | {warm.tau:.2f} | {verdict(warm)} |",
            flush=True,
        )
    print(f"\n{differing or 'no'} differences (= equal, else the first differing token)")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
