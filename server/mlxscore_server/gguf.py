"""The default model's GGUF to an ordinary mlx-lm folder in float32. Knows that one file, no cache.

Written for SmolLM2-135M-Instruct (llama, tied head, byte-level BPE); no general GGUF reader.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import mlx.core as mx

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""What `convert` writes."""

_GROUP_SIZE = 32  # of GGUF's quantised blocks
_SPECIAL = 3  # GGUF's token type of a control token

_TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

Metadata = dict[str, Any]


def convert(gguf: Path, out: Path) -> None:
    """Write `FILES` into the existing folder `out`; to be called on the thread that owns MLX."""
    import mlx.core as mx

    # The CPU on every machine: a folder's bytes should not hang on the device, and it is quick.
    with mx.stream(mx.cpu):
        loaded = mx.load(str(gguf), return_metadata=True)
        arrays, metadata = cast("tuple[dict[str, mx.array], Metadata]", loaded)
        _write_weights(arrays, metadata, out / "model.safetensors")
    _write_json(out / "config.json", _config(metadata))
    _write_tokenizer(metadata, out)


def _write_weights(arrays: "dict[str, mx.array]", metadata: Metadata, path: Path) -> None:
    """One tensor at a time, where `mx.save_safetensors` would hold all of them at once (half a
    gigabyte); and a full disk is an OSError here."""
    import mlx.core as mx
    import numpy as np

    stems = sorted(name.removesuffix(".weight") for name in arrays if name.endswith(".weight"))
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    end = 0
    for stem in stems:  # lazy arrays have shapes already; nothing is computed yet
        tensor = _tensor(arrays, stem, metadata)
        start, end = end, end + tensor.nbytes
        header[f"{_mlx_name(stem)}.weight"] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the data begins at a multiple of 8
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for stem in stems:
            tensor = _tensor(arrays, stem, metadata)
            mx.eval(tensor)
            file.write(np.array(tensor, copy=False).data)
            for part in ("weight", "scales", "biases"):
                arrays.pop(f"{stem}.{part}", None)
        file.flush()
        os.fsync(file.fileno())
    mx.clear_cache()


def _tensor(arrays: "dict[str, mx.array]", stem: str, metadata: Metadata) -> "mx.array":
    """The float32 weight called `stem` as mlx-lm's llama wants it (lazy)."""
    import mlx.core as mx

    weight = arrays[f"{stem}.weight"]
    if f"{stem}.scales" in arrays:
        # Cast before, not after: half-precision arithmetic would cost up to 0.03 nats a token.
        scales = arrays[f"{stem}.scales"].astype(mx.float32)
        biases = arrays[f"{stem}.biases"].astype(mx.float32)
        # 4 bits for most, 8 for the embedding: a group of 32 values takes `bits` words of 32 bits.
        bits = weight.shape[1] // scales.shape[1]
        weight = mx.dequantize(weight, scales, biases, group_size=_GROUP_SIZE, bits=bits)
    heads = {
        "attn_q": metadata["llama.attention.head_count"],
        "attn_k": metadata["llama.attention.head_count_kv"],
    }.get(stem.rpartition(".")[2])
    if heads is not None:
        weight = _rotary_halves(weight, int(heads.item()))
    return mx.contiguous(weight.astype(mx.float32))


def _rotary_halves(weight: "mx.array", heads: int) -> "mx.array":
    """GGUF keeps each head's rotary pairs side by side (2i, 2i + 1); mlx-lm wants (i, i + d/2)."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _mlx_name(stem: str) -> str:
    if not stem.startswith("blk."):
        return _TOP_LEVEL[stem]
    _, layer, name = stem.split(".")
    return f"model.layers.{layer}.{_IN_LAYER[name]}"


def _config(metadata: Metadata) -> dict[str, Any]:
    def number(key: str) -> Any:
        return metadata[key].item()

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": number("llama.vocab_size"),
        "hidden_size": number("llama.embedding_length"),
        "intermediate_size": number("llama.feed_forward_length"),
        "num_hidden_layers": number("llama.block_count"),
        "num_attention_heads": number("llama.attention.head_count"),
        "num_key_value_heads": number("llama.attention.head_count_kv"),
        "head_dim": number("llama.rope.dimension_count"),
        "max_position_embeddings": number("llama.context_length"),
        "rope_theta": number("llama.rope.freq_base"),
        # Stored in float32, where 1e-5 reads 9.99999975e-06.
        "rms_norm_eps": float(f"{number('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "tie_word_embeddings": True,
        "bos_token_id": number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": number("tokenizer.ggml.eos_token_id"),
        "pad_token_id": number("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def _write_tokenizer(metadata: Metadata, out: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = cast(list[str], metadata["tokenizer.ggml.tokens"])
    types = cast(list[int], metadata["tokenizer.ggml.token_type"].tolist())
    merges: list[tuple[str, str]] = []
    for merge in cast(list[str], metadata["tokenizer.ggml.merges"]):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _SPECIAL
        ]
    )
    # Not `tokenizer.save`: a full disk must be an OSError.
    (out / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")

    def special(name: str) -> str:
        return tokens[int(metadata[f"tokenizer.ggml.{name}_token_id"].item())]

    _write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": special("bos"),
            "eos_token": special("eos"),
            "pad_token": special("padding"),
            "unk_token": special("unknown"),
            "model_max_length": int(metadata["llama.context_length"].item()),
            "clean_up_tokenization_spaces": False,
            "chat_template": metadata["tokenizer.chat_template"],
        },
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")
