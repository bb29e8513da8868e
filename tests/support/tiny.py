"""Tiny random targets in float32, one a family."""

import functools
import importlib

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path

VOCAB = 97

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "head_dim": 8,
}
MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
}
GATED_DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 3,
    "shared_expert_intermediate_size": 16,
    "partial_rotary_factor": 0.5,
    "rope_parameters": {"type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    "num_hidden_layers": 4,
    "tie_word_embeddings": False,
}
GEMMA4 = {
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "sliding_window": 8,
    "sliding_window_pattern": 2,
    "num_hidden_layers": 4,
    "vocab_size_per_layer_input": VOCAB,
    "tie_word_embeddings": False,
}
# The small Gemma 4 models: the last layers read earlier keys and values, and every layer has an
# input of its own.
SMALL_GEMMA4 = GEMMA4 | {
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 2,
    "num_hidden_layers": 6,
}
# Latents of 16 dimensions and 4 rotary ones; the first layer is dense, the others are not.
MLA = {
    "tie_word_embeddings": False,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "routed_scaling_factor": 1.0,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "qk_nope_head_dim": 8,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "attention_bias": False,
}
# An indexer that leaves each row 8 positions to attend to.
SPARSE = MLA | {"index_head_dim": 8, "index_n_heads": 8, "index_topk": 8}
FAMILIES = {
    "deepseek_v3": MLA,
    "deepseek_v32": SPARSE,
    "glm_moe_dsa": SPARSE | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "llama": {},
    "smollm3": {"no_rope_layer_interval": 2, "num_hidden_layers": 4},
    "qwen2": {"tie_word_embeddings": False},
    "qwen3": {},
    "qwen3_moe": MOE | {"tie_word_embeddings": False},
    "minimax": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 0,
        "rotary_dim": 4,
        "tie_word_embeddings": False,
    },
    "gemma": {},
    "gemma3_text": {"sliding_window": 8, "sliding_window_pattern": 2, "num_hidden_layers": 4},
    "gpt_oss": {
        "num_hidden_layers": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    },
    "gemma2": {"query_pre_attn_scalar": 8.0},
    "gemma3": {"sliding_window": 8, "sliding_window_pattern": 2, "num_hidden_layers": 4},
    "gemma4_text": GEMMA4,
    "gemma4": SMALL_GEMMA4,
    "kimi_k25": MLA,
    "muse_glimmer": {
        "sliding_window": 8,
        "num_hidden_layers": 4,
        "output_multiplier": 0.5,
        "tie_word_embeddings": False,
    },
    "qwen3_next": GATED_DELTA | MOE,
    "qwen3_5": GATED_DELTA | {"tie_word_embeddings": True},
    "qwen3_5_moe": GATED_DELTA | MOE,
}
# Multimodal families, whose language model has a config of its own.
NESTED = ("gemma3", "gemma4", "kimi_k25", "qwen3_5", "qwen3_5_moe")


def tiny_model(family: str = "llama", seed: int = 0, **changes: object) -> nn.Module:
    """A tiny random model whose greedy text wanders instead of repeating one token."""
    module = importlib.import_module(f"mlx_lm.models.{family}")
    config = SIZES | FAMILIES.get(family, {}) | {"model_type": family} | changes
    if family in NESTED:
        config = {"model_type": family, "vocab_size": config["vocab_size"], "text_config": config}
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config))

    def spread(name: str, w: mx.array) -> mx.array:
        scale = 0.3 if w.ndim > 1 else 0.1
        # A recurrence that keeps most of its state from token to token.
        centre = -2.0 if name.endswith("A_log") else 1.0 if w.ndim == 1 else 0.0
        return mx.random.normal(w.shape) * scale + centre

    model.update(tree_map_with_path(spread, model.parameters()))
    mx.eval(model.parameters())
    return model.eval()


@functools.cache
def shared_model(family: str = "llama") -> nn.Module:
    """The same tiny model for every test that leaves it as it is."""
    return tiny_model(family)


def language_of(model: nn.Module) -> nn.Module:
    """The language model of a multimodal one."""
    return model.language_model if "language_model" in model else model
