"""Lines of a stream to rows, and their scores to lines. Knows no HTTP, no engine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from pydantic_core import from_json, to_json

from mlxscore_client import wire
from mlxscore_server.body import parse
from mlxscore_server.engine import Scored
from mlxscore_server.errors import BodyTooLarge, InvalidRequest, MlxscoreError, ScoringFailed
from mlxscore_server.lines import Line
from mlxscore_server.names import ScoreNames
from mlxscore_server.pairs import EncodedItem
from mlxscore_server.refusals import check_rows
from mlxscore_server.resident import Loaded
from mlxscore_server.routes.answer import ScoreAnswer
from mlxscore_server.routes.chosen import Chosen
from mlxscore_server.row import Row
from mlxscore_server.settings import Settings
from mlxscore_server.whole_text import EncodedText


@dataclass(frozen=True)
class Item:
    """A line that has been understood."""

    index: int
    asked: wire.ScoreItem
    encoded: EncodedItem | EncodedText
    rows: Sequence[Row]


@dataclass(frozen=True)
class Refused:
    """A line that has no scores."""

    index: int
    id: str | None
    error: MlxscoreError

    def to_line(self) -> bytes:
        error = self.error
        body: dict[str, object] = {"index": self.index}
        if self.id is not None:
            body["id"] = self.id
        body["error"] = error_body(error)
        return to_json(body) + b"\n"


def error_body(error: MlxscoreError) -> dict[str, str | None]:
    """An error as every answer has it."""
    return {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }


class Part:
    """Items that are scored together: about one micro-batch."""

    def __init__(self, asking: "Asking", items: Sequence[Item]) -> None:
        self._asking, self.items = asking, items
        self.rows = [row for item in items for row in item.rows]
        request = wire.ScoreRequest.model_construct(
            items=[item.asked for item in items], top_logprobs=asking.options.top_logprobs
        )
        self._answer = ScoreAnswer(
            asking.loaded.card,
            asking.loaded.encoder.pieces,
            request,
            [item.encoded for item in items],
            self.rows,
        )

    @property
    def numbers(self) -> int:
        """About how many numbers its lines hold."""
        return self._answer.numbers

    def apart(self) -> "list[Part]":
        """Each item as a part of its own."""
        return [Part(self._asking, [item]) for item in self.items]

    def to_lines(self, scored: Scored) -> list[tuple[int, bytes]]:
        """Each item's index and line."""
        lines: list[tuple[int, bytes]] = []
        at = 0
        for place, item in enumerate(self.items):
            try:
                result = self._answer.result(place, at, scored.scores)
                line = to_json(result | {"index": item.index}) + b"\n"
            except MlxscoreError as error:
                line = self._refusal(item, error)
            lines.append((item.index, line))
            at += len(item.rows)
        return lines

    def refused(self, error: ScoringFailed) -> tuple[int, bytes]:
        """Of a part of one item: that it has no scores."""
        (item,) = self.items
        if error.row is not None:
            error.param = self._answer.param(error.row)
        return item.index, self._refusal(item, error)

    def _refusal(self, item: Item, error: MlxscoreError) -> bytes:
        if error.param is not None:  # the line is all that its sender knows of
            error.param = error.param.partition("].")[2] or None
        return Refused(item.index, item.asked.id, error).to_line()


class Asking:
    """What all lines of a stream have in common."""

    def __init__(
        self, options: wire.StreamOptions, loaded: Loaded, settings: Settings, salt: bytes
    ) -> None:
        """Raises InvalidRequest and ModelNotFound, as `/score` does."""
        self.options, self.loaded = options, loaded
        self._settings, self._salt = settings, salt
        self._chosen = Chosen(options, loaded, settings)

    def weight(self, line: Line) -> int:
        """Bytes, by which lines in memory are counted: their own, or a part of what their answers take.

        A byte of text makes up to 25 bytes of tokens as JSON, and so much again for each alternative."""
        return line.size * (3 * (1 + self.options.top_logprobs) if self._chosen.ranks else 1)

    def understand(self, lines: Sequence[Line]) -> tuple[list[Part], list[Refused]]:
        """Off the event loop."""
        asked: list[tuple[int, wire.ScoreItem]] = []
        refused: list[Refused] = []
        for line in lines:
            if line.data is None:
                refused.append(Refused(line.index, None, self._too_long()))
                continue
            try:
                item = parse(
                    wire.ScoreItem,
                    line.data,
                    max_rows=self._settings.max_rows_per_request,
                    called="the line",
                )
            except InvalidRequest as error:
                refused.append(Refused(line.index, _id(line.data), error))
            else:
                asked.append((line.index, item))
        items: list[Item] = []
        try:
            items = self._encode(asked)
        except MlxscoreError:
            for one in asked:
                try:
                    items += self._encode([one])
                except MlxscoreError as error:
                    refused.append(Refused(one[0], one[1].id, error))
        return list(self._parts(items)), refused

    def _too_long(self) -> MlxscoreError:
        limit = self._settings.max_request_bytes
        return BodyTooLarge(
            f"the line has more than {limit} bytes, the limit (--max-request-bytes)"
        )

    def _encode(self, asked: Sequence[tuple[int, wire.ScoreItem]]) -> list[Item]:
        items = [item for _, item in asked]
        encoded = self._chosen.encode(items, [ScoreNames("", item) for item in items])
        return [
            Item(index, item, made, self._rows(made))
            for (index, item), made in zip(asked, encoded, strict=True)
        ]

    def _rows(self, encoded: EncodedItem | EncodedText) -> list[Row]:
        check_rows(len(encoded.parts), self._settings.max_rows_per_request)
        return self._chosen.rows(encoded, self._salt)

    def _parts(self, items: Sequence[Item]) -> Iterator[Part]:
        some: list[Item] = []
        left = most = self.loaded.scorer.max_batch_tokens
        for item in items:
            tokens = sum(row.num_inputs for row in item.rows)
            if some and tokens > left:
                yield Part(self, some)
                some, left = [], most
            some.append(item)
            left -= tokens
        if some:
            yield Part(self, some)


def _id(data: bytes) -> str | None:
    """That of an item that is wrong, where it can be told."""
    try:
        found: object = from_json(data)
    except ValueError:
        return None
    given = cast(dict[str, object], found).get("id") if isinstance(found, dict) else None
    return given if isinstance(given, str) else None
