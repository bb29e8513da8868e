"""Is ``block_size="auto"`` ever slower than plain decoding, and does it find the best size?

    python benchmarks/auto.py [--max-tokens 192] [--repeats 5] [--limit -1] [--sizes 2,4,8]

First the real pair over the prompts: plain decoding and auto side by side, a few tokens of the one
and then of the other, so that a drift of the machine meets both. A ratio is that of two runs of the
same repeat, and the table has the median of the repeats. Then one text with scripted drafters,
which do all of the drafter's work and are right with a chosen probability, and fixed sizes as well.
The exit code is 1 if auto is below 0.97 of plain decoding on a prompt or a kind, or with drafts
right at 0.8 below 0.97 of the best fixed size.

``--plain-twice`` tells what all this can resolve: plain decoding stands in for auto.
"""

import argparse
import copy
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from statistics import mean, median, pstdev
from typing import NamedTuple

import mlx.core as mx
from common import ScriptedDrafter, machine, prompts
from mlx_lm.tokenizer_utils import TokenizerWrapper

import dflash_mlx
from dflash_mlx.cli.tune import describe, tuning_progress

FLOOR = 0.97
ACCEPTANCES = (0.0, 0.5, 0.8, 1.0)
CHECKED = 0.8
# Tokens that one run emits before the next has its turn. Fewer cancel more of the machine's drift,
# but a round that is read after the other's turn teaches auto nothing about costs.
TURN = 2
Run = Callable[[], Iterator[dflash_mlx.GenerationResponse]]


class Timed(NamedTuple):
    """A generation that is over: tokens a second after the prompt, and the last response."""

    speed: float
    last: dflash_mlx.GenerationResponse


def paired(runs: Mapping[str, Run], repeats: int) -> dict[str, list[Timed]]:
    """Every run once a repeat, in turns whose order turns round each time."""
    found = {name: [] for name in runs}
    for repeat in range(repeats):
        order = list(reversed(runs) if repeat % 2 else runs)
        for name, timed in in_turns({name: runs[name] for name in order}).items():
            found[name].append(timed)
    return found


def in_turns(runs: Mapping[str, Run]) -> dict[str, Timed]:
    """One generation of each run, side by side, so that all of them meet the same machine.

    The device is idle when a turn ends, so no run pays for the round that another has queued.
    """
    going = {name: run() for name, run in runs.items()}
    seconds = dict.fromkeys(runs, 0.0)
    last: dict[str, dflash_mlx.GenerationResponse] = {}
    while going:
        for name, responses in list(going.items()):
            begun, turn = time.perf_counter(), list(itertools.islice(responses, TURN))
            mx.synchronize()
            seconds[name] += time.perf_counter() - begun
            last[name] = turn[-1] if turn else last[name]
            if len(turn) < TURN:
                del going[name]
    return {name: Timed(speed_of(last[name], seconds[name]), last[name]) for name in runs}


def speed_of(last: dflash_mlx.GenerationResponse, seconds: float) -> float:
    """Tokens a second of a generation that took ``seconds``, its prompt included."""
    return last.generation_tokens / (seconds - last.prompt_tokens / last.prompt_tps)


def ratios(found: Mapping[str, list[Timed]], name: str, base: str = "plain") -> list[float]:
    """Speed of one run relative to another's of the same repeat."""
    return [x.speed / y.speed for x, y in zip(found[name], found[base], strict=True)]


def runs_of(
    pair: dflash_mlx.Pair, tokenizer: TokenizerWrapper, prompt: list[int], n: int, sizes: list[int]
) -> dict[str, Run]:
    """Plain decoding, auto, and each fixed size."""

    def run(**options: object) -> Run:
        return lambda: dflash_mlx.stream_generate(pair, tokenizer, prompt, n, **options)

    fixed = {f"block {size}": run(block_size=size) for size in sizes}
    return {"plain": run(draft=False), "auto": run(block_size="auto"), **fixed}


