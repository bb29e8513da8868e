"""Where a training step's time goes: target, drafter, head loss, and the matrix products in them.

    python benchmarks/train.py [--model … --draft-model … | --size 1.7B] [--tokens N] [--anchors N]

Without a model the embedded pair is measured, or with ``--size`` a target of that size with random
weights and a new drafter for it. Each part is timed by itself on one sequence of random tokens, and
a step is one sequence's share of a batch. The products' time is their operations, counted from the
shapes, at the fastest rate that a large product of the same dtype reaches on this machine. Beside
it stands what MLX takes for the forward's softmax and SwiGLU alone, which on a CPU are computed one
number at a time.
"""

import argparse
import time
from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from common import machine
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model
from qwen3 import RECIPE, random_qwen3

from dflash_mlx import load
from dflash_mlx.convert import convert_cached
from dflash_mlx.drafter.model import Drafter
from dflash_mlx.loading.embedded import embedded_drafter
from dflash_mlx.loading.loader import load_drafter
from dflash_mlx.target.target import Target
from dflash_mlx.train.blocks import Blocks, Sequence, sample_blocks
from dflash_mlx.train.design import design, new_drafter
from dflash_mlx.train.learner import Encoding, Learner, Sums
from dflash_mlx.train.losses import Objective, default_gamma
from dflash_mlx.train.optimizer import Updater
from dflash_mlx.train.recipe import Recipe
from dflash_mlx.train.training import forward_dtype

