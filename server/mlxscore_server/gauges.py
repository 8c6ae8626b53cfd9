"""What only the MLX thread may ask, noted as plain numbers for those who watch."""

import mlx.core as mx

from mlxscore_server.kept import Kept
from mlxscore_server.stats import Stats


def note_memory(stats: Stats, kept: Kept) -> None:
    """Memory of the device and of kept prefixes, as it is now. Call on the MLX thread."""
    stats.kept_tokens = kept.num_tokens
    stats.kept_bytes = kept.bytes
    stats.kept_bytes_limit = kept.max_bytes
    stats.active_bytes = mx.get_active_memory()
    stats.peak_bytes = mx.get_peak_memory()
    stats.cache_bytes = mx.get_cache_memory()
