"""What the tests of training share."""

from pathlib import Path

import mlx.core as mx
import numpy as np

from dflash_mlx.drafter.rope_config import RopeConfig
from dflash_mlx.target.target import Target
from dflash_mlx.train.blocks import Blocks, Sequence
from dflash_mlx.train.forward import Parameters
from dflash_mlx.train.learner import Encoding, Learner, Sums
from dflash_mlx.train.losses import Objective
from support.commands import write_rows
from support.folders import save_target
from support.pairs import tiny_drafter
from support.tiny import VOCAB, tiny_model
from support.variants import DFLASH2

# A drafter's changes, of every kind that can be trained.
DRAFTERS = {
    "full": {},
    "causal": {"causal_layers": (True, True)},
    "sliding by row": {
        "layer_types": ("sliding_attention", "full_attention"),
        "sliding_window": 12,
        "causal_layers": (True, False),
    },
    "sliding by anchor": {
        "layer_types": ("full_attention", "sliding_attention"),
        "sliding_window": 9,
        "window_rule": "anchor",
    },
    "mask embedding, bias and scales": {
        "has_mask_embedding": True,
        "attention_bias": True,
        "input_embedding_scale": 2.0,
        "output_multiplier": 0.5,
        "final_logit_softcapping": 5.0,
    },
    "DFlash 2": DFLASH2 | {"conv_kernel_size": 3},
    "two passes": {"draft_passes": 2, "draft_prefix": 3},
    "DFlash 2 in two passes": DFLASH2 | {"draft_passes": 2, "draft_prefix": 4},
    "no taps": {"target_layer_ids": ()},
    "adapter": {"has_hidden_dim_adapter": True},
    "YaRN, neighbours rotated": {
        "rope": RopeConfig(
            rope_type="yarn",
            theta=1e4,
            factor=4.0,
            attention_factor=1.5,
            traditional=True,
            original_max_position_embeddings=16,
            beta_fast=32.0,
            beta_slow=1.0,
        )
    },
}
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
    if drafter.config.has_mask_embedding:
        # Zero, as it is built, would be scaled to any length by the norms.
        drafter.mask_embedding = mx.array(numbers(5, 32))
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
