"""How surprising a text is, token by token and word by word: -log p, in nats or bits."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from mlxscore_client import calls
from mlxscore_client.calls import Job, Limits
from mlxscore_client.helpers import asked
from mlxscore_client.helpers.choices import one_of
from mlxscore_client.helpers.result import Result, Steps
from mlxscore_client.helpers.words import corrected, words
from mlxscore_client.wire import ScoreResponse, TokenizeResponse, TokenScore
from mlxscore_client.wire.frames import frame
from mlxscore_client.wire.heat_map import Cell, heat_map

if TYPE_CHECKING:
    from pandas import DataFrame

Unit = Literal["nats", "bits"]


class TokenSurprisal(Result):
    """One token."""

    id: int
    text: str = Field(description="U+FFFD where it is part of a character.")
    surprisal: float
    rank: int = Field(description="1 + the number of tokens that are strictly more likely.")


class WordSurprisal(Result):
    """One word: what stands between white space."""

    text: str
    surprisal: float = Field(
        description="Of its tokens together; with the correction where stated."
    )
    first_token: int = Field(description="Place of its first token.")
    num_tokens: int


class Surprisal(Result):
    """One text's."""

    unit: Unit
    bow_correction: bool = Field(
        description="Whether words are corrected for tokens that begin with a space."
    )
    surprisal: float = Field(description="Of all tokens together.")
    tokens: list[TokenSurprisal]
    words: list[WordSurprisal]

    def to_frame(self, by: Literal["word", "token"] = "word") -> "DataFrame":
        """A pandas frame with a row a word, or a row a token. Raises ImportError without pandas."""
        one_of(by, Literal["word", "token"], "by")
        rows: Sequence[Result] = self.words if by == "word" else self.tokens
        return frame([row.model_dump() for row in rows])

    def _repr_html_(self) -> str:
        """In notebooks: the tokens coloured by surprisal."""
        scale = 1.0 if self.unit == "bits" else 1.0 / math.log(2)
        cells = [Cell(token.text, scale * token.surprisal, token.rank) for token in self.tokens]
        return heat_map(cells, title=f"{self.surprisal:.4f} {self.unit}")


def surprisal(
    texts: str | Iterable[str],
    *,
    unit: Unit,
    bow_correction: bool,
    model: str | None,
    limits: Limits,
) -> Steps[list[Surprisal]]:
    """See `Client.surprisal`; a list also of one text."""
    one_of(unit, Unit, "unit")
    given = asked.texts(texts, "texts")
    if not given:
        return []
    options: dict[str, Any] = {"return_tokens": True, "model": model}
    items: list[dict[str, Any]] = [{"text": text} for text in given]
    if bow_correction:
        encoded: list[TokenizeResponse] = yield _tokenized(given)
        # What may come after the text is read off one more token, whichever that is: its own first is
        # one that every model has.
        items = [{"ids": [*one.tokens, *one.tokens[:1]]} for one in encoded]
        options["space_logprobs"] = True
    response: ScoreResponse = yield asked.score(
        items, options, limits, lambda at, _field, _which: f"texts[{at}]"
    )
    found = [result.scores[0].tokens or [] for result in response.results]
    return [_of(tokens, unit, bow_correction) for tokens in found]


def _tokenized(texts: Sequence[str]) -> Job[list[TokenizeResponse]]:
    def named(at: int) -> Callable[[str], str]:
        def caller_path(path: str) -> str:
            return f"texts[{at}]" if path == "prompt" else path

        return caller_path

    return Job((calls.tokenize(text, False, named(i)) for i, text in enumerate(texts)), list)


def _of(tokens: Sequence[TokenScore], unit: Unit, bow_correction: bool) -> Surprisal:
    scale = -1.0 if unit == "nats" else -1.0 / math.log(2)
    spaces: list[float] = []
    if bow_correction:
        # None where the tokenizer has no tokens that begin with a space: there is nothing to correct.
        spaces = [token.space_logprob for token in tokens if token.space_logprob is not None]
        bow_correction = len(spaces) == len(tokens)
        tokens = tokens[:-1]
    pieces = [bytes(token.bytes) for token in tokens]
    logprobs = [token.logprob for token in tokens]
    of_words = corrected(pieces, logprobs, spaces) if bow_correction else logprobs
    return Surprisal(
        unit=unit,
        bow_correction=bow_correction,
        surprisal=scale * math.fsum(logprobs),
        tokens=[
            TokenSurprisal(id=t.id, text=t.text, surprisal=scale * t.logprob, rank=t.rank)
            for t in tokens
        ],
        words=[
            WordSurprisal(
                text=word.text,
                surprisal=scale * math.fsum(of_words[word.first : word.last]),
                first_token=word.first,
                num_tokens=word.last - word.first,
            )
            for word in words(pieces)
        ],
    )
