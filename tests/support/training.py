"""What the tests of training share."""

from pathlib import Path

import mlx.core as mx
import numpy as np

from dflash_mlx.target.target import Target
from dflash_mlx.train.blocks import Blocks, Sequence
from dflash_mlx.train.forward import Parameters
from dflash_mlx.train.learner import Encoding, Learner, Sums
from dflash_mlx.train.losses import Objective
from support.commands import write_rows
from support.folders import save_target
from support.pairs import tiny_drafter
from support.tiny import VOCAB, tiny_model

TEXTS = [{"text": f"text number {i}"} for i in range(6)]


def train_command(
    folder: Path, rows: list[dict[str, object]] = TEXTS, output: str = "new"
) -> list[object]:
    """The command that trains a drafter for a tiny target in ``folder`` on these rows."""
    if not (folder / "target").is_dir():
        save_target(folder / "target")
    data = write_rows(folder / "rows.jsonl", rows)
    return [
        *("train", "--model", folder / "target"),
        *("--data", data, "--output", folder / output),
    ]


def numbers(seed: int, *shape: int) -> np.ndarray:
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def spread(a: mx.array, b: mx.array) -> float:
    """The largest difference."""
    return mx.abs(a - b).max().item()


def random_text(prompt: int = 11, length: int = 40, seed: int = 0) -> Sequence:
    """Random tokens, supervised from ``prompt`` on."""
    tokens = np.random.default_rng(seed).integers(0, VOCAB, length).astype(np.int32)
    return Sequence(tokens, np.arange(length) >= prompt)


def tiny_learner(
    chunk_blocks: int = 64,
    objective: dict[str, object] | None = None,
    vocab_size: int = VOCAB,
    dtype: mx.Dtype = mx.float32,
    target_dtype: mx.Dtype = mx.float32,
    **changes: object,
) -> Learner:
    """A learner on a tiny llama, with the objective's fields and the drafter's changes."""
    drafter = tiny_drafter(seed=1, vocab_size=vocab_size, **changes)
    model = tiny_model("llama", seed=2, vocab_size=max(vocab_size, VOCAB))
    model.set_dtype(target_dtype)
    target = Target(model, drafter.config.target_layer_ids or (len(model.layers),))
    asked = Objective(**({"gamma": 4.0} | (objective or {})))
    return Learner(drafter, target, asked, chunk_blocks, dtype)


def encode(learner: Learner, text: Sequence) -> Encoding:
    """What the target says about a text."""
    return learner.encode(mx.array(text.tokens))


def logits_of(learner: Learner, encoding: Encoding, blocks: Blocks) -> mx.array:
    """Logits of blocks, by the parameters that the learner has."""
    return learner.logits(learner.hidden(blocks, learner.context(encoding.features)))


def sums_of(
    learner: Learner, parameters: Parameters, encoding: Encoding, blocks: Blocks, times: int = 1
) -> Sums:
    """The loss and gradients of some blocks, added once or more often."""
    sums = Sums.zero()
    for _ in range(times):
        learner.add(parameters, encoding, blocks, sums)
    return sums
