"""The schedule, the optimizer's state, and checkpoints of it."""

import itertools
import math
from pathlib import Path

import mlx.core as mx
import pytest
from support.disk import ERRORS, FULL, listing
from support.training import numbers

from dflash_mlx.errors import UserError
from dflash_mlx.train.optimizer import (
    Advance,
    Updater,
    restore_checkpoint,
    save_checkpoint,
    warmup_cosine,
)


def start():
    return Updater({"a.b": mx.array(numbers(0, 4))}, warmup_cosine(0.1, 10, 0.2), 1.0, 0.01)


def step(updater, *places):
    for place in places:
        updater.update({"a.b": mx.array(numbers(place + 1, 4)) * 3})


def test_schedule():
    rate = warmup_cosine(2.0, 100, 0.04)
    values = [rate(mx.array(step)).item() for step in range(100)]
    assert values[:4] == pytest.approx([0.5, 1.0, 1.5, 2.0], rel=1e-2)
    for place in (10, 50, 80):
        expected = 1 + math.cos(math.pi * (place - 3) / 97)
        assert values[place] == pytest.approx(expected, rel=1e-5)
    assert 0 < values[-1] < 1e-3
    assert all(a >= b for a, b in itertools.pairwise(values[3:]))
    assert warmup_cosine(2.0, 1, 0.04)(mx.array(0)).item() == 2.0


def test_the_optimizer_follows_the_schedule():
    updater, rate = start(), warmup_cosine(0.1, 10, 0.2)
    for place in range(10):
        step(updater, place)
        assert updater.learning_rate == pytest.approx(rate(mx.array(place)).item(), rel=1e-5)
        assert updater.learning_rate > 0


def test_a_restored_optimizer_goes_on_exactly(tmp_path):
    whole, first, second = start(), start(), start()
    step(whole, *range(6))
    step(first, *range(3))
    save_checkpoint(tmp_path, first, Advance(3, best_tau=1.5))
    assert restore_checkpoint(tmp_path, second) == Advance(3, best_tau=1.5)
    step(second, *range(3, 6))
    assert mx.array_equal(second.parameters["a.b"], whole.parameters["a.b"])
    assert second.learning_rate == whole.learning_rate


def test_a_checkpoint_of_another_drafter(tmp_path):
    save_checkpoint(tmp_path, start(), Advance())
    with pytest.raises(UserError, match="other weights"):
        restore_checkpoint(tmp_path, Updater({"a.b": mx.zeros(5)}, 0.1))


@pytest.mark.parametrize("error", ERRORS)
def test_the_checkpoint_before_stays(error, tmp_path, monkeypatch):
    updater = start()
    step(updater, 0)
    save_checkpoint(tmp_path, updater, Advance(2))
    before = listing(tmp_path)

    def write(path, arrays):
        Path(path).write_bytes(b"cut")
        raise error

    monkeypatch.setattr(mx, "save_safetensors", write)
    with pytest.raises(UserError, match=FULL):
        save_checkpoint(tmp_path, updater, Advance(4))
    assert listing(tmp_path) == before


def test_clipping():
    clipped, plain = (Updater({"a.b": mx.zeros(4)}, 1.0, clip) for clip in (1.0, 1e9))
    gradient = mx.array([3.0, 0.0, 4.0, 0.0])
    assert clipped.update({"a.b": gradient}).item() == pytest.approx(5.0)
    plain.update({"a.b": gradient})
    ratio = clipped.state()["adam.a.b.m"] / mx.maximum(plain.state()["adam.a.b.m"], 1e-9)
    assert ratio[0].item() == pytest.approx(0.2, rel=1e-4)
