"""The schedule, and the optimizer's state."""

import itertools
import math

import mlx.core as mx
import pytest
from support.training import numbers

from dflash_mlx.train.optimizer import Updater, warmup_cosine


def test_schedule():
    rate = warmup_cosine(2.0, 100, 0.04)
    values = [rate(mx.array(step)).item() for step in range(100)]
    assert values[:4] == pytest.approx([0.5, 1.0, 1.5, 2.0], rel=1e-2)
    for step in (10, 50, 80):
        expected = 1 + math.cos(math.pi * (step - 3) / 97)
        assert values[step] == pytest.approx(expected, rel=1e-5)
    assert 0 < values[-1] < 1e-3
    assert all(a >= b for a, b in itertools.pairwise(values[3:]))


def test_the_optimizer_follows_the_schedule():
    updater, rate = start(), warmup_cosine(0.1, 10, 0.2)
    for number in range(10):
        step(updater, number)
        assert updater.learning_rate == pytest.approx(rate(mx.array(number)).item(), rel=1e-5)
        assert updater.learning_rate > 0


def test_one_step_schedule_is_not_zero():
    assert warmup_cosine(2.0, 1, 0.04)(mx.array(0)).item() == 2.0


def start() -> Updater:
    return Updater({"a.b": mx.array(numbers(0, 4))}, warmup_cosine(0.1, 10, 0.2), 1.0, 0.01)


def step(updater: Updater, number: int) -> None:
    updater.update({"a.b": mx.array(numbers(number + 1, 4)) * 3})


def test_a_restored_optimizer_goes_on_exactly(tmp_path):
    whole, first, second = start(), start(), start()
    for number in range(6):
        step(whole, number)
    for number in range(3):
        step(first, number)
    mx.save_safetensors(str(tmp_path / "state.safetensors"), first.state())
    second.restore(mx.load(str(tmp_path / "state.safetensors")))
    for number in range(3, 6):
        step(second, number)
    assert mx.array_equal(second.parameters["a.b"], whole.parameters["a.b"])
    assert second.learning_rate == whole.learning_rate


def test_clipping():
    clipped, plain = (Updater({"a.b": mx.zeros(4)}, 1.0, clip) for clip in (1.0, 1e9))
    gradient = mx.array([3.0, 0.0, 4.0, 0.0])
    assert clipped.update({"a.b": gradient}).item() == pytest.approx(5.0)
    plain.update({"a.b": gradient})
    ratio = clipped.state()["adam.a.b.m"] / mx.maximum(plain.state()["adam.a.b.m"], 1e-9)
    assert ratio[0].item() == pytest.approx(0.2, rel=1e-4)
