"""Published configs and tensor plans, and what each of them is.

The configs were collected from public pages. Where a copy lacks keys that the real file must have,
``COMPLETED`` adds values in their place, so that the rest of it is tested.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from dflash_mlx.drafter.config import DrafterConfig

FOLDER = Path(__file__).parent.parent / "fixtures" / "checkpoints"
PLANS = json.loads((FOLDER / "tensor_plans.json").read_text())
NAMES = sorted(path.stem for path in FOLDER.iterdir() if path.stem != "tensor_plans")


class Runs(NamedTuple):
    """A drafter that this version runs; ``published.txt`` explains the columns."""

    format: str
    layers: str
    heads: str
    block_size: int
    mask_token_id: int
    taps: str
    theta: float

    @classmethod
    def of(cls, format: str, config: DrafterConfig) -> "Runs":
        flags = zip(config.sliding, config.causal, strict=True)
        letters = ["fFsS"[2 * sliding + causal] for sliding, causal in flags]
        window = f":{config.sliding_window}" if config.sliding_window else ""
        heads = (config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        depth = f"/{config.num_target_layers}" if config.num_target_layers else ""
        return cls(
            format,
            "".join(letters) + window,
            "/".join(map(str, heads)),
            config.block_size,
            config.mask_token_id,
            ",".join(map(str, config.target_layer_ids)) + depth,
            config.rope.theta,
        )


def _read_runs() -> dict[str, Runs]:
    lines = (Path(__file__).parent / "published.txt").read_text().splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    return {
        name: Runs(format, layers, heads, int(size), int(mask), taps, float(theta))
        for name, format, layers, heads, size, mask, taps, theta in rows
    }


RUNS = _read_runs()

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
