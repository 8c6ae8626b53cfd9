"""`POST /tokenize`, `POST /detokenize`, `GET /tokenizer_info`, `GET /version`: as vLLM has them."""

from typing import Any

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from mlxscore_client.wire.chat import ContinueFinalMessage, JsonObject, Messages
from mlxscore_client.wire.common import Answer, ForeignRequest, Ids, Text


class TokenizeRequest(ForeignRequest):
    """Body of `POST /tokenize`: exactly one of `prompt` and `messages`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"prompt": "The capital of France is", "return_token_strs": True},
                {"messages": [{"role": "user", "content": "Hello"}]},
            ]
        }
    )

    prompt: Text | None = Field(default=None, description="A text.")
    messages: Messages | None = Field(
        default=None, description="A conversation, through the model's chat template."
    )
    model: Text | None = Field(
        default=None, description="The served model's name; null for whichever is loaded."
    )
    add_special_tokens: bool | None = Field(
        default=None,
        description="Special tokens (BOS) before the text, as the tokenizer puts them there; never two BOS. "
        "null: true for `prompt`, false for `messages` (a chat template writes its own).",
    )
    return_token_strs: bool | None = Field(
        default=False, description="Whether `token_strs` is answered."
    )
    add_generation_prompt: bool = Field(
        default=True,
        description="After `messages`: what makes the model answer, as its chat template has it.",
    )
    continue_final_message: ContinueFinalMessage = Field(
        default=False,
        description="Leave the last of `messages` open; needs `add_generation_prompt: false`.",
    )
    chat_template_kwargs: JsonObject | None = Field(
        default=None, description="More variables for the chat template."
    )
    # Of vLLM: each would change the tokens.
    chat_template: Any = Field(default=None, description="null: the model's own is used.")
    tools: Any = Field(default=None, description="null.")
    media_io_kwargs: Any = Field(default=None, description="null.")
    mm_processor_kwargs: Any = Field(default=None, description="null.")

    @model_validator(mode="after")
    def _exactly_one(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            got = "neither" if self.prompt is None else "both"
            raise PydanticCustomError(
                "one_of",
                "give exactly one of 'prompt' and 'messages' (got {got})",
                {"got": got},
            )
        return self


class TokenizeResponse(Answer):
    """Answer of `POST /tokenize`."""

    count: int = Field(description="Of tokens.")
    max_model_len: int | None = Field(
        description="Longest row in tokens; null: the model states none."
    )
    tokens: list[int]
    token_strs: list[str] | None = Field(
        default=None, description="The tokens as the vocabulary writes them."
    )


class DetokenizeRequest(ForeignRequest):
    """Body of `POST /detokenize`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tokens": [504, 3575, 282, 4649]}]})

    tokens: Ids = Field(description="Token ids; may be empty.")
    model: Text | None = Field(
        default=None, description="The served model's name; null for whichever is loaded."
    )


class DetokenizeResponse(Answer):
    """Answer of `POST /detokenize`."""

    prompt: str = Field(
        description="The text: special tokens as text, all spaces kept, U+FFFD for bytes that are no UTF-8."
    )


class TokenizerInfo(Answer):
    """Answer of `GET /tokenizer_info`: these, and what else the tokenizer's configuration holds."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None = Field(description="The one that `messages` go through (Jinja).")
    add_bos_token: bool = Field(description="Whether a text gets the BOS by default.")
    model_max_length: int | None = Field(
        description="Tokens; where the tokenizer states none, the model's."
    )


class Version(Answer):
    """Answer of `GET /version`."""

    version: str
