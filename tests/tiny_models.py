"""Tiny random models of many architectures, built as mlx-lm builds them: nothing is downloaded."""

import importlib
from typing import Any

import mlx.core as mx
import mlx.nn as nn

VOCAB = 97
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-untied": {"model_type": "llama", "tie_word_embeddings": False},
    "llama-rope-scaled": {
        "model_type": "llama",
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama-yarn": {
        "model_type": "llama",
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3"},
    "gemma2": {
        "model_type": "gemma2",
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 5.0,
        "query_pre_attn_scalar": 16.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "sliding_window": 8,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 16.0,
        "rope_local_base_freq": 10000.0,
        "rope_global_base_freq": 1000000.0,
    },
    "phi3": {"model_type": "phi3", "original_max_position_embeddings": 512},
    "mistral": {
        "model_type": "llama",
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "cohere": {
        "model_type": "cohere",
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "use_qk_norm": False,
        "attention_bias": False,
        "layer_norm_bias": False,
    },
    "granite": {
        "model_type": "granite",
        "logits_scaling": 4.0,
        "attention_multiplier": 0.25,
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.5,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "gpt2": {
        "model_type": "gpt2",
        "n_ctx": 128,
        "n_embd": 64,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 128,
        "layer_norm_epsilon": 1e-5,
    },
    "gpt-oss": {
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "cohere2": {
        "model_type": "cohere2",
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "sliding_window": 8,
        "sliding_window_pattern": 2,
    },
    "exaone4": {
        "model_type": "exaone4",
        "rope_scaling": {"rope_type": "default"},
        "sliding_window": 8,
        "sliding_window_pattern": "LG",
    },
    "ministral3": {
        "model_type": "ministral3",
        "rope_parameters": {
            "rope_theta": 10000.0,
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 128,
        },
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {
        "model_type": "olmo3",
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gemma": {"model_type": "gemma"},
    "gemma4": {
        "model_type": "gemma4_text",
        "global_head_dim": 32,
        "vocab_size_per_layer_input": VOCAB,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 16,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "stablelm": {
        "model_type": "stablelm",
        "use_qkv_bias": True,
        "partial_rotary_factor": 0.5,
        "layer_norm_eps": 1e-5,
    },
    "starcoder2": {"model_type": "starcoder2"},
    "glm4": {"model_type": "glm4", "attention_bias": True, "partial_rotary_factor": 0.5},
    "minicpm": {
        "model_type": "minicpm",
        "dim_model_base": 32,
        "scale_depth": 1.4,
        "scale_emb": 4,
        # Tied, its head is no module, and what is no module cannot be split off.
        "tie_word_embeddings": False,
    },
    "gpt-neox": {
        "model_type": "gpt_neox",
        "layer_norm_eps": 1e-5,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.5,
    },
    "ernie4-5": {"model_type": "ernie4_5", "use_bias": False},
    "hunyuan": {
        "model_type": "hunyuan",
        "attention_bias": False,
        "moe_topk": 2,
        "num_experts": 4,
        "num_shared_expert": 1,
        "use_mixed_mlp_moe": True,
        "use_qk_norm": True,
        "use_cla": False,
        "cla_share_factor": 2,
        "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0},
    },
    "smollm3": {"model_type": "smollm3", "no_rope_layer_interval": 2},
    "internlm3": {"model_type": "internlm3", "rope_scaling": None},
}

# Right only with a cache: without one, mlx-lm lets each layer make keys of its own.
CACHED_ONLY: dict[str, dict[str, Any]] = {
    "gemma3n": {
        "model_type": "gemma3n",
        "text_config": {
            **_COMMON,
            "model_type": "gemma3n_text",
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCAB,
            "sliding_window": 8,
            "rope_local_base_freq": 10000.0,
            "final_logit_softcapping": 30.0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
            "hidden_size_per_layer_input": 16,
            "altup_num_inputs": 2,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_active_idx": 0,
            "laurel_rank": 8,
        },
    },
}

RECURRENT: dict[str, dict[str, Any]] = {
    "mamba": {
        "model_type": "mamba",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "state_size": 8,
        "num_hidden_layers": 2,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
        "tie_word_embeddings": True,
    },
    "rwkv7": {
        "model_type": "rwkv7",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "norm_eps": 1e-5,
        "head_dim": 32,
        "num_hidden_layers": 2,
        "a_low_rank_dim": 16,
        "v_low_rank_dim": 16,
        "gate_low_rank_dim": 16,
        "decay_low_rank_dim": 16,
        "tie_word_embeddings": False,
    },
    "mamba2": {
        "model_type": "mamba2",
        "num_heads": 4,
        "head_dim": 32,
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "state_size": 16,
        "num_hidden_layers": 2,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": False,
        "time_step_limit": [0.01, 10.0],
        "time_step_rank": "auto",
    },
}


def config_of(name: str) -> dict[str, Any]:
    """The model's config.json as a dict."""
    own = {**CONFIGS, **CACHED_ONLY, **RECURRENT}[name]
    return dict(own) if name in RECURRENT else _COMMON | own


def build(name: str, *, seed: int = 0, **changes: Any) -> nn.Module:
    """A random float32 model; call on the thread that will run it."""
    config = config_of(name) | changes
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config))
    # Wider than the default initialisation: scores must differ where padding leaks.
    model.update(_spread(model.parameters()))
    model.eval()
    mx.eval(model.parameters())
    return model


def _spread(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _spread(part) for name, part in tree.items()}
    if isinstance(tree, list):
        return [_spread(part) for part in tree]
    if tree.ndim >= 2 and mx.issubdtype(tree.dtype, mx.floating):
        return mx.random.normal(tree.shape) * (1.5 / tree.shape[-1] ** 0.5)
    return tree
