"""Prompts with a chosen and a rejected completion, tokenized as TRL's DPOTrainer does it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from mlxscore_client import calls
from mlxscore_client.calls import MODELS, Call, Job
from mlxscore_client.errors import InvalidRequestError
from mlxscore_client.helpers import asked
from mlxscore_client.helpers.result import Conversation, Steps
from mlxscore_client.wire import ModelList, TokenizeResponse

Prompt = str | Sequence[int] | Conversation
"""Also a completion: a text, token ids or messages."""
Kind = Literal["text", "messages", "ids"]

PARTS = ("prompt", "chosen", "rejected")


@dataclass(frozen=True)
class Names:
    """What errors call a pair's parts: as arguments, or as columns."""

    one: bool

    def __call__(self, pair: int, part: int) -> str:
        return PARTS[part] if self.one else f"{PARTS[part]}[{pair}]"


def triples(*parts: Any) -> tuple[list[tuple[Any, ...]], Names]:
    """(prompt, chosen, rejected) of each pair, and what errors call them. Raises InvalidRequestError."""
    if is_one(parts[0]):
        return [parts], Names(True)
    for part, name in zip(parts, PARTS, strict=True):
        if isinstance(part, str | bytes) or not isinstance(part, Iterable):
            raise InvalidRequestError(f"{name}: must be a list, as prompt is", param=name)
    columns = [list(cast(Iterable[Any], part)) for part in parts]
    for column, name in zip(columns[1:], PARTS[1:], strict=True):
        if len(column) != len(columns[0]):
            raise InvalidRequestError(
                f"{name}: has {len(column)} entries and prompt {len(columns[0])}; one each is needed",
                param=name,
            )
    return list(zip(*columns, strict=True)), Names(False)


def is_one(prompt: Any) -> bool:
    """Whether this is one prompt (a text, ids, a conversation), and not a list of them."""
    return _kind(prompt) is not None


def _kind(given: Any) -> Kind | None:
    if isinstance(given, str):
        return "text"
    if asked.is_conversation(given):
        return "messages"
    if isinstance(given, Sequence) and given and isinstance(cast(Sequence[Any], given)[0], int):
        return "ids"
    return None


def encoded(given: Sequence[Sequence[Any]], names: Names) -> Steps[list[list[list[int]]]]:
    """For each pair the ids of the prompt, of prompt + chosen and of prompt + rejected."""
    asked_for: list[Call[TokenizeResponse]] = []
    kinds: list[Kind] = []
    for i, triple in enumerate(given):
        kind = _kind(triple[0])
        if kind is None:
            param = names(i, 0)
            raise InvalidRequestError(
                f"{param}: must be a text, messages or token ids, and not empty ids", param=param
            )
        kinds.append(kind)
        for part in (1, 2):
            # Ids of an empty completion have no first one to tell them by.
            if _kind(triple[part]) != kind and not (kind == "ids" and triple[part] == []):
                param = names(i, part)
                raise InvalidRequestError(f"{param}: must be {kind}, as the prompt is", param=param)
        if kind != "ids":
            asked_for += _calls(triple, kind, i, names)
    found: list[TokenizeResponse] = yield Job(asked_for, list)
    eos: int | None = None
    if "text" in kinds:
        models: ModelList = yield Job((MODELS,), lambda answers: answers[0])
        eos = models.data[0].eos_token_id
    left = iter(found)
    made: list[list[list[int]]] = []
    for triple, kind in zip(given, kinds, strict=True):
        if kind == "ids":
            head, *ends = (list(cast(Sequence[int], part)) for part in triple)
            made.append([head, *(head + end for end in ends)])
            continue
        head, *wholes = (next(left).tokens for _ in PARTS)
        if kind == "text" and eos is not None:
            wholes = [ids if ids[-1:] == [eos] else [*ids, eos] for ids in wholes]
        made.append([head, *wholes])
    return made


def _calls(triple: Sequence[Any], kind: Kind, i: int, names: Names) -> list[Call[TokenizeResponse]]:
    def named(part: int) -> Callable[[str], str]:
        def caller_path(path: str) -> str:
            return names(i, part) if path in ("prompt", "messages") else path

        return caller_path

    if kind == "text":
        head = cast(str, triple[0])
        whole = [head, *(head + cast(str, end) for end in triple[1:])]
        return [calls.tokenize(text, True, named(part)) for part, text in enumerate(whole)]
    turns = [*cast(Sequence[Any], triple[0])]
    return [
        calls.tokenize_messages(turns, True, named(0)),
        *(
            calls.tokenize_messages(
                [*turns, *cast(Sequence[Any], triple[part])], False, named(part)
            )
            for part in (1, 2)
        ),
    ]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the longest common prefix."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return min(len(one), len(other))
