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
    own = {**CONFIGS, **RECURRENT}[name]
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
