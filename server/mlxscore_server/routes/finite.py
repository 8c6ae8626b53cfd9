"""JSON has no NaN and no infinity, and a number in their place would be a lie."""

import numpy as np

from mlxscore_server.errors import NonFiniteLogits
from mlxscore_server.row import RowScore


def check_finite(score: RowScore, param: str) -> None:
    """Raise NonFiniteLogits, which names the field, where a score holds such a number."""
    for array in (score.logprobs, score.top_logprobs):
        if array is not None and not np.isfinite(array).all():
            raise NonFiniteLogits(
                f"the model gave a number that is not finite for {param}", param=param
            )