# The trainer's default: sequences that share an update of the weights.
BATCH_SIZE = Recipe.batch_size


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model")
    parser.add_argument("--draft-model")
    parser.add_argument("--size", choices=("1.7B", "4B"), help="of Qwen3, with random weights")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--anchors", type=int, default=64)
    parser.add_argument("--chunk-blocks", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()

    learner = make_learner(args)
    random = np.random.default_rng(0)
    tokens = random.integers(0, learner.drafter.config.vocab_size, args.tokens).astype(np.int32)
    text = Sequence(tokens, np.ones(args.tokens, bool))
    blocks = sample_blocks(text, learner.drafter.config.block_size, args.anchors, random)
    parts = measure(learner, text, blocks, args.repeats)
    products = operations(learner, args.tokens, blocks)
    pointwise = pointwise_seconds(learner, args.tokens, blocks, args.repeats)
    rate = product_rate(learner.dtype, args.repeats)
    print(f"{machine()}, {learner.dtype}, {args.tokens} tokens, {len(blocks)} blocks of", end=" ")
    print(f"{learner.drafter.config.block_size}, {rate / 1e9:.0f} billion operations a second\n")
    print("| part | ms | products alone | ratio | softmax and SwiGLU alone | ratio to both |")
    print("|---|---|---|---|---|---|")
    for sums in (products, pointwise):
        sums["step"] = sum(sums.values())
    for name, seconds in parts.items():
        row = f"| {name} | {seconds * 1e3:.1f} "
        if name in products:
            best, extra = products[name] / rate, pointwise[name]
            row += f"| {best * 1e3:.1f} | {seconds / best:.2f} "
            row += f"| {extra * 1e3:.1f} | {seconds / (best + extra):.2f} |"
        else:
            row += "| - | - | - | - |"
        print(row)
    print(f"\n{args.tokens / parts['step']:.0f} tokens of text a second; peak memory", end=" ")
    print(f"{mx.get_peak_memory() / 1e9:.2f} GB")


def make_learner(args: argparse.Namespace) -> Learner:
    """The pair's drafter as the trainer has it."""
    target, drafter = random_pair(args.size) if args.size else real_pair(args)
    dtype = forward_dtype(target.dtype)
    objective = Objective(default_gamma(drafter.config.block_size))
    return Learner(drafter, target, objective, args.chunk_blocks, dtype)


def real_pair(args: argparse.Namespace) -> tuple[Target, Drafter]:
    """A target and its drafter, dequantized."""
    pair, _ = load(args.model, False)
    path = convert_cached(args.draft_model) if args.draft_model else embedded_drafter()
    drafter = dequantize_model(load_drafter(path))
    return Target(pair.model, drafter.config.target_layer_ids), drafter


def random_pair(size: str) -> tuple[Target, Drafter]:
    """A target of a size and a new drafter for it, as ``dflash-mlx train`` designs one."""
    model = random_qwen3(size)
    config = design(Target(model), None, None, RECIPE)
    target = Target(model, config.target_layer_ids)
    return target, new_drafter(config, target, seed=0)


def measure(learner: Learner, text: Sequence, blocks: Blocks, repeats: int) -> dict[str, float]:
    """Seconds of the step and of its parts."""
    parameters = learner.parameters()
    updater = Updater(parameters, 1e-4)
    encoding = learner.encode(mx.array(text.tokens))
    mx.eval(encoding.features, parameters)
    gradients = {k: mx.zeros_like(v) for k, v in parameters.items()}

    def target() -> None:
        mx.eval(learner.encode(mx.array(text.tokens)).features)

    def learn() -> None:
        learner.add(parameters, encoding, blocks, Sums.zero())

    seconds = {
        "target forward": best_of(target, repeats),
        "drafter": best_of(lambda: without_head(learner, parameters, encoding, blocks), repeats),
        "learn": best_of(learn, repeats),
        "update": best_of(lambda: updater.update(gradients), repeats),
    }
    learned = seconds.pop("learn")
    seconds["head loss"] = learned - seconds["drafter"]
    seconds["update"] /= BATCH_SIZE
    seconds["step"] = seconds["target forward"] + learned + seconds["update"]
    return seconds


def without_head(
    learner: Learner, parameters: dict[str, mx.array], encoding: Encoding, blocks: Blocks
) -> None:
    """Forward and backward through the drafter with a loss that costs nothing."""
    logits, losses = learner.logits, learner.losses
    learner.logits = lambda hidden: hidden
    learner.losses = lambda hidden, logits, blocks, teacher: (
        hidden.astype(mx.float32).mean(axis=-1),
        mx.ones(hidden.shape[:2]),
    )
    learner.add(parameters, encoding, blocks, Sums.zero())
    learner.logits, learner.losses = logits, losses


def operations(learner: Learner, tokens: int, blocks: Blocks) -> dict[str, float]:
    """Multiplications and additions of the matrix products, by part.

    A product costs as much again for each of its two gradients; the head's weights and the target
    have none. The context K/V are computed twice, the second time for their gradient.
    """
    config, target = learner.drafter.config, learner.target
    sizes = {k: v.size for k, v in tree_flatten(learner.drafter.parameters()) if v.ndim == 2}
    context = sum(
        size for k, size in sizes.items() if k.startswith("fc.") or ".k_proj" in k or ".v_proj" in k
    )
    near = sum(size for k, size in sizes.items() if not k.startswith("fc."))
    rows, width = blocks.tokens.size, config.num_attention_heads * config.head_dim
    keys = float(np.mean(blocks.anchors)) + config.block_size
    attention = 4 * rows * keys * width * config.num_hidden_layers
    drafter = 6 * rows * near + 3 * attention + 8 * tokens * context
    table = target.vocab_size * target.hidden_size
    drafted = rows - len(blocks)
    inner = sum(dense_size(m) for layer in target.layers for m in layer.modules())
    return {
        "target forward": 2.0 * tokens * inner,
        "drafter": float(drafter),
        "head loss": 4.0 * drafted * table,
    }


def pointwise_seconds(
    learner: Learner, tokens: int, blocks: Blocks, repeats: int
) -> dict[str, float]:
    """Seconds of the forward's softmax and SwiGLU, by part, on arrays of the same shapes."""
    config, target = learner.drafter.config, learner.target
    rows, keys = blocks.tokens.size, round(float(np.mean(blocks.anchors))) + config.block_size

    def softmax(*shape: int) -> float:
        x = mx.random.normal(shape)
        mx.eval(x)
        return best_of(lambda: mx.eval(mx.softmax(x, axis=-1)), repeats)

    def swiglu(*shape: int) -> float:
        x = mx.random.normal(shape)
        mx.eval(x)
        return best_of(lambda: mx.eval(nn.silu(x) * x), repeats)

    theirs = softmax(target.args.num_attention_heads, tokens, tokens)
    theirs += swiglu(tokens, target.args.intermediate_size)
    ours = softmax(config.num_attention_heads, rows, keys) + swiglu(rows, config.intermediate_size)
    return {
        "target forward": theirs * target.num_layers,
        "drafter": ours * config.num_hidden_layers,
        "head loss": softmax(rows - len(blocks), target.vocab_size),
    }


def dense_size(module: nn.Module) -> int:
    """Weights of a linear layer, 0 of any other module; those of experts are not counted."""
    if isinstance(module, nn.QuantizedLinear):
        return module.weight.size * 32 // module.bits
    return module.weight.size if isinstance(module, nn.Linear) else 0


def product_rate(dtype: mx.Dtype, repeats: int) -> float:
    """Operations a second of a large matrix product."""
    n = 1024
    a, b = (mx.random.normal((n, n)).astype(dtype) for _ in range(2))
    mx.eval(a, b)
    return 2.0 * n**3 / best_of(lambda: mx.eval(a @ b), repeats)


def best_of(work: Callable[[], object], repeats: int) -> float:
    """The shortest of some timings, after one that does not count."""
    work()
    timings = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        timings.append(time.perf_counter() - begun)
    return min(timings)


if __name__ == "__main__":
    main()
