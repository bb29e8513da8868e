"""A round of a pair, stage by stage and whole, on whatever device is the default."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import mlx.core as mx
import mlx_lm
from common import prompts
from graph import kernels_chosen
from host import Start

import dflash_mlx
from dflash_mlx.engine.choose import Chooser
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.kernels.metal import on_metal

PROMPTS = 3


def stages(pair: dflash_mlx.Pair, prompt: list[int], times: int = 15) -> dict[str, float]:
    """Milliseconds of each stage of a round, each built, run and waited for alone."""
    target, drafter, chooser = pair.target, pair.drafter, Chooser(Sampling())
    n = drafter.block_size
    state = Start(pair, prompt, n).state()
    drafts = chooser.draft(drafter.draft(state.anchor, n, state.context), state)
    block = mx.concatenate([state.anchor[:, None], drafts.tokens], axis=1)
    logits, features = target.forward(block, state.caches)
    mx.eval(block, logits, features, state.anchor, state.arrays())

    def draft() -> list[mx.array]:
        return [chooser.draft(drafter.draft(state.anchor, n, state.context), state).tokens]

    def verify() -> list[mx.array]:
        logits, features = target.forward(block, state.caches)
        return [mx.argmax(logits, axis=-1), features]

    def accept() -> list[mx.array]:
        verdict = chooser.judge(drafts, logits, state)
        return [verdict.tokens, verdict.accepted]

    def commit() -> list[mx.array]:
        drafter.write_context(features, state.context)
        return [x for c in state.context for x in (c.keys, c.values)]

    def plain_step() -> list[mx.array]:
        return [mx.argmax(target.forward(block[:, :1], state.caches)[0], axis=-1)]

    works = (draft, verify, accept, commit, plain_step)
    return {work.__name__: _milliseconds(work, times) for work in works}


def rounds(
    pair: dflash_mlx.Pair, tokenizer: Any, tokens: int = 128, times: int = 15
) -> dict[str, Any]:
    """Stages with and without our kernels, and whole generations beside plain decoding."""
    chosen = dict(list(prompts(tokenizer).items())[:PROMPTS])
    prompt = next(iter(chosen.values()))
    found: dict[str, Any] = {
        "block_size": pair.drafter.block_size,
        "kernels": pair.drafter.kernels(pair.drafter.block_size),
        "stages_ms": {"as chosen": stages(pair, prompt, times)},
        "generations": [],
    }
    if on_metal():
        with kernels_chosen(False):
            found["stages_ms"]["plain MLX"] = stages(pair, prompt, times)
    block = {"block_size": pair.drafter.block_size}
    for name, prompt in chosen.items():
        *_, ours = dflash_mlx.stream_generate(pair, tokenizer, prompt, tokens, **block)
        *_, plain = dflash_mlx.stream_generate(pair, tokenizer, prompt, tokens, draft=False)
        *_, theirs = mlx_lm.stream_generate(pair.model, tokenizer, prompt, tokens)
        found["generations"].append(
            {
                "prompt": name,
                "tokens": ours.generation_tokens,
                "tau": ours.tau,
                "drafting_tps": ours.generation_tps,
                "plain_tps": plain.generation_tps,
                "mlx_lm_tps": theirs.generation_tps,
            }
        )
    return found


def _milliseconds(work: Callable[[], list[mx.array]], times: int) -> float:
    taken = []
    for _ in range(times + 2):
        begun = time.perf_counter()
        mx.eval(work())
        taken.append(1e3 * (time.perf_counter() - begun))
    return median(taken[2:])
