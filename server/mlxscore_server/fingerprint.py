"""A model's fingerprint: equal fingerprints on one machine give equal numbers up to rounding."""

import hashlib
from typing import cast

import mlx.core as mx
import mlx.nn as nn

from mlxscore_server.arrays import mlx_version, parameters


def fingerprint(model: nn.Module, *, dtype: str, head_dtype: str, device: str) -> str:
    """Such as `fp-3f9a0c1d2b4e-float32-head.float32-mlx0.32.4-cpu`.

    The hash is over each parameter's name, shape, dtype and the wrapping sum of its words: it sees
    another checkpoint, an adapter, another quantisation, without hashing gigabytes at each start.
    """
    digest = hashlib.blake2b(digest_size=6)
    for name, array in sorted(parameters(model), key=lambda named: named[0]):
        sums = _word_sums(array)
        digest.update(f"{name} {array.shape} {array.dtype} {sums}\n".encode())
    return f"fp-{digest.hexdigest()}-{dtype}-head.{head_dtype}-mlx{mlx_version()}-{device}"


def _word_sums(array: mx.array) -> tuple[int, int]:
    """Wrapping sums of the array's bytes as unsigned words: plain, and of every other column."""
    words = array.reshape(-1)
    unsigned = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}[array.dtype.size]
    words = (
        words.view(unsigned).astype(mx.uint32) if array.dtype.size < 8 else words.view(mx.uint32)
    )
    plain, alternate = words.sum(), words[::2].sum()
    mx.eval(plain, alternate)
    return int(cast(int, plain.item())), int(cast(int, alternate.item()))
