"""Shapes of real models, as mlx-lm's llama takes them. Knows no MLX."""

from typing import Any

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA3: dict[str, Any] = {
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
}

SHAPES: dict[str, dict[str, Any]] = {
    "llama-1b": _LLAMA3  # Llama 3.2 1B
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "intermediate_size": 8192,
        "head_dim": 64,
        "tie_word_embeddings": True,
        "rope_scaling": _LLAMA3_ROPE | {"factor": 32.0},
    },
    "llama-8b": _LLAMA3  # Llama 3.1 8B
    | {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "head_dim": 128,
        "tie_word_embeddings": False,
        "rope_scaling": _LLAMA3_ROPE | {"factor": 8.0},
    },
    "tiny": _LLAMA3  # to try the bench itself
    | {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 2048,
        "tie_word_embeddings": True,
    },
}

SMOLLM2: dict[str, Any] = {  # the default model's shape
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}
