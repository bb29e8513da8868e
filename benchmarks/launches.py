"""What does a round launch on Metal? Counted in the graph itself, on any machine.

    python benchmarks/launches.py [--context 1024]

Takes the graph of one greedy round from MLX, for the embedded pair and for pairs as large as
Qwen3-4B without weights, with and without this project's kernels, and counts the launches stage by
stage. Nothing is run. The rules are in graph.py.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version

import mlx.core as mx
import mlx_lm
from graph import Layouts, capture, kernels_chosen, launches
from qwen3 import qwen3_pair

import dflash_mlx
from dflash_mlx.cache.context import LinearContext
from dflash_mlx.cache.linear import GROWTH, KVBuffer, LinearCache, round_up
from dflash_mlx.cache.protocol import TargetBuffer
from dflash_mlx.engine.choose import Chooser
from dflash_mlx.engine.round import run_round
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.engine.state import State
from dflash_mlx.loading.embedded import embedded_drafter, embedded_target
from dflash_mlx.loading.loader import load_drafter, make_pair
from dflash_mlx.target.target import Target

STAGES = ("draft", "verify", "accept", "commit")
NAMES = {
    "SmolLM2-135M 4-bit, drafter 8-bit (the embedded pair)": None,
    "Qwen3-4B bf16": ("4B", None),
    "Qwen3-4B 4-bit, drafter 4-bit": ("4B", 4),
}


class _WatchedTarget(Target):
    """A target that remembers what the last forward took and gave."""

    def __init__(self, target: Target):
        self.__dict__.update(vars(target))

    def forward(
        self, ids: mx.array, caches: Sequence[TargetBuffer]
    ) -> tuple[mx.array, mx.array | None]:
        self.block, self.gave = ids, super().forward(ids, caches)
        return self.gave


def round_launches(
    pair: dflash_mlx.Pair, block_size: int, context: int, fused: bool
) -> dict[str, Counter[str]]:
    """What one greedy round of one sequence launches, by stage and kind.

    Args:
        pair: whose round it is.
        block_size: of the block that is verified; 1 decodes plainly, with the drafter and its
            context left out.
        context: committed positions.
        fused: whether our own kernels run where they can.
    """
    drafter = pair.drafter if block_size > 1 else None
    example, shapes = _buffers(pair, drafter is not None, context, block_size)
    layers = len(pair.target.model.layers)
    counts: dict[str, int] = {}

    def one_round(anchor: mx.array, offset: mx.array, *parts: mx.array) -> list[mx.array]:
        kv, start = list(zip(parts[::2], parts[1::2], strict=True)), mx.zeros_like(offset)
        context_kv = [LinearContext(start) for _ in kv[layers:]] if drafter else None
        for buffer, arrays in zip(context_kv or (), kv[layers:], strict=True):
            buffer.offset, (buffer.keys, buffer.values) = offset, arrays
        caches = [LinearCache(offset, *arrays) for arrays in kv[:layers]]
        state = State(anchor, offset, caches, context_kv)
        state.reserve(context + block_size)
        target = _WatchedTarget(pair.target)
        verdict = run_round(target, drafter, Chooser(Sampling()), state, block_size)
        news = mx.concatenate([verdict.tokens, verdict.accepted[:, None]], axis=1)
        made = {
            "draft": [target.block] if drafter else [],
            # Without a drafter nobody asks for the features, so they are never computed.
            "verify": [*target.gave[: 2 if drafter else 1], *_written(state.caches)],
            "accept": [news, state.anchor, state.offset],
            "commit": _written(state.context or ()),
        }
        counts.update({stage: len(arrays) for stage, arrays in made.items()})
        return [x for arrays in made.values() for x in arrays]

    with kernels_chosen(fused):
        graph = capture(one_round, *example, *shapes)
    layouts: Layouts = {}
    return {name: launches(stage, layouts) for name, stage in graph.stages(counts).items()}


def _written(caches: Sequence[KVBuffer]) -> list[mx.array]:
    return [x for cache in caches for x in (cache.keys, cache.values)]


def _buffers(
    pair: dflash_mlx.Pair, drafts: bool, context: int, block_size: int
) -> tuple[list[mx.array], list[mx.array]]:
    """Anchor and offset, and keys and values of every cache layer, then of every context layer.

    Their shapes are read off a forward that is built and never run.
    """
    stock = pair.target.make_cache()
    _, features = pair.target.forward(mx.zeros((1, 1), mx.int32), stock)
    caches = [LinearCache.adopt([c]) for c in stock]
    if drafts:
        made = pair.drafter.make_context(mx.zeros(1, mx.int32))
        for cache in made:
            cache.reserve(1)
        pair.drafter.write_context(features, made)
        caches += made
    capacity = round_up(context + block_size, GROWTH)
    parts = [mx.zeros((*x.shape[:2], capacity, x.shape[3]), x.dtype) for x in _written(caches)]
    return [mx.zeros(1, mx.int32), mx.full((1,), context, mx.int32)], parts


def load(sizes: tuple[str, int | None] | None) -> dflash_mlx.Pair:
    """The embedded pair as it runs on a GPU, or one without weights."""
    if sizes is not None:
        return qwen3_pair(*sizes)
    model, _ = mlx_lm.load(str(embedded_target()))
    # Loading leaves it lazy; no graph should begin with its weights.
    mx.eval(model.parameters())
    return make_pair(model, load_drafter(embedded_drafter()))


def table(pair: dflash_mlx.Pair, block: int, context: int) -> str:
    """Launches of one pair's stages without and with our kernels, and of a plain step."""
    plain, ours = (round_launches(pair, block, context, fused) for fused in (False, True))
    step = sum(round_launches(pair, 1, context, True).values(), Counter())
    lines = ["| stage | plain MLX | our kernels | launched with them |", "|---|---|---|---|"]
    for stage in STAGES:
        kinds = ", ".join(f"{n} {kind}" for kind, n in ours[stage].most_common())
        lines.append(f"| {stage} | {plain[stage].total()} | {ours[stage].total()} | {kinds} |")
    totals = [sum(way.values(), Counter()).total() for way in (plain, ours)]
    lines.append(f"| **round** | {totals[0]} | {totals[1]} | |")
    lines.append(f"| one plain step | {step.total()} | {step.total()} | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--context", type=int, default=1024, help="committed positions")
    context = parser.parse_args().context
    print(
        f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')}; one sequence, greedy, {context} "
        "committed positions, the drafter's own block size."
    )
    for name, sizes in NAMES.items():
        with load(sizes) as pair:
            block = pair.drafter.block_size
            print(f"\n## {name}, block of {block}\n\n{table(pair, block, context)}", flush=True)


if __name__ == "__main__":
    main()
