"""What does the host do in a round, and would ``mx.compile`` make any of it cheaper?

    python benchmarks/host.py [--repeats 40]

First the milliseconds that Python needs to build each stage of a round of the embedded pair, while
nothing is evaluated. Then rounds in three ways that take turns: all built before any of them runs,
so that the device never waits; each queued before the one before is read, as the host loop does;
and each read before the next is built. Then how long the device still works on a round when the
next one is built, ready to be queued: while that is above zero, the device never waits for Python.
Last, for the pieces that have no cache in them, building
plus evaluating as they are against the same function under ``mx.compile``.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import mlx.core as mx
from common import machine, prompts

import dflash_mlx
from dflash_mlx.cache.linear import LinearCache
from dflash_mlx.engine.accept import accept_by_rejection, accept_equal
from dflash_mlx.engine.choose import Chooser
from dflash_mlx.engine.noise import gumbel as draw_gumbel
from dflash_mlx.engine.noise import row_seeds
from dflash_mlx.engine.prefill import prefill
from dflash_mlx.engine.round import run_round
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.engine.state import State

ROUNDS = 6

Piece = tuple[Callable[..., object], list[mx.array]]


class Start:
    """The state after a prompt, to begin rounds from again and again.

    Args:
        pair: whose state it is.
        prompt: tokens, the last of them the first anchor.
        rows: how many rows beyond the prompt there must be room for.
    """

    def __init__(self, pair: dflash_mlx.Pair, prompt: list[int], rows: int):
        stock = pair.target.make_cache()
        context = pair.drafter.make_context(mx.array([0], mx.int32))
        prefill(pair.target, pair.drafter, prompt[:-1], stock, context, 0, 2048, lambda *_: None)
        self._offset = mx.array([len(prompt) - 1], mx.int32)
        self._anchor = mx.array([prompt[-1]], mx.int32)
        self._buffers = [*(LinearCache.adopt([c]) for c in stock), *context]
        self._layers = len(stock)
        self._rows = len(prompt) + rows
        mx.eval(self.state().arrays())

    def state(self) -> State:
        """A fresh state; its buffers are copied on the first write."""
        copies = [LinearCache(c.keys, c.values, self._offset, c.start) for c in self._buffers]
        state = State(self._anchor, self._offset, copies[: self._layers], copies[self._layers :])
        state.reserve(self._rows)
        return state


def build_times(pair: dflash_mlx.Pair, start: Start, repeats: int) -> dict[str, float]:
    """Milliseconds to build each stage of a greedy round, and the whole round."""
    target, drafter, chooser = pair.target, pair.drafter, Chooser(Sampling())
    n = drafter.block_size
    taken: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], object]) -> object:
        begun = time.perf_counter()
        made = work()
        taken.setdefault(name, []).append(1e3 * (time.perf_counter() - begun))
        return made

    for _ in range(repeats):
        s = start.state()
        logits = timed("draft", lambda s=s: drafter.draft(s.anchor, n, s.context))
        draft = timed("choose drafts", lambda x=logits, s=s: chooser.draft(x, s))
        block = mx.concatenate([s.anchor[:, None], draft.tokens], axis=1)
        logits, features = timed("verify", lambda b=block, s=s: target.forward(b, s.caches))
        verdict = timed("accept", lambda d=draft, x=logits, s=s: chooser.judge(d, x, s))
        timed("commit", lambda f=features, s=s: drafter.write_context(f, s.context))
        timed("advance", lambda v=verdict, s=s: s.advance(v.tokens, v.accepted))
        fresh = start.state()
        timed("whole round", lambda s=fresh: run_round(target, drafter, chooser, s, n))
    return {name: median(times) for name, times in taken.items()}


def submit(state: State, news: mx.array) -> None:
    """Queue a round as the generation does; see ``RoundQueue.submit``."""
    mx.async_eval(*state.arrays())
    mx.async_eval(state.anchor, state.offset, news)


def round_times(pair: dflash_mlx.Pair, start: Start, rounds: int, repeats: int) -> dict[str, float]:
    """Milliseconds a round: built in advance, queued one ahead, and one after the other."""
    chooser = Chooser(Sampling())

    def build(state: State) -> mx.array:
        verdict = run_round(pair.target, pair.drafter, chooser, state, pair.drafter.block_size)
        return mx.concatenate([verdict.tokens, verdict.accepted[:, None]], axis=1)

    def in_advance(state: State) -> float:
        news = [build(state) for _ in range(rounds)]
        begun = time.perf_counter()
        mx.eval(news, state.anchor, state.arrays())
        return begun

    def queued(state: State, ahead: int) -> float:
        begun = time.perf_counter()
        flight: list[mx.array] = []
        for _ in range(rounds):
            flight.append(build(state))
            submit(state, flight[-1])
            if len(flight) > ahead:
                flight.pop(0).tolist()
        mx.eval(flight, state.anchor, state.arrays())
        return begun

    ways = {
        "built in advance": in_advance,
        "queued one ahead": lambda state: queued(state, 1),
        "read before the next is built": lambda state: queued(state, 0),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            taken[name].append(1e3 * (-way(start.state()) + time.perf_counter()) / rounds)
    return {name: median(times) for name, times in taken.items()}


def slack_times(pair: dflash_mlx.Pair, start: Start, rounds: int, repeats: int) -> list[float]:
    """Milliseconds that the device still works on a round when the next one is built.

    The loop of the generation, but each round is waited for when the next has been built.
    """
    chooser, slack = Chooser(Sampling()), []
    for _ in range(repeats):
        state = start.state()
        for _ in range(rounds):
            verdict = run_round(pair.target, pair.drafter, chooser, state, pair.drafter.block_size)
            news = mx.concatenate([verdict.tokens, verdict.accepted[:, None]], axis=1)
            submit(state, news)
            run_round(pair.target, pair.drafter, chooser, copied(state), pair.drafter.block_size)
            built = time.perf_counter()
            mx.eval(news, state.anchor, state.arrays())
            slack.append(1e3 * (time.perf_counter() - built))
    return slack


def copied(state: State) -> State:
    """A state that a round may move without moving this one."""
    caches, context = (
        [LinearCache(c.keys, c.values, c.offset, c.start) for c in part]
        for part in (state.caches, state.context)
    )
    for mine, theirs in zip([*caches, *context], state.buffers, strict=True):
        mine.view = theirs.view
    return State(state.anchor, state.offset, caches, context)


def pieces(n: int, vocab: int) -> dict[str, Piece]:
    """The parts of a round without caches, with inputs of a block of ``n``."""
    logits = mx.random.normal((1, n, vocab))
    drafts = mx.random.randint(0, vocab, (1, n - 1))
    targets = mx.random.randint(0, vocab, (1, n))
    p = mx.softmax(logits, axis=-1)
    seeds, positions = row_seeds(0, 1), mx.arange(n)[None] + 100
    warm = Sampling(temp=0.8)
    narrow = Sampling(temp=0.8, top_p=0.9, top_k=50)
    shapes = {
        "accept, greedy or coupled": (accept_equal, [drafts, targets]),
        "accept, rejection": (accept_by_rejection, [drafts, p[:, 1:], p, seeds, positions]),
        "scores, temperature": (warm.scores, [logits]),
        "scores, top-p and top-k": (narrow.scores, [logits]),
        "gumbel noise": (lambda s, at: draw_gumbel(s, at, vocab), [seeds[:, 0], positions]),
    }
    mx.eval([inputs for _, inputs in shapes.values()])
    return shapes


def compare(piece: Piece, repeats: int) -> str:
    """Medians as they are and compiled, to build and in all, and how often compiled wins."""
    function, inputs = piece
    ways = {"plain": function, "compiled": mx.compile(function)}
    times: dict[str, list[float]] = {}
    for turn in range(repeats + 3):
        for name, way in ways.items() if turn % 2 else reversed(ways.items()):
            begun = time.perf_counter()
            result = way(*inputs)
            built = time.perf_counter()
            mx.eval(result)
            done = time.perf_counter()
            if turn >= 3:  # the first compile, the others warm up
                times.setdefault(f"{name} build", []).append(1e3 * (built - begun))
                times.setdefault(name, []).append(1e3 * (done - begun))
    wins = sum(b < a for a, b in zip(times["plain"], times["compiled"], strict=True))
    cells = [f"{median(times[f'{way} build']):.3f} | {median(times[way]):.3f}" for way in ways]
    return f"{' | '.join(cells)} | {wins / repeats:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=40)
    repeats = parser.parse_args().repeats
    pair, tokenizer = dflash_mlx.load()
    n, vocab = pair.drafter.block_size, pair.target.vocab_size
    start = Start(pair, prompts(tokenizer)["prose-1"], n * ROUNDS)
    print(f"{machine()}; block {n}, vocabulary {vocab}, medians of {repeats}\n")
    print("| stage | ms to build |\n|---|---|")
    for name, ms in build_times(pair, start, repeats).items():
        print(f"| {name} | {ms:.2f} |")
    print(f"\n| {ROUNDS} rounds | ms a round |\n|---|---|")
    for name, ms in round_times(pair, start, ROUNDS, max(repeats // 8, 1)).items():
        print(f"| {name} | {ms:.1f} |", flush=True)
    slack = sorted(slack_times(pair, start, ROUNDS, max(repeats // 8, 1)))
    print(
        f"\nWhen the next round was built, the device still worked for {median(slack):.1f} ms on "
        f"the last one (median of {len(slack)} rounds; lowest {slack[0]:.1f}, tenth percentile "
        f"{slack[len(slack) // 10]:.1f})."
    )
    print("\n| piece | plain: build ms | in all ms | compiled: build ms | in all ms | wins |")
    print("|---|---|---|---|---|---|")
    for name, piece in pieces(n, vocab).items():
        print(f"| {name} | {compare(piece, repeats)} |", flush=True)


if __name__ == "__main__":
    main()
