"""Published configs and tensor plans, and what each of them is.

The configs were collected from public pages. Where a copy lacks keys that the real file must have,
``COMPLETED`` adds values in their place, so that the rest of it is tested.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent.parent / "fixtures" / "checkpoints"
PLANS = json.loads((FOLDER / "tensor_plans.json").read_text())
NAMES = sorted(path.stem for path in FOLDER.iterdir() if path.stem != "tensor_plans")


class Runs(NamedTuple):
    """A drafter that this version runs.

    ``layers`` has a letter a layer: f full or s sliding, in capitals if its block is causal.
    """

    format: str
    layers: str
    heads: tuple[int, int, int]
    block_size: int
    mask_token_id: int
    taps: tuple[int, ...]
    depth: int | None
    theta: float
    window: int | None = None


QWEN35_TAPS = (1, 5, 9, 13, 17, 21, 25, 29)
RUNS = {
    "z-lab__Qwen3-4B-DFlash-b16": Runs(
        "z-lab", "fffff", (32, 8, 128), 16, 151669, (1, 9, 17, 25, 33), 36, 1e6
    ),
    "z-lab__Qwen3-8B-DFlash-b16": Runs(
        "z-lab", "fffff", (32, 8, 128), 16, 151669, (1, 9, 17, 25, 33), 36, 1e6
    ),
    "z-lab__Qwen3-Coder-30B-A3B-DFlash": Runs(
        "z-lab", "ffffffff", (32, 4, 128), 16, 151669, (1, 12, 23, 34, 45), 48, 1e7
    ),
    "z-lab__Qwen3-Coder-Next-DFlash": Runs(
        "z-lab", "ffffffff", (32, 4, 128), 16, 151669, (3, 11, 23, 35, 43), 48, 1e7
    ),
    "z-lab__LLaMA3.1-8B-Instruct-DFlash-UltraChat": Runs(
        "z-lab", "fffff", (32, 8, 128), 10, 128002, (1, 8, 15, 22, 29), 32, 5e5
    ),
    "z-lab__gpt-oss-120b-DFlash": Runs(
        "z-lab", "ffffffff", (64, 8, 64), 10, 200000, (1, 9, 17, 25, 33), 36, 1.5e5
    ),
    "z-lab__Kimi-K2.6-DFlash": Runs(
        "z-lab", "ffffff", (64, 8, 128), 8, 163838, (1, 12, 24, 35, 47, 58), 61, 5e4
    ),
    "nvidia__Kimi-K2.7-Code-DFlash": Runs(
        "z-lab", "ffffff", (64, 8, 128), 8, 163838, (1, 12, 24, 35, 47, 58), 61, 5e4
    ),
    "z-lab__Qwen3.5-4B-DFlash@v1": Runs(
        "z-lab", "fffff", (32, 8, 128), 16, 248070, (1, 8, 15, 22, 29), 32, 1e7
    ),
    "z-lab__Qwen3.5-9B-DFlash@v1": Runs(
        "z-lab", "fffff", (32, 8, 128), 16, 248070, (1, 8, 15, 22, 29), 32, 1e7
    ),
    "z-lab__Qwen3.5-27B-DFlash@v1": Runs(
        "z-lab", "fffff", (32, 8, 128), 16, 248070, (1, 16, 31, 46, 61), 64, 1e7
    ),
    "z-lab__Qwen3.5-35B-A3B-DFlash@v1": Runs(
        "z-lab", "ffffffff", (32, 4, 128), 16, 248070, (1, 10, 19, 28, 37), 40, 1e7
    ),
    "z-lab__Qwen3.6-35B-A3B-DFlash@v1": Runs(
        "z-lab", "ffffffff", (32, 4, 128), 16, 248070, (1, 10, 19, 28, 37), 40, 1e7
    ),
    "z-lab__Qwen3.6-27B-DFlash": Runs(
        "z-lab", "SSSSf", (32, 8, 128), 16, 248070, (1, 16, 31, 46, 61), 64, 1e7, 2048
    ),
    "z-lab__gemma-4-31B-it-DFlash": Runs(
        "z-lab", "SSSSf", (64, 8, 128), 16, 4, (1, 12, 23, 35, 46, 57), 60, 1e6, 2048
    ),
    "z-lab__gemma4-12B-it-DFlash": Runs(
        "z-lab", "SSSSf", (32, 8, 128), 16, 4, (1, 10, 19, 27, 36, 45), 48, 1e6, 2048
    ),
    "z-lab__Alpamayo-1.5-10B-DFlash": Runs(
        "z-lab", "ff", (32, 8, 128), 8, 151936, (24, 30, 31, 32, 34), None, 1e6
    ),
    "z-lab__Qwen3.5-4B-DFlash@v2": Runs(
        "z-lab", "SSSSSf", (32, 8, 128), 16, 248077, QWEN35_TAPS, 32, 1e7, 4096
    ),
    "z-lab__Qwen3.5-27B-DFlash@v2": Runs(
        *("z-lab", "SSSSSf", (32, 8, 128), 16, 248077, (1, 10, 18, 27, 35, 44, 52, 61), 64),
        *(1e7, 4096),
    ),
    "z-lab__Qwen3.5-35B-A3B-DFlash@v2": Runs(
        *("z-lab", "SSSSSf", (32, 8, 128), 16, 248077, (1, 6, 11, 16, 22, 27, 32, 37), 40),
        *(1e7, 4096),
    ),
    "z-lab__Qwen3.6-35B-A3B-DFlash@v2": Runs(
        *("z-lab", "SSSSSf", (32, 8, 128), 16, 248077, (1, 6, 11, 16, 22, 27, 32, 37), 40),
        *(1e7, 4096),
    ),
    "z-lab__Qwen3.5-122B-A10B-DFlash": Runs(
        *("z-lab", "SSSSSf", (32, 8, 128), 16, 248077, (1, 7, 14, 20, 26, 32, 39, 45), 48),
        *(1e7, 4096),
    ),
    "z-lab__Qwen3.5-397B-A17B-DFlash": Runs(
        *("z-lab", "SSSSSf", (32, 8, 128), 16, 248077, (1, 9, 17, 25, 33, 41, 49, 57), 60),
        *(1e7, 4096),
    ),
    "z-lab__Qwen3.8-27B-DFlash2": Runs(
        "z-lab-dflash2", "sssss", (32, 8, 128), 8, 248070, (5, 19, 33, 47, 61), 64, 1e7, 2048
    ),
    "incoai__Qwen3.8-27B-DFlash2": Runs(
        "z-lab-dflash2", "sssss", (32, 8, 128), 8, 248070, (5, 19, 33, 47, 61), 64, 1e7, 2048
    ),
    "incoai__GLM-5.3-DFlash2": Runs(
        "z-lab-dflash2", "ssssss", (64, 8, 128), 8, 154856, (5, 19, 33, 47, 61, 75), 78, 1e4, 2048
    ),
    "z-lab__Muse-Glimmer-30B-DFlash2": Runs(
        "z-lab-dflash2", "sssss", (32, 8, 128), 16, 201818, (1, 13, 25, 37, 49), 52, 5e5, 2048
    ),
    "meta-models__Muse-Glimmer-30B-assistant": Runs(
        "muse-assistant", "sssss", (32, 8, 128), 16, 201818, (1, 13, 25, 37, 49), None, 5e5, 2049
    ),
    "nvidia__NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4-DFlash": Runs(
        "z-lab", "ffffff", (32, 2, 128), 8, 990, (1, 5, 19, 29, 41, 51), None, 1e4
    ),
    "JetSpec__jetspec-Qwen3.6-35B-A3B": Runs(
        "jetspec", "FFFFFFFF", (32, 4, 128), 16, 248070, (1, 10, 19, 28, 37), 40, 1e7
    ),
    "RedHatAI__Qwen3-8B-speculator.dflash": Runs(
        "speculators", "fffff", (32, 8, 128), 8, 151669, (1, 9, 17, 25, 33), None, 1e4
    ),
    "RedHatAI__gemma-4-31B-it-speculator.dflash": Runs(
        "speculators", "fffff", (32, 16, 256), 8, 4, (0, 16, 28, 46, 57), None, 1e4
    ),
    "poolside__Laguna-XS.2-speculator.dflash": Runs(
        "speculators", "fffff", (32, 32, 128), 8, 12, (0, 8, 16, 35, 38), None, 1e4
    ),
    "deepseek-ai__dflash_qwen3_4b_block7": Runs(
        "deepspec", "fffff", (32, 8, 128), 8, 151669, (1, 9, 17, 25, 33), 36, 1e6
    ),
    "deepseek-ai__dflash_qwen3_8b_block7": Runs(
        "deepspec", "fffff", (32, 8, 128), 8, 151669, (1, 9, 17, 25, 33), 36, 1e6
    ),
}

# What a copy lacks, in the order in which it is missed; the dotted part is the nested object.
COMPLETED: dict[str, dict[str, Any]] = {
    "z-lab__gpt-oss-120b-DFlash": {"rope_theta": 150000},
    "nvidia__Kimi-K2.7-Code-DFlash": {"rope_theta": 50000},
    "z-lab__LLaMA3.1-8B-Instruct-DFlash-UltraChat": {
        "mask_token_id": 128002,
        "rope_theta": 500000,
    },
    "z-lab__Qwen3-Coder-30B-A3B-DFlash": {"mask_token_id": 151669, "rope_theta": 1e7},
    "z-lab__Qwen3-Coder-Next-DFlash": {"mask_token_id": 151669, "rope_theta": 1e7},
    "z-lab__Alpamayo-1.5-10B-DFlash": {
        "mask_token_id": 151936,
        "rms_norm_eps": 1e-6,
        "vocab_size": 151936,
        "rope_theta": 1e6,
    },
    "nvidia__NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4-DFlash": {"block_size": 8},
    "JetSpec__jetspec-Qwen3.6-35B-A3B": {"rope_theta": 1e7},
    "deepseek-ai__dflash_qwen3_4b_block7": {"rms_norm_eps": 1e-6, "rope_theta": 1e6},
    "deepseek-ai__dflash_qwen3_8b_block7": {"rms_norm_eps": 1e-6, "rope_theta": 1e6},
    # Of these two, the sizes that are missing are known from a sibling.
    "RedHatAI__gemma-4-31B-it-speculator.dflash": {
        "aux_hidden_state_layer_ids": [1, 17, 29, 47, 58],
        "transformer_layer_config.num_hidden_layers": 5,
        "transformer_layer_config.num_key_value_heads": 16,
        "transformer_layer_config.intermediate_size": 21504,
    },
}

REFUSED = {
    "AngelSlim__Qwen3-8B-DFly-Block8": ("DFly", "a hidden correction"),
    "RadixArk__Qwen3.8-27B-DSpark": ("DSpark", "a Markov head"),
    "RedHatAI__gemma-4-31B-it-speculator.dspark": ("DSpark", "speculators_model_type 'dspark'"),
    "XiaomiMiMo__MiMo-V2.5-Pro-FP4-DFlash": (
        "z-lab",
        "partial rotary .*0.5.* second rotary base .* sinks .* value scale .*0.612",
    ),
    "deepseek-ai__dflash_gemma4_12b_block7": ("DeepSpec Gemma 4", "four norms"),
    "lightseekorg__kimi-k3-dflash2": ("z-lab", r"\(MLA\) \(attention_mode in dflash_config"),
    "modal-labs__Kimi-K3-DFlash": ("z-lab", "no block_size"),
    "nvidia__NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4-DSpark": ("DSpark", "a Markov head"),
    "poolside__Laguna-XS-2.1-DFlash": ("Laguna", "gated attention"),
}


def published(name: str) -> dict[str, Any]:
    """A config as it was collected."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def add(config: dict[str, Any], key: str, value: Any) -> None:
    """Put a value where ``COMPLETED`` says."""
    place, _, leaf = key.rpartition(".")
    (config[place] if place else config)[leaf] = value


def completed(name: str) -> dict[str, Any]:
    """A config with what its copy lacks."""
    config = published(name)
    for key, value in COMPLETED.get(name, {}).items():
        add(config, key, value)
    return config


def plan(name: str) -> dict[str, tuple[int, ...]]:
    """The shapes of a published checkpoint's tensors, by name."""
    entry = PLANS[name]
    shapes = dict(entry["top"])
    for i in range(entry["layers"]):
        shapes |= {f"layers.{i}.{key}": shape for key, shape in entry["layer"].items()}
    return {key: tuple(shape) for key, shape in shapes.items()}
