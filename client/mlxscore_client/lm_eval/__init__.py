"""lm-evaluation-harness on an mlxscore server: importing this registers the model type `mlxscore`.

Needs the extra `lm-eval`; nothing else in this package imports it.
"""

# lm_eval registers its own model types only as long as there is no other.
import lm_eval.models  # noqa: F401  # pyright: ignore[reportUnusedImport]

from mlxscore_client.lm_eval.model import MlxscoreLM

__all__ = ["MlxscoreLM"]
