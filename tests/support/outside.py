"""Tiny configurations of mlx-lm families that are not in the table: they pass the trial, or not."""

from support.tiny import GATED_DELTA, MLA, MOE

MAMBA = {
    "attention_bias": False,
    "mlp_bias": False,
    "layer_norm_epsilon": 1e-5,
}
PLAIN = {
    "cohere2": {"sliding_window": 8, "sliding_window_pattern": 2, "layer_norm_eps": 1e-5},
    "exaone4": {"sliding_window": 8, "sliding_window_pattern": "LG", "rope_scaling": None},
    "glm4_moe": MOE
    | {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
        "attention_bias": False,
        "partial_rotary_factor": 0.5,
        "rope_scaling": None,
    },
    "granite": {
        "logits_scaling": 4.0,
        "attention_multiplier": 0.3,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.7,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "internlm2": {"bias": False},
    "laguna": MOE
    | {
        "shared_expert_intermediate_size": 16,
        "sliding_window": 8,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "tie_word_embeddings": False,
    },
    "minicpm": {"dim_model_base": 16, "scale_depth": 1.4, "scale_emb": 12},
    "olmo2": {},
    "phi3": {},
    # Its model keeps its configuration under another name than others do.
    "youtu_llm": MLA | {"tie_word_embeddings": True},
}
RECURRENT = {
    # Attention and Mamba side by side in every layer.
    "falcon_h1": {
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_d_ssm": 32,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_n_groups": 2,
    },
    "granitemoehybrid": MAMBA
    | {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.3,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.8,
        "layer_types": ["mamba", "attention", "mamba"],
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_n_groups": 2,
        "mamba_proj_bias": False,
        "mamba_conv_bias": True,
        "position_embedding_type": "nope",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 16,
    },
    "kimi_linear": MLA
    | {
        "num_experts": 0,
        "num_experts_per_token": 1,
        "num_shared_experts": 1,
        "num_hidden_layers": 4,
        "model_max_length": 4096,
        "linear_attn_config": {
            "kda_layers": [1, 2, 4],
            "full_attn_layers": [3],
            "num_heads": 4,
            "head_dim": 8,
            "short_conv_kernel_size": 4,
        },
    },
    "lfm2": {
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 32,
        "block_ff_dim": 48,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [1],
        "num_hidden_layers": 4,
    },
    "nemotron_h": MAMBA
    | {
        "hybrid_override_pattern": "M*M-",
        "num_hidden_layers": 4,
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "mamba_proj_bias": False,
        "ssm_state_size": 8,
        "conv_kernel": 4,
        "n_groups": 2,
        "time_step_limit": (0.0, 100.0),
        "use_bias": False,
        "use_conv_bias": True,
    },
    "olmo_hybrid": GATED_DELTA
    | {
        "num_hidden_layers": 3,
        "linear_allow_neg_eigval": True,
        "attention_bias": False,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "rope_parameters": None,
    },
}
OUTSIDE = PLAIN | RECURRENT
# With words of the reason; these decode plainly.
UNFIT = {
    "jamba": (
        {
            "attn_layer_offset": 1,
            "attn_layer_period": 2,
            "expert_layer_offset": 1,
            "expert_layer_period": 2,
            "mamba_d_conv": 4,
            "mamba_d_state": 8,
            "mamba_expand": 2,
            "mamba_dt_rank": 4,
            "mamba_proj_bias": False,
            "num_experts": 2,
            "num_experts_per_tok": 1,
        },
        "no convolution or recurrence that is known",
    ),
    "mamba2": (
        {
            "num_heads": 4,
            "head_dim": 8,
            "state_size": 8,
            "conv_kernel": 4,
            "n_groups": 2,
            "use_bias": False,
            "use_conv_bias": True,
            "time_step_limit": (0.0, 100.0),
            "time_step_rank": 4,
            "layer_norm_epsilon": 1e-5,
        },
        "recurrent in every layer",
    ),
    "plamo2": (
        {
            "hidden_size_per_head": 8,
            "mamba_d_state": 8,
            "mamba_num_heads": 4,
            "attention_window_size": 8,
            "full_attention_idx": [1],
        },
        "does not keep its decoder layers in a list",
    ),
    "plamo3": (
        {"window_size": 8, "sliding_window_pattern": 2},
        "does not keep its decoder layers in a list",
    ),
    "baichuan_m1": (
        {
            "sliding_window": 8,
            "sliding_window_layers": [1],
            "conv_window": 2,
            "tie_word_embeddings": False,
        },
        "forward was not recorded",
    ),
    "gpt2": (
        {
            "n_ctx": 64,
            "n_embd": 32,
            "n_head": 4,
            "n_layer": 3,
            "n_positions": 64,
            "layer_norm_epsilon": 1e-5,
        },
        "does not keep its decoder layers in a list",
    ),
}
