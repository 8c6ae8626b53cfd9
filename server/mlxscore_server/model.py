"""Load a model and make it ready to score. Runs on the MLX thread; knows no HTTP, no queue."""

import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
from mlx_lm.tuner.utils import load_adapters

from mlxscore_client import wire
from mlxscore_server.arrays import dtype_name, parameters
from mlxscore_server.check import self_check
from mlxscore_server.checkpoint import commit_of, find_adapter, find_checkpoint
from mlxscore_server.dequantize import unpack
from mlxscore_server.device import Device, current
from mlxscore_server.errors import StartupError
from mlxscore_server.fingerprint import fingerprint
from mlxscore_server.resident import Loaded
from mlxscore_server.scoring import BatchScorer
from mlxscore_server.settings import Settings
from mlxscore_server.tokens import Encoder, limit_from
from mlxscore_server.tuning import tune

log = logging.getLogger("mlxscore")

# How a dataclass says that fields without a default were not given.
_LACKS = re.compile(r"__init__\(\) missing \d+ required positional arguments?: (.+)")


def load(settings: Settings) -> Loaded:
    """The model that the settings name, checked and warmed up. Raises StartupError, one line."""
    try:
        return _load(settings)
    except StartupError:
        raise
    except Exception as error:
        log.debug("the model cannot be loaded", exc_info=error)
        raise StartupError(f"the model cannot be loaded: {_one_line(error)}") from error


def _load(settings: Settings) -> Loaded:
    started = time.monotonic()
    adapter = find_adapter(settings.adapter_path)
    folder, name = find_checkpoint(settings)
    if settings.model is None:
        log.info("no --model given: using %s, a small demo model", name)
    device = current(settings.cpu_kernels)
    _prepare(device)
    model, tokenizer, config = _read(folder, adapter, trusted=settings.trust_remote_code)
    dtype = _set_dtype(model, settings, device)
    commit = commit_of(folder)
    loaded = make_ready(
        model, tokenizer, config, settings, device=device, name=name, dtype=dtype, commit=commit
    )
    log.info(
        "%s loaded in %.1f s: %s on %s, %s rows, fingerprint %s",
        loaded.card.id,
        time.monotonic() - started,
        dtype,
        device.name,
        loaded.card.self_check.layout,
        loaded.card.system_fingerprint,
    )
    return loaded


