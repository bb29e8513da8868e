"""What is named as target and drafter: swapped, of another model, or a pair."""

import json
from pathlib import Path

import pytest
from support.folders import VOCAB, given, save_drafter, save_target

from dflash_mlx.cli.main import main
from dflash_mlx.measure.given_pair import Given, check_pairing


@pytest.fixture
def target(tmp_path: Path) -> Path:
    save_target(tmp_path / "target")
    return tmp_path / "target"


@pytest.fixture(params=["MLX", "z-lab"])
def drafter(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    save_drafter(tmp_path / "drafter", target_layer_ids=(0, 1))
    if request.param == "MLX":
        return tmp_path / "drafter"
    export = ["convert", "--export", "z-lab", "--mlx-path", tmp_path / "drafter"]
    assert main([*map(str, export), "--hf-path", str(tmp_path / "z-lab")]) == 0
    return tmp_path / "z-lab"


def check(**models: Path):
    return check_pairing(given(**models))


def change(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps(config))


def test_a_pair(target, drafter):
    found = check(target=target, drafter=drafter)
    assert found.status == "ok", found.text
    assert f"vocabulary of {VOCAB}" in found.text
    assert found.data == {"num_layers": 3, "hidden_size": 32, "vocab_size": VOCAB}
    assert check(target=target) is None and check(drafter=drafter) is None


def test_swapped(target, drafter):
    found = check(target=drafter, drafter=target)
    assert found.status == "fault" and "are swapped" in found.text
    assert f"Give --model {target} --draft-model {drafter}." in found.text


def test_a_drafter_as_the_target(drafter):
    for models in ({"target": drafter}, {"target": drafter, "drafter": drafter}):
        found = check(**models)
        assert found.status == "fault" and "holds a drafter, not a target" in found.text
        assert "give it with --draft-model" in found.text


def test_a_target_as_the_drafter(target):
    for models in ({"drafter": target}, {"target": target, "drafter": target}):
        found = check(**models)
        assert found.status == "fault" and "holds a target, not a drafter" in found.text
        assert "give it with --model" in found.text


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"vocab_size": VOCAB - 9}, f"{VOCAB} tokens"),
        ({"hidden_size": 64}, "hidden size is 64"),
        ({"num_hidden_layers": 2}, "3 layers, but this target has 2"),
    ],
)
def test_a_drafter_for_another_target(other, words, target, drafter):
    change(target, **other)
    found = check(target=target, drafter=drafter)
    assert found.status == "fault" and "do not belong together" in found.text
    assert words in found.text


def test_sizes_that_the_config_does_not_name(target, drafter):
    change(target, hidden_size=None)
    found = check(target=target, drafter=drafter)
    assert found.status == "ok" and "when they are loaded" in found.text


def test_a_target_that_keeps_its_drafter_in_a_subfolder(target, drafter):
    drafter.rename(target / "dflash")
    assert check(target=target, drafter=target).status == "ok"


def test_a_config_that_cannot_be_read(target, drafter):
    (drafter / "config.json").write_text("{")
    found = check(target=target, drafter=drafter)
    assert found.status == "fault" and "config.json" in found.text


def test_a_drafter_that_does_not_run(target, drafter):
    change(drafter, architectures=["DSparkModel"], model_type="dspark", block_size=-1)
    found = check(target=target, drafter=drafter)
    assert found.status == "fault" and "dspark" in found.text


def test_what_is_not_here(target):
    absent = {"drafter": Given("org/model", None)}
    assert check_pairing(given(target=target) | absent) is None
