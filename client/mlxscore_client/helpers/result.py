"""What all helpers share: how they take their steps, and what their results are."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from mlxscore_client.calls import Job

T = TypeVar("T")

Steps = Generator[Job[Any], Any, T]
"""Yields jobs one after the other, is sent each one's result, and returns the helper's own."""

Conversation = Sequence[Mapping[str, Any]]
"""Messages as OpenAI's chat endpoint takes them: `[{"role": "user", "content": "..."}, ...]`."""


class Result(BaseModel):
    """Base of what helpers return: made here and never changed."""

    model_config = ConfigDict(frozen=True)
