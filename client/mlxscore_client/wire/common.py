"""What all bodies share: texts, token ids, strictness, errors. Knows no endpoint.

Our own requests are strict: an unknown field is an error with a hint, a token id is an integer and
nothing that merely converts to one. Answers are lenient on reading (a newer server may add fields).
"""

from difflib import get_close_matches
from typing import Annotated, Any, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

MAX_TOKEN_ID = 2**31 - 1
"""The largest id that any model can have; the server's own bound is its embedding's row count."""

TokenId = Annotated[int, Field(strict=True, ge=0, le=MAX_TOKEN_ID)]

# Not strict, so that a tuple is a list too; the ids in it stay strict.
Ids = Annotated[list[TokenId], Field(strict=False, fail_fast=True)]
"""Token ids, used verbatim."""


def _encodable(value: str) -> str:
    # Python strings can hold halves of a surrogate pair; UTF-8, and so JSON, cannot.
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError(
            "lone_surrogate",
            "holds a lone surrogate ({half}) at character {place}, which no text can hold",
            {"half": ascii(value[error.start]), "place": error.start},
        ) from error
    return value


Text = Annotated[str, AfterValidator(_encodable)]
"""A string that can be written as UTF-8."""


def _text_or_ids(value: Any) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if isinstance(value, list | tuple):
        return "<ids>"
    return None


# Branches of a union are tagged so that an error's path names the field and not the branch: no field has
# such a name.
UNION_TAGS = frozenset({"<text>", "<texts>", "<ids>", "<id_lists>", "<one>", "<each>"})

TextOrIds = Annotated[
    Annotated[Text, Tag("<text>")] | Annotated[Ids, Tag("<ids>")],
    Discriminator(
        _text_or_ids,
        custom_error_type="text_or_ids",
        custom_error_message="must be a text (string) or a list of token ids (integers)",
    ),
]
"""A text, or token ids that are used verbatim."""


class Request(BaseModel):
    """Base of what a client sends: no unknown fields, and a misspelt name gets a hint."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        fields = cast(dict[Any, Any], data)
        known = list(cls.model_fields)
        for name in fields:
            if name not in cls.model_fields:
                near = get_close_matches(str(name)[:60], known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise PydanticCustomError(
                    "unknown_field",
                    "unknown field {name}; {hint}",
                    {"name": repr(name), "hint": hint},
                )
        return fields


CacheSalt = Annotated[
    Annotated[Text, Field(min_length=1, max_length=1024)] | None,
    Field(
        description="What is kept of this request's prefixes serves only requests with the same salt: "
        "who does not know it cannot learn from the time of an answer that a text was scored before."
    ),
]
"""A field of every request for scores (vLLM's name)."""


class ForeignRequest(BaseModel):
    """Base of what clients of other servers send: fields that we do not know are ignored.

    Each such name is logged once. A field that would change the meaning of the answer is declared,
    and refused where it is set.
    """

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())


class Answer(BaseModel):
    """Base of what a server sends: fields that this version does not know are kept, not refused."""

    model_config = ConfigDict(extra="allow")


class Usage(Answer):
    """Tokens counted."""

    prompt_tokens: int = Field(
        description="Tokens of all rows (context + continuation), after truncation."
    )
    total_tokens: int
    computed_tokens: int = Field(
        description="Tokens really sent through the model for this request."
    )
    cached_tokens: int = Field(description="Tokens answered from a cache.")


class ErrorBody(Answer):
    """What went wrong."""

    message: str
    type: str
    param: str | None = Field(
        default=None, description="The field, such as `items[3].continuations[1]`."
    )
    code: str | None = None


class ErrorResponse(Answer):
    """Every error, of every endpoint."""

    error: ErrorBody
