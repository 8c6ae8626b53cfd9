"""What both clients share: settings, the request of a call, the meaning of one answer."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import httpx

from mlxscore_client import address
from mlxscore_client.calls import Call, Limits
from mlxscore_client.errors import InvalidRequestError, InvalidResponseError, MlxscoreError
from mlxscore_client.http_errors import excerpt, status_error
from mlxscore_client.retry import Retry
from mlxscore_client.stream import MEDIA_TYPE, PATH

T = TypeVar("T")
TransportT = TypeVar("TransportT")

DEFAULT_TIMEOUT = httpx.Timeout(600.0, connect=5.0)
"""Seconds. A request waits its turn behind others before it is scored, so reading has long."""

_QUICK_SECONDS = 10.0


class Base(Generic[TransportT]):
    """A client without its I/O; `TransportT` is httpx's kind of transport."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: httpx.Timeout | float = DEFAULT_TIMEOUT,
        max_retries: int = 4,
        max_items_per_request: int = 1024,
        max_bytes_per_request: int = 2**20,
        transport: TransportT | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Reads MLXSCORE_BASE_URL and MLXSCORE_API_KEY where an argument is not given.

        `timeout` in seconds. Retries are for 429, 503 and connections that fail or break. A call
        that is larger than `max_items_per_request` (an item counts once per continuation) or
        `max_bytes_per_request` (of JSON) is sent as several requests. `transport` is httpx's.
        """
        for name, value, least in (
            ("max_retries", max_retries, 0),
            ("max_items_per_request", max_items_per_request, 1),
            ("max_bytes_per_request", max_bytes_per_request, 1),
        ):
            if value < least:
                raise InvalidRequestError(f"{name} must be at least {least}", param=name)
        self.base_url = address.base_url(base_url)
        # httpx's kind does not show the key.
        self._headers = httpx.Headers(address.headers(api_key, headers))
        self._timeout = httpx.Timeout(timeout)
        self._retry = Retry(max_retries)
        self._limits = Limits(max_items_per_request, max_bytes_per_request)
        # A proxy named in the environment cannot reach this machine's own loopback address.
        self._trust_env = not address.is_loopback(self.base_url)
        self._open(transport)

    def _open(self, transport: TransportT | None) -> None:
        raise NotImplementedError

    def _arguments(self, call: Call[Any]) -> dict[str, Any]:
        """Arguments of httpx's `request`."""
        timeout = self._timeout
        if call.quick:
            read = _QUICK_SECONDS if timeout.read is None else min(timeout.read, _QUICK_SECONDS)
            timeout = httpx.Timeout(
                connect=timeout.connect, read=read, write=timeout.write, pool=timeout.pool
            )
        arguments = {"method": call.method, "url": call.path, "timeout": timeout}
        if call.content is None:
            return arguments
        json = {"content-type": "application/json"}
        return arguments | {"content": call.content, "headers": json}

    def _stream_arguments(self, content: bytes, params: Mapping[str, str]) -> dict[str, Any]:
        """Arguments of httpx's `stream`."""
        return {
            "method": "POST",
            "url": PATH,
            "params": params,
            "content": content,
            "headers": {"content-type": MEDIA_TYPE, "accept": MEDIA_TYPE},
        }

    def _read(self, call: Call[T], response: httpx.Response) -> T:
        if not (response.is_success or response.status_code in call.also_reads):
            raise status_error(response, call.caller_path)
        try:
            return call.read(response.content)
        except ValueError as error:
            if not response.is_success:
                raise status_error(response, call.caller_path) from error
            reason = str(error).partition("\n")[0]
            raise InvalidResponseError(
                f"{response.url} did not answer as an mlxscore server does ({reason}); "
                f"is base_url right? It sent: {excerpt(response)}"
            ) from error

    def _delay(self, call: Call[Any], error: MlxscoreError, attempt: int) -> float | None:
        return self._retry.delay(error, attempt) if call.retries else None
