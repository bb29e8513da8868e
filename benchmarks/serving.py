"""What many requests at once cost, beside mlx-lm's BatchGenerator with the same requests.

    python benchmarks/serving.py [--max-tokens 96] [--repeats 5] [--requests 1,2,4,8]

First tokens a second: the default pair, and its drafter with a script that is right with a chosen
probability; both sides in turns, and the table has the median ratio of the repeats. Then how long
the first token of a short prompt takes behind a long one, and the gaps between the tokens of texts
that are being written while prompts join.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median, quantiles

import mlx.core as mx
from common import ScriptedDrafter, machine, prompts
from mlx_lm.generate import BatchGenerator
from mlx_lm.tokenizer_utils import TokenizerWrapper

import dflash_mlx
from dflash_mlx.cache.protocol import ContextBuffer
from dflash_mlx.drafter.proposal import Proposal
from dflash_mlx.engine.scheduler import Scheduler
from dflash_mlx.engine.session import Session
from dflash_mlx.generation.auto_size import batch_costs, sizes_for
from dflash_mlx.generation.options import Options
from dflash_mlx.generation.resolve import resolve

ACCEPTANCES = (0.0, 0.5, 0.8, 1.0)


class CompanyScript(ScriptedDrafter):
    """A scripted drafter whose rows are the sequences that decode together.

    Args:
        pair: of whose drafter all the work is done.
        truths: the whole text of each prompt.
        acceptance: how likely each draft is right.
    """

    def __init__(
        self,
        pair: dflash_mlx.Pair,
        truths: Mapping[tuple[int, ...], Sequence[int]],
        acceptance: float,
    ):
        super().__init__(pair.drafter, [0], acceptance, pair.target.vocab_size)
        key = mx.random.key(0)
        self._scripts = {}
        for prompt, truth in truths.items():
            right = mx.random.uniform(shape=(len(truth),), key=key) < acceptance
            text = mx.array(truth)
            self._scripts[prompt] = mx.where(
                right, text, (text + 1) % pair.target.vocab_size
            ).tolist()
        self.scheduler: Scheduler | None = None

    def draft(self, anchor: mx.array, block_size: int, context: list[ContextBuffer]) -> Proposal:
        rows = [
            self._scripts[tuple(s.request.prompt)] if s else [0]
            for s in self.scheduler.decoding.slots
        ]
        width = max(map(len, rows))
        self._script = mx.array([row + [0] * (width - len(row)) for row in rows])
        return super().draft(anchor, block_size, context)


def sessions(
    pair: dflash_mlx.Pair,
    tokenizer: TokenizerWrapper,
    requests: Sequence[Sequence[int]],
    n: int,
    **options: object,
) -> list[Session]:
    made = []
    for prompt in requests:
        request = resolve(pair, tokenizer, prompt, Options(max_tokens=n, **options))
        made.append(Session(pair, request, sizes_for(pair, request)))
    return made


def ours(
    pair: dflash_mlx.Pair, tokenizer: TokenizerWrapper, requests: Sequence[Sequence[int]], n: int
) -> tuple[float, float]:
    """Tokens a second after the prompts, and tokens a round."""
    loop = Scheduler(pair, len(requests), costs=partial(batch_costs, pair))
    if isinstance(pair.drafter, CompanyScript):
        pair.drafter.scheduler = loop
    everybody = sessions(pair, tokenizer, requests, n)
    for session in everybody:
        loop.add(session)
    emitted, begun = 0, None
    while not loop.idle:
        for session, tokens in loop.step():
            emitted += sum(1 for _ in tokens)
            if session.finished:
                loop.remove(session)
        if begun is None and not loop.waiting and loop.busy == len(requests):
            begun, before = time.perf_counter(), emitted
    rounds = sum(session.statistics.total for session in everybody)
    return (emitted - before) / (time.perf_counter() - begun), emitted / rounds


def theirs(pair: dflash_mlx.Pair, requests: Sequence[Sequence[int]], n: int) -> float:
    """Tokens a second after the prompts."""
    generator = BatchGenerator(pair.model)
    generator.insert([list(prompt) for prompt in requests], [n] * len(requests))
    emitted, begun, seen = 0, None, set()
    while responses := generator.next_generated():
        emitted += len(responses)
        seen |= {response.uid for response in responses}
        if begun is None and len(seen) == len(requests):
            begun, before = time.perf_counter(), emitted
    generator.close()
    return (emitted - before) / (time.perf_counter() - begun)


def throughput(
    pair: dflash_mlx.Pair,
    tokenizer: TokenizerWrapper,
    requests: Sequence[Sequence[int]],
    n: int,
    repeats: int,
) -> str:
    ratios, taus, speeds = [], [], []
    for repeat in range(repeats):
        order: list[Callable[[], object]] = [
            lambda: ours(pair, tokenizer, requests, n),
            lambda: theirs(pair, requests, n),
        ]
        if repeat % 2:
            stock, (speed, tau) = order[1](), order[0]()
        else:
            (speed, tau), stock = order[0](), order[1]()
        ratios.append(speed / stock)
        speeds.append((speed, stock))
        taus.append(tau)
    a, b = (median(column) for column in zip(*speeds, strict=True))
    return (
        f"| {len(requests)} | {median(taus):.2f} | {a:.1f} | {b:.1f} | {median(ratios):.2f} "
        f"[{min(ratios):.2f}, {max(ratios):.2f}] |"
    )


def waits(
    pair: dflash_mlx.Pair, tokenizer: TokenizerWrapper, long: list[int], short: list[int]
) -> None:
    """Time to the first token of a short prompt behind a long one, and gaps of those who decode."""
    loop = Scheduler(pair, 8, costs=partial(batch_costs, pair))
    running, behind, first = sessions(pair, tokenizer, [short, long, short[::-1]], 400)
    loop.add(running)
    last, gaps, begun, seen = None, [], None, {}
    while len(seen) < 2:
        for session, tokens in loop.step():
            count, now = sum(1 for _ in tokens), time.perf_counter()
            if session is running and count:
                if last is not None and begun is not None:
                    gaps.append(now - last)
                last = now
            elif count and session not in seen:
                seen[session] = now - begun
        if begun is None and running.clock.tokens > 20:
            begun = time.perf_counter()
            loop.add(behind)
            loop.step()
            loop.add(first)
    cuts = quantiles(gaps, n=20)
    print(
        f"\nA {len(short)}-token prompt behind a {len(long)}-token one: first token after "
        f"{seen[first]:.2f} s, the long one's after {seen[behind]:.2f} s. Gaps between the tokens "
        f"of a text that is being written meanwhile: p50 {1e3 * median(gaps):.0f} ms, p95 "
        f"{1e3 * cuts[-1]:.0f} ms, max {1e3 * max(gaps):.0f} ms."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--requests", default="1,2,4,8")
    args = parser.parse_args()
    n, counts = args.max_tokens, [int(count) for count in args.requests.split(",")]
    pair, tokenizer = dflash_mlx.load()
    texts = list(prompts(tokenizer).values())[: max(counts)]
    print(f"{machine()}; {n} tokens a request, median of {args.repeats} [min, max]")
    truths = {}
    for prompt in texts:
        plain = dflash_mlx.stream_generate(pair, tokenizer, prompt, n, draft=False)
        truths[tuple(prompt)] = prompt + [r.token for r in plain]
    for acceptance in (None, *ACCEPTANCES):
        name, used = "the default drafter", pair
        if acceptance is not None:
            name = f"drafts right at {acceptance}"
            drafter = CompanyScript(pair, truths, acceptance)
            used = dflash_mlx.Pair(pair.target, drafter, pair.context_length)
            used.costs = dflash_mlx.tune(pair)
        print(f"\n{name}\n\n| requests | τ | tokens/s | mlx-lm | ratio |\n|---|---|---|---|---|")
        for count in counts:
            print(throughput(used, tokenizer, texts[:count], n, args.repeats), flush=True)
    long = [token for prompt in prompts(tokenizer).values() for token in prompt] * 40
    waits(pair, tokenizer, long[:4000], texts[0][:20])


if __name__ == "__main__":
    main()
