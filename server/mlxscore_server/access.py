"""Who is let in, looked at before anything of a body is read: the request's framing, its host, its key."""

import base64
import binascii
from collections.abc import Container

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mlxscore_server.envelope import respond
from mlxscore_server.errors import HostNotAllowed, InvalidApiKey, InvalidRequest, MlxscoreError
from mlxscore_server.hosts import AllowedHosts
from mlxscore_server.keys import Keys

OPEN_PATHS = frozenset({"/health", "/health/", "/ready", "/ready/"})
"""What supervisors ask, under whatever name and without a key: the answers say nothing else."""

_PAGES = frozenset({"/docs", "/openapi.json"})
"""What people open in a browser, which can send no header of theirs: it asks them for a password."""


class Access:
    """ASGI middleware: refuses who has no business here, and says who all others are.

    Sets `state.tenant`: the name of the API key, None where none is needed.
    """

    def __init__(
        self, app: ASGIApp, keys: Keys, hosts: AllowedHosts, page_paths: Container[str] = ()
    ) -> None:
        """`page_paths`: files that are the same for everybody; a page must be there to ask for a key."""
        self._app, self._keys, self._hosts, self._page_paths = app, keys, hosts, page_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                tenant = self._admit(scope)
            except MlxscoreError as error:
                return await respond(error)(scope, receive, send)
            scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> str | None:
        headers, path = Headers(scope=scope), str(scope["path"])
        _check_framing(headers, str(scope["http_version"]))
        if path in OPEN_PATHS:
            return None
        if not self._hosts.allow(headers.get("host")):
            raise HostNotAllowed(
                f"this server does not answer to the name {headers.get('host', '')[:100]!r} (in the Host "
                "header); --allowed-hosts lets it"
            )
        if not self._keys or path in self._page_paths:
            return None
        presented = _presented(headers, path)
        name = self._keys.name_of(presented)
        if name is None:
            known = "this API key is not known here" if presented else "an API key is needed"
            error = InvalidApiKey(f"{known}: Authorization: Bearer KEY, or X-API-Key: KEY")
            if path in _PAGES:
                basic = 'Basic realm="mlxscore: the API key is the password"'
                error.challenges = (basic, *error.challenges)
            raise error
        return name


def _check_framing(headers: Headers, http_version: str) -> None:
    """Refuse what two parsers may cut into requests at different places."""
    if "transfer-encoding" not in headers:
        return
    if "content-length" in headers:
        raise InvalidRequest(
            "a request must not have both Content-Length and Transfer-Encoding", code="invalid_http"
        )
    if http_version == "1.0":
        raise InvalidRequest("HTTP/1.0 has no Transfer-Encoding", code="invalid_http")


def _presented(headers: Headers, path: str) -> list[str]:
    """The keys that a request shows."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    found: list[str] = []
    if scheme.lower() == "bearer":
        found.append(credentials.strip())
    elif scheme.lower() == "basic" and path in _PAGES:
        try:
            decoded = base64.b64decode(credentials, validate=True).decode("latin-1")
        except binascii.Error:
            decoded = ""
        found.append(decoded.partition(":")[2])
    if given := headers.get("x-api-key"):
        found.append(given.strip())
    return found
