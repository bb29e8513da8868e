"""The table of known pairs: well-formed, and found by every name and size a target goes by."""

import itertools
import re

import pytest

from dflash_mlx.loading.known_pairs import base_name, known_pairs, pairs_of_config, pairs_of_target


def drafters(target: str) -> list[str]:
    return [pair.drafter for pair in pairs_of_target(target)]


@pytest.mark.parametrize(
    "target",
    [
        "Qwen/Qwen3-8B",
        "mlx-community/Qwen3-8B-4bit",
        "mlx-community/Qwen3-8B-8bit",
        "mlx-community/Qwen3-8B-bf16",
        "mlx-community/Qwen3-8B-mxfp4",
        "mlx-community/Qwen3-8B-4bit-DWQ-053125",
        "mlx-community/Qwen3-8B-4bit-DWQ-v2",
        "mlx-community/Qwen3-8B-3bit-gs32",
        "lmstudio-community/Qwen3-8B-MLX-4bit",
        "Qwen/Qwen3-8B-MLX-bf16",
        "Qwen/Qwen3-8B-FP8",
        "someone/qwen3-8b-q4_0",
        "Qwen3-8B",
    ],
)
def test_names_of_one_target(target: str) -> None:
    assert drafters(target)[0] == "z-lab/Qwen3-8B-DFlash-b16"


@pytest.mark.parametrize(
    ("target", "drafter"),
    [
        ("mlx-community/Meta-Llama-3.1-8B-Instruct-4bit", "LLaMA3.1-8B-Instruct-DFlash-UltraChat"),
        ("mlx-community/gpt-oss-20b-MXFP4-Q8", "gpt-oss-20b-DFlash"),
        ("mlx-community/Qwen3.5-35B-A3B-4bit", "Qwen3.5-35B-A3B-DFlash"),
        ("mlx-community/gemma-4-31b-it-4bit", "gemma-4-31B-it-DFlash"),
        ("mlx-community/gemma-4-31B-it-qat-4bit", "gemma-4-31B-it-DFlash"),
    ],
)
def test_names_of_other_targets(target: str, drafter: str) -> None:
    assert drafters(target)[0] == f"z-lab/{drafter}"


@pytest.mark.parametrize(
    "target",
    [
        "Qwen/Qwen3-8B-Base",
        "mlx-community/Qwen3-8B-Base-4bit",
        "mlx-community/Josiefied-Qwen3-8B-abliterated-4bit",
        "Qwen/Qwen3-4B-Instruct-2507",
        "Qwen/Qwen3-4B-Thinking-2507-4bit",
        "Qwen/Qwen3-1.7B",
        "Qwen/Qwen3-VL-8B",
        "z-lab/Qwen3-8B-DFlash-b16",
        "",
        "4bit",
    ],
)
def test_names_of_models_without_a_drafter(target: str) -> None:
    assert drafters(target) == []


def test_a_name_is_not_stripped_to_nothing() -> None:
    assert base_name("mlx-community/4bit") == "4bit"
    assert base_name("a/model-v2") == "model-v2"
    assert base_name("a/model-250101") == "model-250101"


def test_sizes_of_one_target_and_of_several() -> None:
    sizes = {"hidden_size": 4096, "num_hidden_layers": 36, "vocab_size": 151936}
    assert {target for pair in pairs_of_config(sizes) for target in pair.targets} == {
        "Qwen/Qwen3-8B"
    }
    assert pairs_of_config({"text_config": sizes}) == pairs_of_config(sizes)
    assert pairs_of_config(sizes | {"hidden_size": 4097}) == []
    assert pairs_of_config({"text_config": None} | sizes) == pairs_of_config(sizes)
    assert pairs_of_config({"text_config": 3}) == pairs_of_config({}) == []
    shared = {"hidden_size": 5120, "num_hidden_layers": 64, "vocab_size": 248320}
    assert len({pair.targets for pair in pairs_of_config(shared)}) > 1


def test_the_table_is_well_formed() -> None:
    for pair in known_pairs():
        for name in (*pair.targets, pair.drafter):
            assert re.fullmatch(r"[\w.-]+/[\w.-]+", name), name
        # A short hash would not be found on the Hub.
        assert pair.revision is None or re.fullmatch("[0-9a-f]{40}", pair.revision)
        assert pair.block_size is None or 2 <= pair.block_size <= 32
        assert pair.targets


def test_no_pair_is_listed_twice() -> None:
    keys = [(pair.targets, pair.drafter, pair.revision) for pair in known_pairs()]
    for one, other in itertools.combinations(keys, 2):
        assert one != other


def test_one_target_has_the_same_sizes_in_all_its_pairs() -> None:
    sizes: dict[str, tuple[int | None, ...]] = {}
    for pair in known_pairs():
        found = (pair.hidden_size, pair.num_layers, pair.vocab_size)
        assert sizes.setdefault(pair.targets[0], found) == found


@pytest.mark.parametrize(
    "drafter",
    ["z-lab/Qwen3.5-4B-DFlash", "z-lab/Qwen3.5-27B-DFlash", "z-lab/Qwen3.6-35B-A3B-DFlash"],
)
def test_repositories_that_changed_are_pinned(drafter: str) -> None:
    pairs = [pair for pair in known_pairs() if pair.drafter == drafter]
    assert pairs and all(pair.revision for pair in pairs)
