"""A conversation as the one text that the model's chat template makes of it. Knows no HTTP, no MLX.

The template is the model's own and runs in jinja's sandbox (transformers' `apply_chat_template`).
It ends when it ends: what bounds it is the size of a request.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from mlxscore_client import wire
from mlxscore_server.errors import InvalidRequest

_MAX_MESSAGE = 300  # characters of what a template says: one may quote all of the conversation

# Beside the parameters of `apply_chat_template`: names that it gives to the template itself.
_TAKEN = frozenset({"conversations", "messages", "self"})


@dataclass(frozen=True)
class ChatOptions:
    """How conversations are rendered."""

    add_generation_prompt: bool = True
    """Whether what makes the model answer comes after the last message."""
    continue_final_message: bool = False
    """Whether the last message is left open."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More variables for the template."""

    @staticmethod
    def of(request: wire.ScoreOptions | wire.TokenizeRequest) -> "ChatOptions":
        """As a request says."""
        return ChatOptions(
            request.add_generation_prompt,
            request.continue_final_message,
            request.chat_template_kwargs or {},
        )


class Chat:
    """A tokenizer's chat template. Safe to use from several threads at once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def template(self) -> str | None:
        """The template's source; None where there is none, or several and none is the default."""
        try:
            found: object = self._tokenizer.get_chat_template()
        except (AttributeError, NotImplementedError, ValueError):
            return None
        return found if isinstance(found, str) else None

    def render(
        self, messages: Sequence[Mapping[str, Any]], options: ChatOptions, param: str = "messages"
    ) -> str:
        """The conversation's text, special tokens written out. Raises InvalidRequest."""
        if self.template is None:
            raise InvalidRequest(
                f"{param}: this model has no chat template; render the conversation yourself and send "
                "the text",
                param=param,
            )
        self._check_kwargs(options.template_kwargs)
        plain = [_message(message, f"{param}[{i}]") for i, message in enumerate(messages)]
        try:
            rendered: object = self._tokenizer.apply_chat_template(
                plain,
                tokenize=False,
                add_generation_prompt=options.add_generation_prompt,
                continue_final_message=options.continue_final_message,
                **options.template_kwargs,
            )
        except Exception as error:  # a template may raise anything at all, over what it was given
            raise InvalidRequest(
                f"{param}: the model's chat template refuses them: {_said(error)}", param=param
            ) from error
        assert isinstance(rendered, str), "this is a bug: one conversation is one text"
        return rendered

    def _check_kwargs(self, given: Mapping[str, Any]) -> None:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(
            self._tokenizer.apply_chat_template
        ).parameters
        for name in given:
            # These decide where the template comes from and what becomes of its text.
            if name in _TAKEN or name in parameters:
                param = "chat_template_kwargs"
                if name.isidentifier():
                    param += f".{name}"
                raise InvalidRequest(
                    f"chat_template_kwargs must not hold {name!r}: it is for the template's own variables",
                    param=param,
                )


def _message(message: Mapping[str, Any], param: str) -> dict[str, Any]:
    """A message with its content as one text. What else it holds is the template's business."""
    _text(message, "role", param)
    content: object = message.get("content")
    if content is None and message.get("tool_calls"):
        return dict(message)
    if not isinstance(content, list):
        return {**message, "content": _text(message, "content", param)}
    parts = cast(list[object], content)
    texts = [_part(part, f"{param}.content[{i}]") for i, part in enumerate(parts)]
    return {**message, "content": "".join(texts)}


def _part(part: object, param: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(
            f'{param} must be an object: {{"type": "text", "text": "..."}}', param=param
        )
    fields = cast(dict[str, Any], part)
    kind = _text(fields, "type", param)
    if kind != "text":
        raise InvalidRequest(
            f'{param}.type is {kind[:60]!r}; only parts of type "text" can be scored',
            param=f"{param}.type",
        )
    return _text(fields, "text", param)


def _text(fields: Mapping[str, Any], name: str, param: str) -> str:
    value: object = fields.get(name)
    if isinstance(value, str):
        return value
    place = f"{param}.{name}"
    if value is None:
        raise InvalidRequest(f"{place} is required", param=place)
    also = ' or a list of {"type": "text", "text": "..."}' if name == "content" else ""
    raise InvalidRequest(f"{place} must be a text (string){also}", param=place)


def _said(error: Exception) -> str:
    """What went wrong, without Python's part in it where the template speaks for itself."""
    text = " ".join(str(error).split())
    if len(text) > _MAX_MESSAGE:
        text = f"{text[:_MAX_MESSAGE]}..."
    # jinja's own errors; ValueError is what transformers raises for what it refuses.
    if text and (type(error).__module__.startswith("jinja2") or isinstance(error, ValueError)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
