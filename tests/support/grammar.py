"""A tiny target that has learned a language: letters in one of several orders, told by a digit."""

import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.optimizers import AdamW
from mlx.utils import tree_map
from mlx_lm.utils import save_model

from support.folders import VOCAB
from support.tiny import SIZES, tiny_model
from support.tokenizer import byte_tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ORDERS = 3
LENGTH = 40
CHANGES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "num_hidden_layers": 2}


def orders() -> list[str]:
    """The letters in ``ORDERS`` random orders; text goes round and round in one of them."""
    random = np.random.default_rng(0)
    return ["".join(random.permutation(list(LETTERS))) for _ in range(ORDERS)]


def text(order: int, start: int, length: int = LENGTH) -> str:
    """The digit of an order, and its letters from place ``start`` on."""
    letters = orders()[order]
    return str(order) + "".join(letters[(start + i) % len(letters)] for i in range(length))


def prompts() -> list[str]:
    """A digit and a letter, of every place in every order."""
    return [text(o, s, 1) for o in range(ORDERS) for s in range(len(LETTERS))]


def grammar_model(steps: int = 200) -> nn.Module:
    """A llama of two layers, trained until its greedy text is the language's."""
    model = tiny_model("llama", vocab_size=VOCAB, **CHANGES)
    model.update(tree_map(lambda w: w * 0.3 if w.ndim > 1 else w, model.parameters()))
    random, adam = np.random.default_rng(1), AdamW(3e-3)

    def loss(model: nn.Module, ids: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(ids[:, :-1])[:, 1:], ids[:, 2:]).mean()

    step = nn.value_and_grad(model, loss)
    model.train()
    for _ in range(steps):
        rows = [text(*map(int, random.integers((ORDERS, len(LETTERS))))) for _ in range(16)]
        _, gradients = step(model, mx.array([list(row.encode()) for row in rows]))
        adam.update(model, gradients)
        mx.eval(model.parameters(), adam.state)
    return model.eval()


def save_grammar_target(folder: Path) -> None:
    """The model with a byte tokenizer, in mlx-lm's format."""
    save_model(folder, grammar_model())
    config = SIZES | {"model_type": "llama", "vocab_size": VOCAB} | CHANGES
    (folder / "config.json").write_text(json.dumps(config))
    byte_tokenizer().save_pretrained(folder)
