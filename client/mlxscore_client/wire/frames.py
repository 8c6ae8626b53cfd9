"""Answers as pandas' frames. pandas is imported when a frame is asked for, and by nobody else."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame


def frame(rows: Sequence[Mapping[str, Any]]) -> "DataFrame":
    """A row a line, columns by name. Raises ImportError, which says what to install."""
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise ImportError("to_frame needs pandas: pip install pandas") from error
    return DataFrame([dict(row) for row in rows])
