"""What does a round cost, and does the host ever hold the device up?

    python benchmarks/round.py [--max-tokens 192] [--repeats 5] [--block-size 8]

The real drafter does all its work, but its tokens come from a script that is right with a chosen
probability. Each repeat times the draft and the verify alone (built, run and waited for), then the
whole host loop, detokenizer included, then mlx-lm's plain decoding of the same text. Loop
efficiency is measured tokens/s ÷ (τ ÷ (draft + verify alone)): 1 means that a round costs nothing
but its two forwards, and more than 1 that the loop also hides work that they wait for when alone.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import mlx.core as mx
import mlx_lm
from common import ScriptedDrafter, machine, prompts, stages

import dflash_mlx
from dflash_mlx.engine import queue


@contextmanager
def watched(log: list[tuple[str, float]]) -> Iterator[None]:
    """Log the seconds of each graph built, each submission of one and each blocking read."""
    plain = {
        "build": queue.run_round,
        "submit": queue.RoundQueue.submit,
        "read": mx.array.tolist,
    }

    def timed(name: str) -> Callable[..., object]:
        def call(*args: object) -> object:
            begun = time.perf_counter()
            result = plain[name](*args)
            log.append((name, time.perf_counter() - begun))
            return result

        return call

    queue.run_round, queue.RoundQueue.submit, mx.array.tolist = map(timed, plain)
    try:
        yield
    finally:
        queue.run_round, queue.RoundQueue.submit, mx.array.tolist = plain.values()


def host_log(pair: dflash_mlx.Pair, tokenizer: object, prompt: list[int], n: int) -> str:
    """What the host did in one generation: its times, its reads, and their order."""
    log: list[tuple[str, float]] = []
    with watched(log):
        size = pair.drafter.block_size
        *_, last = dflash_mlx.stream_generate(pair, tokenizer, prompt, n, block_size=size)
    rounds = last.statistics.total
    order = [name for name, _ in log if name != "build"]
    reads = order.count("read")
    submitted = [order[:i].count("submit") for i, name in enumerate(order) if name == "read"]
    ahead = sum(count >= i + 2 for i, count in enumerate(submitted))
    times = {
        name: 1e3 * median(t for kind, t in log if kind == name)
        for name in ("build", "submit", "read")
    }
    given = times["submit"] - times["build"]
    return (
        f"host, a round: {times['build']:.2f} ms building the graph, {given:.2f} ms in "
        f"async_eval, {times['read']:.2f} ms waiting in the read\n"
        f"blocking reads: {reads} in {rounds} rounds; {ahead} of them with the next round queued "
        "already (none is queued ahead of a round that may be the last)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--block-size", type=int, default=8)
    args = parser.parse_args()
    n, block_size = args.max_tokens, args.block_size
    pair, tokenizer = dflash_mlx.load()
    prompt = prompts(tokenizer)["prose-1"]
    plain = [r.token for r in dflash_mlx.stream_generate(pair, tokenizer, prompt, n, draft=False)]
    if len(plain) < n:
        raise SystemExit(f"The text ends after {len(plain)} tokens; choose a smaller --max-tokens.")
    truth = prompt + plain

    print(f"{machine()}; {n} tokens, block {block_size}, median of {args.repeats} [min, max]\n")
    print("| acceptance | τ | draft ms | verify ms | rest ms | tokens/s | efficiency | ÷ mlx-lm |")
    print("|---|---|---|---|---|---|---|---|")
    for acceptance in (0.0, 0.5, 0.8, 1.0):
        drafter = ScriptedDrafter(pair.drafter, truth, acceptance, pair.target.vocab_size)
        scripted = dflash_mlx.Pair(pair.target, drafter, pair.context_length)
        rows = []
        for _ in range(args.repeats):
            early = stages(scripted, truth[: len(prompt)], block_size)
            *_, last = dflash_mlx.stream_generate(
                scripted, tokenizer, prompt, n, block_size=block_size
            )
            late = stages(scripted, truth, block_size)
            *_, theirs = mlx_lm.stream_generate(pair.model, tokenizer, prompt, n)
            cost = {k: (early[k] + late[k]) / 2 for k in ("draft", "verify", "rest")}
            ideal = last.tau / (cost["draft"] + cost["verify"])
            speed = last.generation_tps
            ratio = speed / theirs.generation_tps
            rows.append((last.tau, *cost.values(), speed, speed / ideal, ratio))
        columns = list(zip(*rows, strict=True))
        tau, draft, verify, rest, speed = (median(c) for c in columns[:5])
        spread = [f"{median(c):.2f} [{min(c):.2f}, {max(c):.2f}]" for c in columns[5:]]
        print(
            f"| {acceptance} | {tau:.2f} | {draft * 1e3:.1f} | {verify * 1e3:.1f} "
            f"| {rest * 1e3:.1f} | {speed:.1f} | {spread[0]} | {spread[1]} |",
            flush=True,
        )
    print("\n" + host_log(scripted, tokenizer, prompt, n))


if __name__ == "__main__":
    main()
