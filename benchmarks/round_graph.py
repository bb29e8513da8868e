"""The graph of one round of a pair, stage by stage."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
from graph import Layouts, capture, kernels_chosen
from metal_costs import Cost, costs

from dflash_mlx import Pair
from dflash_mlx.cache.linear import GROWTH, LinearCache, round_up
from dflash_mlx.drafter.context import split_linear
from dflash_mlx.drafter.model import Drafter
from dflash_mlx.engine.choose import Chooser
from dflash_mlx.engine.round import run_round
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.engine.state import State
from dflash_mlx.target.target import Target

STAGES = ("draft", "verify", "accept", "commit")


class _WatchedTarget(Target):
    """A target that remembers what the last forward took and gave."""

    def __init__(self, target: Target):
        self.__dict__.update(vars(target))

    def forward(
        self, ids: mx.array, caches: Sequence[LinearCache]
    ) -> tuple[mx.array, mx.array | None]:
        logits, features = super().forward(ids, caches)
        self.block = ids
        self.gave = (logits, features)
        return logits, features


def round_costs(pair: Pair, block_size: int, context: int, fused: bool) -> dict[str, list[Cost]]:
    """What the primitives of one greedy round of one sequence cost, stage by stage.

    Args:
        pair: whose round it is.
        block_size: rows verified; 1 decodes plainly, with the drafter and its context left out.
        context: committed rows.
        fused: whether our own kernels run where they can.
    """
    drafter = pair.drafter if block_size > 1 else None
    example, shapes = _buffers(pair, drafter is not None, context, block_size)
    layers = len(pair.target.model.layers)
    chooser = Chooser(Sampling())
    counts: dict[str, int] = {}

    def one_round(anchor: mx.array, offset: mx.array, *parts: mx.array) -> list[mx.array]:
        start = mx.zeros_like(offset)
        buffers = [
            LinearCache(keys, values, offset, start if i >= layers else None)
            for i, (keys, values) in enumerate(zip(parts[::2], parts[1::2], strict=True))
        ]
        state = State(anchor, offset, buffers[:layers], buffers[layers:] if drafter else None)
        state.reserve(context + block_size)
        target = _WatchedTarget(pair.target)
        verdict = run_round(target, drafter, chooser, state, block_size)
        news = mx.concatenate([verdict.tokens, verdict.accepted[:, None]], axis=1)
        made = {
            "draft": [target.block] if drafter else [],
            # Without a drafter nobody asks for the features, so they are never computed.
            "verify": [*target.gave[: 2 if drafter else 1], *written(state.caches)],
            "accept": [news, state.anchor, state.offset],
            "commit": written(state.context or ()),
        }
        counts.update({stage: len(arrays) for stage, arrays in made.items()})
        return [x for arrays in made.values() for x in arrays]

    with kernels_chosen(fused):
        graph = capture(one_round, *example, *shapes)
    layouts = Layouts()
    stages = graph.stages(counts)
    return {stage: list(costs(stages[stage], layouts)) for stage in STAGES}


def commit_by_layer(pair: Pair, block_size: int, context: int) -> list[Cost]:
    """A commit written layer by layer, as a drafter without a stacked projection has it."""
    drafter = _drafter(pair)
    config = drafter.config
    rope_periods = drafter.layers[0].self_attn._heads._rope.periods
    projections = [split_linear(layer.self_attn.kv_proj, 2) for layer in drafter.layers]
    mx.eval([p.parameters() for two in projections for p in two])
    (_, offset), parts = _buffers(pair, True, context, block_size)
    layers = len(pair.target.model.layers)
    width = len(config.target_layer_ids) * config.target_hidden_size

    def heads(x: mx.array) -> mx.array:
        return x.reshape(1, block_size, -1, config.head_dim)

    def commit(features: mx.array, offset: mx.array, *parts: mx.array) -> list[mx.array]:
        c = drafter.hidden_norm(drafter.fc(features))
        caches = []
        for layer, (k_proj, v_proj), keys, values in zip(
            drafter.layers, projections, parts[::2], parts[1::2], strict=True
        ):
            cache = LinearCache(keys, values, offset)
            k = layer.self_attn.k_norm(heads(k_proj(c))).transpose(0, 2, 1, 3)
            k = mx.fast.rope(
                k,
                config.head_dim,
                traditional=False,
                base=None,
                scale=1.0,
                offset=offset,
                freqs=rope_periods,
            )
            cache.write(k, heads(v_proj(c)).transpose(0, 2, 1, 3))
            caches.append(cache)
        return written(caches)

    features = mx.zeros((1, block_size, width), drafter.dtype)
    graph = capture(commit, features, offset, *parts[2 * layers :])
    return list(costs(graph.primitives, Layouts()))


def written(caches: Sequence[LinearCache]) -> list[mx.array]:
    """The buffers of ``caches``."""
    return [x for cache in caches for x in (cache.keys, cache.values)]


def _drafter(pair: Pair) -> Drafter:
    return pair.drafter._drafter


def _buffers(
    pair: Pair, drafts: bool, context: int, block_size: int
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
    parts = [mx.zeros((*x.shape[:2], capacity, x.shape[3]), x.dtype) for x in written(caches)]
    return [mx.zeros(1, mx.int32), mx.full((1,), context, mx.int32)], parts


def eval_weights(pair: Pair) -> None:
    """Evaluate what loading left lazy, so that no graph begins with it."""
    models: list[nn.Module] = [pair.model]
    if pair.drafter is not None:
        models.append(_drafter(pair))
    mx.eval([m.parameters() for m in models])
