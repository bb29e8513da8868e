"""Tiny random targets in float32, one a family."""

import importlib

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

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
}


def tiny_model(family: str = "llama", seed: int = 0, **changes: object) -> nn.Module:
    """A tiny random model whose greedy text wanders instead of repeating one token."""
    module = importlib.import_module(f"mlx_lm.models.{family}")
    config = SIZES | FAMILIES.get(family, {}) | {"model_type": family} | changes
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config))

    def spread(w: mx.array) -> mx.array:
        scale = 0.3 if w.ndim > 1 else 0.1
        return mx.random.normal(w.shape) * scale + (1.0 if w.ndim == 1 else 0.0)

    model.update(tree_map(spread, model.parameters()))
    mx.eval(model.parameters())
    return model.eval()
