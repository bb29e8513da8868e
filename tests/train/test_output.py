"""The drafter's folder: its card, the chart, and what stays on a full disk."""

import json

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from support.disk import FULL, files_up_to, listing
from support.folders import drafter_config

from dflash_mlx.drafter.model import Drafter
from dflash_mlx.errors import UserError
from dflash_mlx.train.disk import Log
from dflash_mlx.train.output import HEIGHT, WIDTH, Output, chart


@pytest.fixture
def output(tmp_path):
    (tmp_path / "training").mkdir()
    facts = {"target": "a target", "planned_steps": 9}
    return Output(tmp_path, drafter_config(), mx.float32, facts)


@pytest.fixture
def log(output):
    return Log(output.folder / "training" / "log.jsonl")


def parameters(seed):
    mx.random.seed(seed)
    return dict(tree_flatten(Drafter(drafter_config()).parameters()))


def test_the_drafter_before_stays(output, log):
    output.write(parameters(1), log, 1, 1.5)
    before = listing(output.folder)
    with files_up_to(10_000), pytest.raises(UserError, match=FULL):
        output.write(parameters(2), log, 2, 2.5)
    assert listing(output.folder) == before
    with files_up_to(100), pytest.raises(UserError, match=f"README.md {FULL}"):
        output.write_card(log)
    assert listing(output.folder) == before


def test_the_card_tells_of_the_weights_that_are_there(output, log):
    card, config = output.folder / "README.md", output.folder / "config.json"
    output.write(parameters(1), log, 3, 1.5)
    log.add(step=9, tau=1.2)
    output.write_card(log)
    for row in ("| steps | 3 |", "| simulated tau | 1.5 |", "| planned steps | 9 |"):
        assert row in card.read_text()
    source = json.loads(config.read_text())["source"]
    assert (source["steps"], source["simulated_tau"], source["planned_steps"]) == (3, 1.5, 9)
    output.write(parameters(2), log, 9, None)
    assert "| steps | 9 |" in card.read_text() and "simulated tau" not in card.read_text()


def test_chart():
    lines = chart("τ", [(0, 1.0), (10, 2.0), (20, 3.0)]).split("\n")
    assert lines[0] == "τ" and len(lines) == HEIGHT + 2
    assert lines[1] == "3 │  █" and lines[-2] == "1 │▁██" and lines[-1].endswith("step 0 to 20")
    many = chart("loss", [(i, float(i % 2)) for i in range(1000)]).split("\n")
    assert max(map(len, many)) <= WIDTH + 8
    assert "no values" in chart("x", [])


@pytest.mark.parametrize("value", [2.0, 0.0, -1e-300])
def test_chart_of_a_constant(value):
    lines = chart("x", [(1, value), (2, value)]).split("\n")
    # One label, where the bars are.
    assert lines[-2] == f"{value:.4g} │▁▁"
    assert {line.strip() for line in lines[1:-2]} == {"│"}
