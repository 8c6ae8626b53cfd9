"""The server as lm_eval's class sees it: one model, and scores of units, many requests at a time."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from mlxscore_client.client import Client
from mlxscore_client.lm_eval.units import Unit, packed
from mlxscore_client.version import __version__

Scored = tuple[float, bool]
"""Loglikelihood in nats, and whether each token is the model's first choice."""

_AUTO_ROWS = 256
_NO_LIMIT_LENGTH = 2048  # what lm_eval takes where a model states no limit


class Service:
    """One model on one server."""

    def __init__(
        self,
        client: Client,
        *,
        model: str | None,
        batch_size: int | str,
        max_batch_size: int | None,
        num_concurrent: int,
    ) -> None:
        """Raises ValueError where the server has another model, or an argument makes no sense."""
        self.client = client
        (self.card,) = client.models().data
        if model is not None and model != self.card.id:
            raise ValueError(f"{client.base_url} serves {self.card.id!r}, not model={model}")
        self.rows = _rows(batch_size, max_batch_size)
        if num_concurrent < 1:
            raise ValueError(f"num_concurrent={num_concurrent} is not at least 1")
        self.threads = num_concurrent
        # In order of appearance, without repetition.
        self._fingerprints = {self.card.system_fingerprint: None}

    def max_length(self, asked: int | None) -> int:
        """Tokens that the model reads at most: a row's last id is only ever a target, never read."""
        limit = self.card.max_model_len
        if limit is None:
            return _NO_LIMIT_LENGTH if asked is None else asked
        if asked is not None and not 1 <= asked < limit:
            raise ValueError(
                f"max_length={asked} is not from 1 to {limit - 1}: {self.card.id!r} takes rows of "
                f"{limit} tokens (max_model_len) and reads all but the last"
            )
        return limit - 1 if asked is None else asked

    def score(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, list[Scored]]]:
        """Each unit with its rows' scores, as they come in. The first error ends it."""
        with ThreadPoolExecutor(self.threads) as pool:
            waiting = {pool.submit(self._ask, pack): pack for pack in packed(units, self.rows)}
            try:
                for done in as_completed(list(waiting)):
                    scores = iter(done.result())
                    for unit in waiting.pop(done):
                        yield unit, [next(scores) for _ in range(unit.rows)]
            finally:
                pool.shutdown(cancel_futures=True)

    def _ask(self, pack: list[Unit]) -> list[Scored]:
        items = [item for unit in pack for item in unit.items]
        # By name: another model that has taken this one's place must not answer.
        response = self.client.score_items(items, model=self.card.id)
        self._fingerprints[response.system_fingerprint] = None
        return [(s.loglikelihood, s.is_greedy) for r in response.results for s in r.scores]

    def info(self) -> dict[str, Any]:
        """For lm_eval's results file. Of replicas that differ, all fingerprints, with `+` between."""
        return {
            "served_model": self.card.id,
            "model_dtype": self.card.dtype,
            "head_dtype": self.card.head_dtype,
            "quantization": self.card.quantization,
            "max_model_len": self.card.max_model_len,
            "system_fingerprint": "+".join(self._fingerprints),
            "mlxscore_client_version": __version__,
        }


def _rows(batch_size: int | str, most: int | None) -> int:
    if str(batch_size).startswith("auto"):
        return min(_AUTO_ROWS, most or _AUTO_ROWS)
    rows = int(batch_size)
    if rows < 1:
        raise ValueError(f"batch_size={batch_size} is not at least 1")
    return rows
