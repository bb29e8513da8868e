"""A tiny checkpoint of every format: its config, and its tensors by the format's own names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from tiny_checkpoint import (
    Tensors,
    parsed_config,
    random_tensors,
    tiny_config,
    without_nones,
    write_checkpoint,
)

from dflash_mlx.drafter.config import DrafterConfig

LAYER = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "vocab_size": 64,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 6,
    "use_sliding_window": True,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "model_type": "qwen3",
}
ALL_SLIDING = {"layer_types": ["sliding_attention"] * 3}
DFLASH2 = {
    "conv_kernel_size": 2,
    "conv_group_size": 16,
    "selector_rank": 8,
    "selector_top_k": 4,
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}


def speculators_config(**changes: Any) -> dict[str, Any]:
    """A reduced vocabulary; a change to None removes the key, the layer's config is merged."""
    layer = changes.pop("transformer_layer_config", {})
    merged = layer if not isinstance(layer, dict) else without_nones(LAYER | layer)
    return without_nones(
        {
            "architectures": ["DFlashSpeculator"],
            "aux_hidden_state_layer_ids": [2, 6, 10],
            "block_size": 8,
            "draft_vocab_size": 24,
            "mask_token_id": 63,
            "speculators_model_type": "dflash",
            "speculators_version": "0.9.0",
            "speculators_config": {
                "algorithm": changes.get("speculators_model_type", "dflash"),
                "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
                "verifier": {
                    "name_or_path": "Qwen/Qwen3-8B",
                    "architectures": ["Qwen3ForCausalLM"],
                },
            },
            "transformer_layer_config": merged,
        }
        | changes
    )


def open_spec_config(**changes: Any) -> dict[str, Any]:
    """The same drafter; the changes are to ``speculative_config``."""
    settings = {
        "method": "dflash",
        "speculative_tokens": 7,
        "verifier": "Qwen/Qwen3-8B",
        "target_layer_ids": [2, 6, 10],
        "target_layer_start_idx": 1,
        "draft_vocab_size": 24,
        "sample_from_anchor": False,
        "mask_token_id": 63,
        "sliding_window_non_causal": False,
        "training_framework": "vllm-project/speculators",
    }
    return LAYER | {
        "architectures": ["DflashDraftModel"],
        "open_spec_config_version": "0.0.0",
        "speculative_config": without_nones(settings | changes),
        "speculators_metadata": {"verifier_architectures": ["Qwen3ForCausalLM"]},
        "target_hidden_size": None,
    }


def zlab_v2_config() -> dict[str, Any]:
    """Everything in ``dflash_config``, no causality flag: sliding layers are causal."""
    return LAYER | {
        "architectures": ["DFlashDraftModel"],
        "attention_bias": False,
        "dflash_config": {"block_size": 8, "mask_token_id": 63, "target_layer_ids": [1, 5, 9]},
        "num_target_layers": 12,
    }


def dflash2_config() -> dict[str, Any]:
    settings = {"final_logit_softcapping": 20.0, "output_multiplier": 0.2}
    config = zlab_v2_config() | ALL_SLIDING
    config["dflash_config"] |= DFLASH2 | settings
    return config | {"architectures": ["DFlash2DraftModel"], "is_causal": False}


def modelopt_config() -> dict[str, Any]:
    """``use_swa`` beside full layer types, taps in both bases, YaRN, an embedding table."""
    return tiny_config(
        block_size=4,
        dflash_config={"use_swa": True, "swa_window_size": 8, "causal": False},
        eagle_aux_hidden_state_layer_ids=[2, 6, 10],
        num_aux_layers=3,
        pard_token=63,
        has_embed_tokens=True,
        has_lm_head=False,
        rope_parameters=YARN | {"rope_theta": 10000},
    )


def jetspec_config() -> dict[str, Any]:
    """Causal, with taps that are wider than the drafter."""
    return tiny_config(dflash_config={"causal_head": True, "target_hidden_size": 96})


