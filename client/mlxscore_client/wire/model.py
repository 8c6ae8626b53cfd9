"""`GET /v1/models` and `GET /health`."""

from typing import Any, Literal

from pydantic import Field

from mlxscore_client.wire.common import Answer

HealthState = Literal["loading", "ok", "draining", "failed"]


class SelfCheck(Answer):
    """What the check at load found: batched rows against single rows through the model's own call."""

    layout: Literal["packed", "left-padded", "equal-length"] = Field(
        default="left-padded",
        description='How rows lie in a micro-batch. "packed": without padding, and what rows begin with '
        "alike is computed once.",
    )
    padding: Literal["left-padded", "equal-length"] = Field(
        description='"equal-length": padding changes this model\'s scores (recurrent state), so only rows '
        "of equal length share a micro-batch."
    )
    max_error: float = Field(
        description="Largest difference of a logprob in the layout in use, nats."
    )
    mean_error: float = Field(description="Mean difference, nats.")
    reason: str | None = Field(default=None, description="Why padding was refused, if it was.")
    packed_reason: str | None = Field(
        default=None, description="Why the packed layout was refused, if it was."
    )


class ModelCard(Answer):
    """The resident model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "mlxscore"
    root: str = Field(description="What was loaded: a folder's name or a hub id.")
    revision: str | None = Field(
        default=None,
        description="The commit that was loaded from the hub; null for a local folder.",
    )
    max_model_len: int | None = Field(
        description="Longest row in tokens; null: the model states none."
    )
    dtype: str = Field(description="Of the weights as they are computed with.")
    head_dtype: str = Field(description="Of the output head and of the logits.")
    quantization: dict[str, Any] | None
    vocab_size: int = Field(description="Rows of the embedding: token ids must be below this.")
    adds_bos: bool = Field(description="Whether the tokenizer puts BOS before a text by default.")
    bos_token_id: int | None
    eos_token_id: int | None
    max_logprobs: int
    system_fingerprint: str
    self_check: SelfCheck


class ModelList(Answer):
    """Answer of `GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(Answer):
    """Answer of `GET /health`."""

    status: HealthState
