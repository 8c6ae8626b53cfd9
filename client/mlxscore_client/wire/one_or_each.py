"""What SGLang's requests give once for all their prompts, or in a list with one for each."""

from typing import Annotated, Any, TypeVar

from pydantic import Discriminator, Field, Tag

from mlxscore_client.wire.common import Ids

T = TypeVar("T")


def _one_or_each(value: Any) -> str:
    return "<each>" if isinstance(value, list | tuple) else "<one>"


def _ids_or_lists(value: Any) -> str | None:
    if not isinstance(value, list | tuple):
        return None
    # The first element says what the others have to be: an error then names the one that is not.
    first: object = value[0] if value else None  # pyright: ignore[reportUnknownVariableType]
    return "<each>" if isinstance(first, list | tuple) else "<one>"


OneOrEach = Annotated[
    Annotated[T, Tag("<one>")]
    | Annotated[list[T], Field(strict=False, fail_fast=True), Tag("<each>")],
    Discriminator(_one_or_each),
]
"""One value for all prompts, or a list with one for each prompt."""

IdsOrLists = Annotated[
    Annotated[Ids, Tag("<one>")]
    | Annotated[list[Ids], Field(strict=False, fail_fast=True), Tag("<each>")],
    Discriminator(
        _ids_or_lists,
        custom_error_type="ids_or_lists",
        custom_error_message="must be a list of token ids (integers) or a list of such lists",
    ),
]
"""Token ids once, or a list of lists of them."""