def over_prompts(
    pair: dflash_mlx.Pair, tokenizer: TokenizerWrapper, args: argparse.Namespace
) -> list[str]:
    """Print a line a prompt and a kind; return those where auto is too slow."""
    print("| prompt | tokens | τ | plain rounds | auto ÷ plain |")
    print("|---|---|---|---|---|")
    kinds: dict[str, list[list[float]]] = {}
    slow, deviations = [], []
    for name, prompt in prompts(tokenizer).items():
        kind, number = name.split("-")
        if args.limit != -1 and int(number) > args.limit:
            continue
        if args.prompts and name not in args.prompts.split(","):
            continue
        runs = runs_of(pair, tokenizer, prompt, args.max_tokens, [])
        if args.plain_twice:
            runs["auto"] = runs["plain"]
        found = paired(runs, args.repeats)
        auto = ratios(found, "auto")
        deviations += [ratio / mean(auto) - 1 for ratio in auto]
        kinds.setdefault(kind, []).append(auto)
        last = found["auto"][-1].last
        plain_rounds = last.statistics.rounds[1] / last.statistics.total
        print(
            f"| {name} | {last.generation_tokens} | {last.tau:.2f} | {plain_rounds:.0%} "
            f"| {median(auto):.3f} [{min(auto):.2f}, {max(auto):.2f}] |",
            flush=True,
        )
        slow += [name] if median(auto) < FLOOR else []
    for kind, rows in kinds.items():
        middle = median(sum(column) / len(column) for column in zip(*rows, strict=True))
        print(f"| **{kind}** | | | | **{middle:.3f}** |")
        slow += [kind] if middle < FLOOR else []
    print(f"\nA repeat's ratio deviates by {pstdev(deviations):.1%} from the mean of its prompt.")
    return slow


def with_scripts(
    pair: dflash_mlx.Pair, tokenizer: TokenizerWrapper, args: argparse.Namespace
) -> bool:
    """Print a line for each acceptance; return whether auto is near the best size where checked."""
    n, vocab = args.max_tokens, pair.target.vocab_size
    prompt = prompts(tokenizer)["prose-1"]
    options = {"max_tokens": n, "draft": False}
    plain = [r.token for r in dflash_mlx.stream_generate(pair, tokenizer, prompt, **options)]
    names = [f"block {size}" for size in args.sizes]
    print("\n| acceptance | auto ÷ plain | auto ÷ best | best | " + " | ".join(names) + " |")
    print("|---" * (4 + len(names)) + "|")
    near = True
    for acceptance in args.acceptance:
        drafter = ScriptedDrafter(pair.drafter, prompt + plain, acceptance, vocab)
        scripted = dflash_mlx.Pair(pair.target, drafter, pair.context_length)
        scripted.costs = copy.deepcopy(pair.costs)
        scripted.costs.acceptance = None
        runs = runs_of(scripted, tokenizer, prompt, len(plain), args.sizes)
        found = paired(runs, args.repeats)
        middles = {name: median(ratios(found, name)) for name in ("plain", *names)}
        best = max(middles, key=middles.__getitem__)
        to_best = median(ratios(found, "auto", best))
        fixed = " | ".join(f"{middles[name]:.2f}" for name in names)
        print(
            f"| {acceptance} | {median(ratios(found, 'auto')):.3f} | {to_best:.3f} | {best} "
            f"| {fixed} |",
            flush=True,
        )
        near = near and not (acceptance == CHECKED and to_best < FLOOR)
    return near


def numbers(kind: type) -> Callable[[str], list[float]]:
    """A parser of comma-separated numbers."""
    return lambda text: [kind(part) for part in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=int, default=-1, help="prompts of each kind, -1 for all")
    parser.add_argument("--prompts", help="ids, such as code-1,chat-2 (default: all)")
    parser.add_argument("--plain-twice", action="store_true", help="measure the noise, not auto")
    parser.add_argument("--sizes", type=numbers(int), default=[2, 4, 8], help="fixed block sizes")
    parser.add_argument("--acceptance", type=numbers(float), default=ACCEPTANCES)
    args = parser.parse_args()
    pair, tokenizer = dflash_mlx.load()
    print(f"{machine()}; {args.max_tokens} tokens, median of {args.repeats} [min, max]\n")
    print(describe(dflash_mlx.tune(pair, tuning_progress(), again=True)) + "\n")
    slow = over_prompts(pair, tokenizer, args)
    if args.plain_twice:
        return 0
    near = with_scripts(pair, tokenizer, args)
    print()
    print(f"Below {FLOOR} of plain decoding: {', '.join(slow) or 'nothing'}.")
    print(f"With drafts right at {CHECKED}: {'near' if near else 'NOT near'} the best fixed size.")
    return 1 if slow or not near else 0


if __name__ == "__main__":
    sys.exit(main())
