"""`POST /v1/completions`: OpenAI's legacy endpoint, as far as it scores a given prompt.

Unknown fields are ignored, as vLLM does; those that would change the meaning of the answer are
declared here and refused where they are set.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from mlxscore_client.wire.common import Answer, CacheSalt, ForeignRequest, Ids, Text, Usage


def _counted(value: Any) -> Any:
    """Some clients send true for one and false for none."""
    return (1 if value else None) if isinstance(value, bool) else value


# The validator sees null too, and may make it: so it stands around the whole.
TopCount = Annotated[Annotated[int, Field(ge=-1)] | None, BeforeValidator(_counted)]

TruncationSide = Literal["left", "right"]

_Ids = Annotated[Ids, Field(min_length=1)]


def _shape(value: Any) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if not isinstance(value, list | tuple) or not value:
        return None
    # The first element says what the others have to be: an error then names the one that is not.
    first: object = value[0]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(first, str):
        return "<texts>"
    return "<id_lists>" if isinstance(first, list | tuple) else "<ids>"


Prompt = Annotated[
    Annotated[Text, Tag("<text>")]
    | Annotated[list[Text], Field(strict=False, fail_fast=True), Tag("<texts>")]
    | Annotated[_Ids, Tag("<ids>")]
    | Annotated[list[_Ids], Field(strict=False, fail_fast=True), Tag("<id_lists>")],
    Discriminator(
        _shape,
        custom_error_type="prompt",
        custom_error_message="must be a text, a list of texts, a list of token ids (integers) or a list of "
        "lists of ids, and not empty",
    ),
]
"""One prompt or several, as text or as ids that are used verbatim."""


class CompletionRequest(ForeignRequest):
    """Body of `POST /v1/completions`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "prompt": [[504, 3575, 282, 4649], [504, 3575]],
                    "echo": True,
                    "max_tokens": 1,
                    "logprobs": 1,
                }
            ]
        }
    )

    prompt: Prompt = Field(description="One choice a prompt, in order.")
    model: Text | None = Field(
        default=None, description="The served model's name; null for whichever is loaded."
    )
    cache_salt: CacheSalt = None
    echo: bool | None = Field(default=False, description="Whether the answer holds the prompt.")
    max_tokens: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="0 or 1; null: 0 with `echo`, else 1. The one new token is the most likely one.",
    )
    logprobs: TopCount = Field(
        default=None,
        description="The k most likely tokens at each position, and the actual one. true is 1, false is "
        "null: no logprobs; -1: all that there are. At most the server's `--max-logprobs`.",
    )
    prompt_logprobs: Annotated[int, Field(ge=-1)] | None = Field(
        default=None,
        description="As vLLM has it: by id, with ranks, in `choices[].prompt_logprobs`.",
    )
    add_special_tokens: bool | None = Field(
        default=None,
        description="Special tokens (BOS) before a text, never two; null: as the server's "
        "`--completions-add-special-tokens` says (true by default).",
    )
    return_tokens_as_token_ids: bool | None = Field(
        default=None, description='Write each token as "token_id:123": no two of them are alike.'
    )
    return_token_ids: bool | None = Field(
        default=None, description="Add `prompt_token_ids` and `token_ids` to each choice."
    )
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = Field(
        default=None, description="Longest prompt in tokens; -1: as many as the model takes."
    )
    truncation_side: TruncationSide | None = Field(
        default=None, description="Which end of a longer prompt is cut; null is left."
    )
    n: int | None = Field(default=None, description="1.")
    best_of: int | None = Field(default=None, description="1.")
    stream: bool | None = Field(default=None, description="false.")
    suffix: str | None = Field(default=None, description="null.")
    logit_bias: dict[str, float] | None = Field(default=None, description="null.")
    # Of vLLM and others: each would change which token comes, or which logprob it has.
    allowed_token_ids: Any = None
    bad_words: Any = None
    logprob_token_ids: Any = None
    prompt_embeds: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    use_beam_search: bool | None = None


class CompletionLogprobs(Answer):
    """Four arrays, one entry a token of `text`."""

    tokens: list[str]
    token_logprobs: list[float | None] = Field(
        description="Nats; null for a prompt's first token, which nothing comes before."
    )
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int] = Field(description="Characters of `text` before the token.")


class PromptLogprob(Answer):
    """One token at one place of a prompt."""

    logprob: float
    rank: int
    decoded_token: str


class Choice(Answer):
    """The answer to one prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["length"] = "length"
    stop_reason: None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class PromptTokensDetails(Answer):
    """Of a prompt's tokens, those that a cache answered."""

    cached_tokens: int


class CompletionUsage(Usage):
    """Tokens counted, in OpenAI's names too."""

    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionResponse(Answer):
    """Answer of `POST /v1/completions`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int = Field(description="Unix time, seconds.")
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: CompletionUsage