def make_ready(
    model: nn.Module,
    tokenizer: Any,
    config: Mapping[str, Any],
    settings: Settings,
    *,
    device: Device,
    name: str,
    dtype: str,
    commit: str | None = None,
) -> Loaded:
    """Split the head, run the self-check, take the fingerprint: everything after the weights are read."""
    scorer = BatchScorer(
        model,
        device,
        float32_head=settings.head_dtype == "float32",
        max_batch_tokens=settings.max_batch_tokens,
        share_prefixes=settings.share_prefixes,
        kept_bytes=_bytes(settings.prefix_cache_mb, device.memory_bytes // 16),
    )
    found = self_check(scorer, model, settings.layout)
    if settings.layout == "packed" and found.layout != "packed":
        raise StartupError(f"--layout packed is not right for this model: {found.packed_reason}")
    if found.layout == "equal-length":
        log.warning(
            "padding changes this model's scores (%s): only rows of equal length share a micro-batch",
            found.reason,
        )
    device.warm_up()
    if settings.max_batch_tokens is None and device.name != "cpu":
        tune(scorer, _bytes(settings.memory_budget_mb, int(device.memory_bytes * 0.8)))
    mx.clear_cache()
    scorer.start_counting()
    own_limit = limit_from(config, tokenizer)
    max_model_len = settings.max_model_len or own_limit
    if max_model_len is None:
        log.warning("the model states no longest row; --max-model-len sets one")
    elif own_limit is not None and max_model_len > own_limit:
        log.warning("--max-model-len %d is more than the model's own %d", max_model_len, own_limit)
    encoder = Encoder(
        tokenizer, num_embeddings=scorer.head.num_embeddings, max_model_len=max_model_len
    )
    _check_tokenizer(encoder, name)
    head_dtype = "float32" if settings.head_dtype == "float32" else dtype
    card = wire.ModelCard(
        id=settings.served_model_name or name,
        created=int(time.time()),
        root=name,
        revision=commit,
        max_model_len=max_model_len,
        dtype=dtype,
        head_dtype=head_dtype,
        quantization=config.get("quantization"),
        vocab_size=scorer.head.num_embeddings,
        adds_bos=encoder.adds_bos,
        bos_token_id=encoder.bos_token_id,
        eos_token_id=encoder.eos_token_id,
        max_logprobs=settings.max_logprobs,
        system_fingerprint=fingerprint(
            model, dtype=dtype, head_dtype=head_dtype, device=device.name
        ),
        self_check=found,
    )
    return Loaded(scorer, encoder, card)


def _check_tokenizer(encoder: Encoder, name: str) -> None:
    """Texts must not become ids that the weights do not have."""
    largest, limit = encoder.largest_text_id, encoder.num_embeddings - 1
    if largest > limit:
        raise StartupError(
            f"--model {name}: its tokenizer does not fit its weights: texts become ids up to {largest}, and "
            f"the embedding ends at {limit}"
        )


def _bytes(megabytes: int | None, default: int) -> int:
    return default if megabytes is None else megabytes * 2**20


def _prepare(device: Device) -> None:
    # MLX keeps freed buffers for each shape; without a bound many lengths grow it to tens of GB.
    mx.set_cache_limit(device.cache_bytes)
    if device.name == "metal":
        # Keep the weights in the GPU's wired memory, as mlx-lm does while it generates.
        mx.set_wired_limit(int(mx.device_info()["max_recommended_working_set_size"]))


def _read(
    folder: Path, adapter: str | None, *, trusted: bool
) -> tuple[nn.Module, Any, dict[str, Any]]:
    try:
        # Lazy: the type is set before the weights are read, so they are in memory only once.
        loaded = mlx_lm.load(
            str(folder),
            # Said to both: transformers, unless it is told, asks whoever sits at the terminal.
            tokenizer_config={"trust_remote_code": trusted},
            lazy=True,
            return_config=True,
            trust_remote_code=trusted,
        )
        model, tokenizer, config = loaded  # pyright: ignore[reportAssignmentType]
    except Exception as error:
        if not trusted and isinstance(error, ValueError) and "trust_remote_code" in str(error):
            raise StartupError(
                f"--model {folder} brings Python code that must run to load it; --trust-remote-code lets "
                "it, if you trust whoever made the model"
            ) from error
        raise StartupError(f"--model {folder} cannot be loaded: {_reason(error)}") from error
    if adapter is not None:
        try:
            model = load_adapters(model, adapter)
        except Exception as error:
            raise StartupError(
                f"--adapter-path {adapter} does not fit the model: {_one_line(error)}"
            ) from error
    model.eval()
    return model, tokenizer, config


def _set_dtype(model: nn.Module, settings: Settings, device: Device) -> str:
    """Convert the weights if need be and read them into memory; the dtype's name."""
    floating = {
        array.dtype for _, array in parameters(model) if mx.issubdtype(array.dtype, mx.floating)
    }
    stored = max(floating, key=lambda t: t.size, default=mx.float32)
    half = {mx.bfloat16, mx.float16} & floating
    if settings.dtype != "auto":
        wanted: mx.Dtype = getattr(mx, settings.dtype)
    elif device.name == "cpu":
        # Half precision has no BLAS on the CPU: 2 to 6 GFLOP/s, thirty times slower.
        wanted = mx.float32
    else:
        # Norms are often stored in float32 beside half-precision weights: leave those as they are.
        wanted = half.pop() if len(half) == 1 else stored
    if settings.dtype != "auto" or device.name == "cpu":
        if floating != {wanted}:
            log.info("weights are converted to %s", dtype_name(wanted))
        model.set_dtype(wanted)
    unpack(model, settings.dequantize, wanted, device)
    if wanted == mx.float32:
        # CUDA multiplies float32 in TF32 (10 bits of mantissa) unless told otherwise.
        os.environ.setdefault("MLX_ENABLE_TF32", "0")
    try:
        mx.eval(model.parameters())
    except Exception as error:
        raise StartupError(f"the weights cannot be read: {_one_line(error)}") from error
    return dtype_name(wanted)


def _reason(error: Exception) -> str:
    """One line; where a configuration lacks something, which."""
    lacks = _LACKS.search(str(error))
    return f"config.json lacks {lacks[1]}" if lacks else _one_line(error)


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
