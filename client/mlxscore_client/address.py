"""Where the server is and what each request carries: arguments first, then the environment."""

import ipaddress
import os
import sys
from collections.abc import Mapping
from urllib.parse import urlsplit

from mlxscore_client.errors import InvalidRequestError
from mlxscore_client.version import __version__

DEFAULT_BASE_URL = "http://127.0.0.1:8000"


def base_url(given: str | None) -> str:
    """The argument, else MLXSCORE_BASE_URL, else a local server's; without a slash at the end."""
    url = (given or os.environ.get("MLXSCORE_BASE_URL") or DEFAULT_BASE_URL).strip().rstrip("/")
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise InvalidRequestError(
            f"base_url (or MLXSCORE_BASE_URL) must be like {DEFAULT_BASE_URL}, not {url!r}",
            param="base_url",
        )
    return url


def is_loopback(url: str) -> bool:
    """Whether the URL is of this very machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def headers(api_key: str | None, more: Mapping[str, str] | None) -> dict[str, str]:
    """What goes with every request; `more` has the last word. The key: else MLXSCORE_API_KEY."""
    made = {
        "accept": "application/json",
        "user-agent": f"mlxscore-client/{__version__} python/{sys.version_info.major}."
        f"{sys.version_info.minor}",
    }
    # A key read from a file often ends in a line break.
    key = (api_key or os.environ.get("MLXSCORE_API_KEY") or "").strip()
    if not (key.isascii() and (key.isprintable())):
        raise InvalidRequestError(
            "api_key (or MLXSCORE_API_KEY) must be printable ASCII", param="api_key"
        )
    if key:
        made["authorization"] = f"Bearer {key}"
    return made | {name.lower(): value for name, value in (more or {}).items()}