def muse_config() -> dict[str, Any]:
    return (
        LAYER
        | ALL_SLIDING
        | {
            "architectures": ["MuseGlimmerAssistantModel"],
            "block_size": 8,
            "mask_token_id": 63,
            "model_type": "muse_glimmer_assistant",
            "target_layer_ids": [1, 5, 9],
        }
    )


def deepspec_config() -> dict[str, Any]:
    return tiny_config(
        architectures=["Qwen3DSparkModel"],
        block_size=7,
        target_layer_ids=[1, 5, 9],
        mask_token_id=63,
        markov_rank=0,
        enable_confidence_head=False,
    ) | {"dflash_config": None}


def angelspec_config() -> dict[str, Any]:
    return tiny_config(
        model_type="dflash",
        model_arch="dflash",
        target_layer_ids=[1, 5, 9],
        mask_token_id=63,
        num_target_layers=3,
        target_num_hidden_layers=12,
        target_hidden_size=64,
    ) | {"dflash_config": None}


CONFIGS: dict[str, Callable[[], dict[str, Any]]] = {
    "z-lab": tiny_config,
    "z-lab v2": zlab_v2_config,
    "z-lab DFlash 2": dflash2_config,
    "ModelOpt": modelopt_config,
    "JetSpec": jetspec_config,
    "speculators": speculators_config,
    "speculators, whole vocabulary": lambda: speculators_config(draft_vocab_size=64),
    "speculators DFlash 2": lambda: speculators_config(
        speculators_model_type="dflash2", draft_vocab_size=64, **DFLASH2
    ),
    "Open Spec Config": open_spec_config,
    "Muse assistant": muse_config,
    "DeepSpec": deepspec_config,
    "AngelSpec": angelspec_config,
}
# What a format calls a tensor of ours, where it is not our name.
_SPELLINGS = {
    "Muse assistant": {
        "fc.weight": "encoder.fc.weight",
        "hidden_norm.weight": "encoder.output_norm_enc.weight",
    },
    "AngelSpec": {
        "fc.weight": "context_proj.weight",
        "hidden_norm.weight": "context_norm.weight",
        "norm.weight": "final_norm.weight",
    },
}
_ANYWHERE = {
    "candidate_selector.predecessor_codebook.weight": "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook.weight": "candidate_selector.successor_codebook",
    "hidden_dim_adapter.weight": "hidden_dim_adapter.proj.weight",
}
TABLES = ("embed_tokens.weight", "lm_head.weight")


class Made(NamedTuple):
    """A checkpoint: the drafter that it holds, and its tensors by our names and by its own."""

    config: DrafterConfig
    tensors: Tensors
    stored: Tensors


def make(format_name: str, *, own_tables: bool = False) -> Made:
    """A format's tiny checkpoint.

    Args:
        format_name: A key of ``CONFIGS``.
        own_tables: Ship an embedding table and a head where the config leaves it open.
    """
    config = parsed_config(CONFIGS[format_name](), *(TABLES if own_tables else ()))
    tensors = random_tensors(config)
    spelling = _ANYWHERE | _SPELLINGS.get(format_name, {})
    stored = {spelling.get(name, name): array for name, array in tensors.items()}
    if "d2t" in stored:
        stored |= vocabulary_maps(tensors["d2t"], config.vocab_size)
    return Made(config, tensors, stored)


def vocabulary_maps(ids: mx.array, vocab_size: int) -> Tensors:
    """``d2t`` as offsets, and ``t2d``."""
    offsets = ids.astype(mx.int64) - mx.arange(ids.size)
    return {"d2t": offsets, "t2d": (mx.arange(vocab_size)[:, None] == ids).any(axis=1)}


def write_format(
    folder: Path, format_name: str, shards: int = 1, *, own_tables: bool = False
) -> Made:
    made = make(format_name, own_tables=own_tables)
    write_checkpoint(folder, CONFIGS[format_name](), made.stored, shards)
    return made
