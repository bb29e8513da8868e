"""What a pair's stored costs are good for: this machine, these versions, these two models."""

from importlib.metadata import version

import mlx.core as mx
import mlx.nn as nn
import pytest
from support.pairs import tiny_drafter
from support.tiny import tiny_model

from dflash_mlx.engine import tuning
from dflash_mlx.loading.loader import make_pair


def path_of(target=None, drafter=None):
    with make_pair(target or tiny_model(), drafter or tiny_drafter()) as pair:
        return tuning.table_path(pair)


def test_the_same_pair_has_the_same_costs():
    assert path_of() == path_of()


@pytest.mark.parametrize("package", ["mlx", "mlx-lm", "dflash-mlx"])
def test_another_version_has_costs_of_its_own(package, monkeypatch):
    before = path_of()
    monkeypatch.setattr(tuning, "version", lambda name: "99" if name == package else version(name))
    assert path_of() != before


@pytest.mark.parametrize("part", ["device_name", "architecture"])
def test_another_device_has_costs_of_its_own(part, monkeypatch):
    before, device = path_of(), mx.device_info()
    monkeypatch.setattr(mx, "device_info", lambda: device | {part: "another"})
    assert path_of() != before


def test_another_number_of_cores_has_costs_of_its_own(monkeypatch):
    before = path_of()
    monkeypatch.setattr(tuning.os, "cpu_count", lambda: 999)
    assert path_of() != before


def test_a_quantized_target_or_drafter_has_costs_of_its_own():
    def quantized(module, bits):
        nn.quantize(module, 32, bits, class_predicate=can_be_quantized)
        return module

    paths = [path_of()]
    for bits in (4, 8):
        paths.append(path_of(target=quantized(tiny_model(), bits)))
        paths.append(path_of(drafter=quantized(tiny_drafter(), bits)))
    assert len(set(paths)) == len(paths)


def can_be_quantized(path, module):
    return hasattr(module, "to_quantized") and module.weight.shape[-1] % 32 == 0
