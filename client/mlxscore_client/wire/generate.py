"""`POST /generate`: SGLang's native endpoint, as far as it scores a given prompt.

Unknown fields are ignored; those that would change the meaning of the answer are declared here and
refused where they are set.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from mlxscore_client.wire.common import Answer, CacheSalt, ForeignRequest, Text
from mlxscore_client.wire.one_or_each import IdsOrLists, OneOrEach


class SamplingParams(ForeignRequest):
    """SGLang's; what only shapes random sampling is ignored, since nothing is sampled."""

    max_new_tokens: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="Required: 0 or 1 (SGLang's own default is 128). The one new token is the most "
        "likely one.",
    )
    n: int | None = Field(default=None, description="1.")
    min_new_tokens: int | None = Field(default=None, description="0.")
    frequency_penalty: float | None = Field(default=None, description="0.")
    presence_penalty: float | None = Field(default=None, description="0.")
    repetition_penalty: float | None = Field(default=None, description="1.")
    # Each would change which token comes, or which logprob it has.
    logit_bias: Any = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None
    structural_tag: Any = None


class GenerateRequest(ForeignRequest):
    """Body of `POST /generate`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "input_ids": [[504, 3575, 282, 4649, 314, 7042], [504, 3575, 282]],
                    "sampling_params": {"max_new_tokens": 1, "temperature": 0},
                    "return_logprob": True,
                    "logprob_start_len": 0,
                    "top_logprobs_num": 1,
                }
            ]
        }
    )

    text: OneOrEach[Text] | None = Field(
        default=None,
        description="One prompt or several, with the special tokens that the tokenizer adds.",
    )
    input_ids: IdsOrLists | None = Field(
        default=None, description="As `text`, as token ids that are used verbatim."
    )
    cache_salt: CacheSalt = None
    sampling_params: OneOrEach[SamplingParams] | None = None
    return_logprob: OneOrEach[bool] | None = Field(
        default=None, description="Whether the answer holds logprobs; null is false."
    )
    logprob_start_len: OneOrEach[Annotated[int, Field(ge=-1)]] | None = Field(
        default=None,
        description="The prompt's tokens from this one on are answered, the first of them without a "
        "logprob. -1 and null: only the last.",
    )
    top_logprobs_num: OneOrEach[Annotated[int, Field(ge=0)]] | None = Field(
        default=None,
        description="The k most likely tokens at each position; null is 0. At most the server's "
        "`--max-logprobs`.",
    )
    token_ids_logprob: IdsOrLists | None = Field(
        default=None,
        description="The logprobs of these ids as the next token after the prompt; for the prompt's own "
        "positions they are not offered: `logprob_start_len` must be -1.",
    )
    return_text_in_logprobs: bool | None = Field(
        default=None, description="Whether an entry's third element is the token's text, not null."
    )
    rid: OneOrEach[Text] | None = Field(
        default=None,
        description="Yours; `meta_info.id`. One for a batch becomes RID_0, RID_1 and so on.",
    )
    stream: bool | None = Field(default=None, description="false.")
    # Each would change what the model reads, or what it answers.
    input_embeds: Any = None
    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    lora_path: Any = None
    session_params: Any = None
    custom_logit_processor: Any = None
    return_hidden_states: Any = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "GenerateRequest":
        given = [name for name in ("text", "input_ids") if getattr(self, name) is not None]
        if len(given) != 1:
            raise PydanticCustomError(
                "one_of",
                "give exactly one of 'text' and 'input_ids' (got {got})",
                {"got": "both" if given else "neither"},
            )
        return self

    @property
    def single(self) -> bool:
        """Whether it is one prompt, which is answered with an object and not with a list."""
        if self.text is not None:
            return isinstance(self.text, str)
        return not self.input_ids or isinstance(self.input_ids[0], int)


TokenLogprob = tuple[float | None, int, str | None]
"""Nats (null at the first place), the token's id, its text on demand."""


class FinishReason(Answer):
    """Why no more tokens came."""

    type: Literal["length"] = "length"
    length: int = Field(description="`max_new_tokens`.")


class GenerateMeta(Answer):
    """What there is to know about one prompt."""

    id: str
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = Field(description="Of the whole request: answered from a cache.")
    input_token_logprobs: list[TokenLogprob] | None = Field(
        default=None, description="From `logprob_start_len` on; with `return_logprob`."
    )
    output_token_logprobs: list[TokenLogprob] | None = Field(
        default=None, description="One entry with `max_new_tokens: 1`, else none."
    )
    input_top_logprobs: list[list[TokenLogprob] | None] | None = Field(
        default=None, description="With `top_logprobs_num`, highest first."
    )
    output_top_logprobs: list[list[TokenLogprob]] | None = None
    input_token_ids_logprobs: list[None] | None = Field(
        default=None, description="With `token_ids_logprob`: [null]."
    )
    output_token_ids_logprobs: list[list[TokenLogprob]] | None = Field(
        default=None,
        description="With `token_ids_logprob`: one entry, those ids after the prompt, also where "
        "`max_new_tokens` is 0.",
    )


class GenerateResponse(Answer):
    """Answer of `POST /generate` to one prompt; a list of them to a list of prompts."""

    text: str = Field(description="The new token's text; the prompt is not repeated.")
    output_ids: list[int] = Field(description="The new token, if one was wanted.")
    meta_info: GenerateMeta
