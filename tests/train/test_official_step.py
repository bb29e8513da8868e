"""One training step against the official PyTorch model, whose numbers are stored.

``tests/fixtures/training/make_fixture.py`` made and describes them.
"""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from support.training import spread, sums_of

from dflash_mlx.convert import convert
from dflash_mlx.loading.loader import load_drafter
from dflash_mlx.train.blocks import Blocks, Sequence, make_blocks
from dflash_mlx.train.learner import Encoding, Learner
from dflash_mlx.train.losses import Objective
from dflash_mlx.train.optimizer import Updater

FIXTURES = Path(__file__).parent.parent / "fixtures"
TOLERANCE = 1e-4


class Tables:
    """A target that is only its embedding table and its head."""

    dtype = mx.float32

    def __init__(self, embedding: mx.array, head: mx.array):
        self._embedding, self._head = embedding, head
        self.vocab_size = len(head)

    def embed(self, ids: mx.array) -> mx.array:
        return self._embedding[ids]

    def head_raw(self, hidden: mx.array) -> mx.array:
        return hidden @ self._head.T


@pytest.fixture
def official() -> dict[str, mx.array]:
    return mx.load(str(FIXTURES / "training" / "step.safetensors"))


@pytest.fixture(params=[64, 3], ids=["at once", "in chunks of 3"])
def learner(request, official, tmp_path) -> Learner:
    drafter = load_drafter(convert(FIXTURES / "drafter" / "bias", tmp_path / "drafter"))
    target = Tables(official["embedding"], official["head"])
    return Learner(drafter, target, Objective(gamma=official["gamma"].item()), request.param)


@pytest.fixture
def blocks(official) -> Blocks:
    text = Sequence(np.array(official["tokens"]), np.array(official["supervised"]))
    return make_blocks(text, np.array(official["anchors"]), 8)


def test_loss_gradients_and_the_step(learner, official, blocks):
    parameters = learner.parameters()
    sums = sums_of(learner, parameters, Encoding(official["features"], None), blocks)
    loss, weight, *_ = sums.scalars
    assert spread(loss / weight, official["loss"]) <= TOLERANCE

    gradients = {name: g / weight for name, g in sums.gradients.items()}
    theirs = {k[5:]: g for k, g in official.items() if k.startswith("grad.")}
    assert gradients.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert spread(gradients[name], gradient) <= TOLERANCE, name

    updater = Updater(parameters, official["learning_rate"].item(), official["clip"].item())
    assert updater.update(gradients).item() == pytest.approx(official["norm"].item(), rel=1e-4)
    for name, value in updater.parameters.items():
        # Adam's first step has the gradient's sign alone, which rounding decides near zero.
        clear = mx.abs(theirs[name]) > 1e-3
        assert spread(value * clear, official[f"after.{name}"] * clear) <= TOLERANCE, name
