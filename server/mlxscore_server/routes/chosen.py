"""What the options of a request for scores make of its items; the same for `/score` and its streams."""

from collections.abc import Sequence

from mlxscore_client import wire
from mlxscore_server.chat import ChatOptions
from mlxscore_server.names import ScoreNames
from mlxscore_server.pairs import EncodedItem, encode_items
from mlxscore_server.refusals import check_top
from mlxscore_server.resident import Loaded
from mlxscore_server.routes.models import check_name
from mlxscore_server.row import Row
from mlxscore_server.settings import Settings
from mlxscore_server.whole_text import EncodedText
from mlxscore_server.windows import Windowing


class Chosen:
    """The options, checked."""

    def __init__(self, options: wire.ScoreOptions, loaded: Loaded, settings: Settings) -> None:
        """Raises InvalidRequest and ModelNotFound."""
        self._options, self._encoder = options, loaded.encoder
        self._max_tokens = settings.max_queued_tokens
        card, k = loaded.card, options.top_logprobs
        check_name(options.model, card, "model")
        check_top(k, "top_logprobs", max_logprobs=settings.max_logprobs, vocab_size=card.vocab_size)
        self._windowing = Windowing.of(
            options.window,
            options.stride,
            limit=loaded.encoder.max_model_len,
            prefix_in_every=options.prefix_in == "every",
            max_overlapping=self._max_tokens,
        )
        self.ranks = options.return_tokens or k > 0 or options.space_logprobs
        """Whether answers hold tokens."""

    def encode(
        self, items: Sequence[wire.ScoreItem], names: Sequence[ScoreNames] | None = None
    ) -> list[EncodedItem | EncodedText]:
        """See `encode_items`."""
        options = self._options
        return encode_items(
            self._encoder,
            items,
            add_special_tokens=options.add_special_tokens,
            boundary=options.boundary,
            truncation=options.truncation,
            chat=ChatOptions.of(options),
            max_tokens=self._max_tokens,
            windowing=self._windowing,
            names=names,
        )

    def rows(self, item: EncodedItem | EncodedText, salt: bytes = b"") -> list[Row]:
        """An item's rows, in the order of its parts."""
        among = self._encoder.space_ids if self._options.space_logprobs else None
        return [
            Row(
                part.ids,
                part.start,
                top_logprobs=self._options.top_logprobs,
                ranks=self.ranks,
                among=among,
                salt=salt,
            )
            for part in item.parts
        ]
