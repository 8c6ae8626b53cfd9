"""By which names a server may be asked for, and whose pages may ask. Knows no HTTP.

A page of any site can give its own name the address 127.0.0.1 (DNS rebinding) and then read what a
server there answers, as if it were its own. But the browser still says which name it asked for.
"""

import ipaddress
import re
from collections.abc import Sequence

from mlxscore_server.errors import StartupError

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{0,5})?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s,*]+|null|\*")
_PATTERN = re.compile(r"(\*\.)?[A-Za-z0-9._-]+|\[?[0-9A-Fa-f:.]+\]?|\*")


def check_origins(given: Sequence[str]) -> None:
    """Raise StartupError for what no browser would ever send as its origin: it would allow nothing."""
    for origin in given:
        if not _ORIGIN.fullmatch(origin):
            raise StartupError(
                f"--cors-origins {origin!r}: give origins such as https://app.example.com, without a path, "
                "or *"
            )


class AllowedHosts:
    """Names that a Host header may hold, with any port. Those of this very machine always."""

    def __init__(self, given: Sequence[str] | None, bound_to: str) -> None:
        """`given`: --allowed-hosts; None: loopback names only where that is all that is listened on."""
        for name in given or ():
            if not _PATTERN.fullmatch(name):
                raise StartupError(
                    f"--allowed-hosts {name!r}: give names without a port, such as score.example.com, "
                    "*.example.com or *"
                )
        names = [_plain(name) for name in given or ()]
        self._any = "*" in names or (given is None and not is_loopback(bound_to))
        self._names = frozenset(name for name in names if not name.startswith("*."))
        self._endings = tuple(name[1:] for name in names if name.startswith("*."))

    def allow(self, header: str | None) -> bool:
        """Whether a request with this Host header may be answered; None: it has none."""
        if self._any:
            return True
        match = _HOST.fullmatch(header or "")
        if match is None:
            return False
        name = _plain(match[1])
        return is_loopback(name) or name in self._names or name.endswith(self._endings)


def is_loopback(host: str) -> bool:
    """Whether this name or address is of this very machine and out of reach for all others."""
    try:
        return ipaddress.ip_address(_plain(host)).is_loopback
    except ValueError:
        return _plain(host) == "localhost"


def _plain(name: str) -> str:
    return name.lower().rstrip(".").removeprefix("[").removesuffix("]")
