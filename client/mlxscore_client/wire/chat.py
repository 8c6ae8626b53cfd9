"""What all bodies that hold a conversation share. Knows no endpoint."""

import json
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError


def _plain_json(value: dict[str, Any]) -> dict[str, Any]:
    # Checked here so that a caller in Python learns of it before anything is sent.
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        # A template of pydantic's own: what stands in braces would be looked up.
        what = ascii(str(error))[1:-1]
        raise PydanticCustomError(
            "not_json", "holds what JSON cannot ({what})", {"what": what}
        ) from error
    return value


def _alone(value: bool, info: ValidationInfo) -> bool:
    if value and info.data.get("add_generation_prompt"):
        raise PydanticCustomError(
            "one_of",
            "needs add_generation_prompt: false (the last message is left open, or an answer to it is "
            "begun: not both)",
        )
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_plain_json)]

Messages = Annotated[list[JsonObject], Field(min_length=1, fail_fast=True)]
"""A conversation as OpenAI's chat endpoint takes it: `[{"role": "user", "content": "..."}, ...]`."""

ContinueFinalMessage = Annotated[bool, AfterValidator(_alone)]
"""Stands after `add_generation_prompt`, which it excludes."""
