"""A disk that is full: a sentence, nothing half-written, and a training that can go on."""

import json

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from support.disk import ERRORS, FULL, files_up_to, listing
from support.folders import drafter_config
from support.training import random_text, tiny_learner

from dflash_mlx.drafter.config import DrafterConfig
from dflash_mlx.drafter.model import Drafter
from dflash_mlx.errors import UserError
from dflash_mlx.train.disk import Log, replacing
from dflash_mlx.train.feature_cache import FeatureCache
from dflash_mlx.train.forward import Parameters
from dflash_mlx.train.output import Output


def parameters(config: DrafterConfig, seed: int) -> Parameters:
    mx.random.seed(seed)
    return dict(tree_flatten(Drafter(config).parameters()))


@pytest.mark.parametrize("error", ERRORS)
def test_what_was_there_stays(error, tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(UserError, match=FULL) as raised, replacing(path) as partial:
        partial.write_text("ne")
        raise error
    assert str(path) in str(raised.value) and ".)" not in str(raised.value)
    assert listing(tmp_path) == {"a.json": b"old"}
    with replacing(path) as partial:
        partial.write_text("new")
    assert listing(tmp_path) == {"a.json": b"new"}


def test_the_drafter_before_stays(tmp_path):
    config = drafter_config()
    (tmp_path / "training").mkdir()
    log = Log(tmp_path / "training" / "log.jsonl")
    output = Output(tmp_path, config, mx.float32, {"target": "a target"})
    output.write(parameters(config, 1), log, 1, 1.5)
    before = listing(tmp_path)
    with files_up_to(10_000), pytest.raises(UserError, match=FULL):
        output.write(parameters(config, 2), log, 2, 2.5)
    assert listing(tmp_path) == before
    with files_up_to(100), pytest.raises(UserError, match=f"README.md {FULL}"):
        output.write_card(log)
    assert listing(tmp_path) == before


def test_the_card_tells_of_the_weights_that_are_there(tmp_path):
    config = drafter_config()
    (tmp_path / "training").mkdir()
    log = Log(tmp_path / "training" / "log.jsonl")
    output = Output(tmp_path, config, mx.float32, {"target": "a target", "planned_steps": 9})
    output.write(parameters(config, 1), log, 3, 1.5)
    log.add(step=9, tau=1.2)
    output.write_card(log)
    card = (tmp_path / "README.md").read_text()
    for row in ("| steps | 3 |", "| simulated tau | 1.5 |", "| planned steps | 9 |"):
        assert row in card
    source = json.loads((tmp_path / "config.json").read_text())["source"]
    assert (source["steps"], source["simulated_tau"], source["planned_steps"]) == (3, 1.5, 9)
    output.write(parameters(config, 2), log, 9, None)
    card = (tmp_path / "README.md").read_text()
    assert "| steps | 9 |" in card and "simulated tau" not in card


def test_features_are_whole_or_not_there(tmp_path):
    learner, text = tiny_learner(), random_text()
    with files_up_to(1000), pytest.raises(UserError, match=FULL):
        FeatureCache(learner, tmp_path, 10**9)(text)
    assert not listing(tmp_path)
    expected = learner.encode(mx.array(text.tokens)).features
    for _ in range(2):
        assert mx.array_equal(FeatureCache(learner, tmp_path, 10**9)(text).features, expected)


def test_a_log_goes_on(tmp_path):
    path = tmp_path / "log.jsonl"
    log = Log(path)
    with files_up_to(100), pytest.raises(UserError, match=f"log.jsonl {FULL}"):
        for step in range(1, 100):
            log.add(step=step, loss=1.0)
    assert path.stat().st_size == 100
    again = Log(path, 2)
    again.add(step=3, loss=2.0)
    assert [e["step"] for e in Log(path, 3).entries] == [1, 2, 3]
