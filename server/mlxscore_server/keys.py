"""API keys: read once, compared in constant time, known afterwards by their names. Knows no HTTP."""

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from mlxscore_server.errors import StartupError

_KEY = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_LINE = re.compile(r"([A-Za-z0-9._-]{1,64}):sha256:([0-9a-fA-F]{64})")


class Keys:
    """The keys that open this server. Holds their digests, never the keys themselves."""

    def __init__(self, digests: dict[bytes, str]) -> None:
        self._digests = digests
        """Of each key, the name it goes by: in the log, for fairness, for what is kept of its requests."""

    @staticmethod
    def read(given: Iterable[str], file: Path | None) -> "Keys":
        """Keys as they are and keys as a file of digests. Raises StartupError, which holds none of them."""
        digests = {} if file is None else _read_file(file)
        for key in given:
            if not _KEY.fullmatch(key):
                raise StartupError(
                    "--api-key (MLXSCORE_API_KEY): a key must be printable ASCII without spaces and "
                    "commas, and not empty"
                )
            digest = _digest(key)
            # Not the digest's own beginning: that stands in files, and a name stands in logs.
            digests.setdefault(digest, f"key-{hashlib.sha256(b'name' + digest).hexdigest()[:12]}")
        return Keys(digests)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def name_of(self, presented: Sequence[str]) -> str | None:
        """The name of the first of these keys that is known; None where none is."""
        found: str | None = None
        for key in presented:
            digest = _digest(key)
            # Every one is compared, to the end: the time tells nothing about how near a guess was.
            for known, name in self._digests.items():
                if hmac.compare_digest(known, digest) and found is None:
                    found = name
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _read_file(path: Path) -> dict[bytes, str]:
    where = f"--api-key-file {path}"
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError as error:
        raise StartupError(f"{where}: {error.strerror or type(error).__name__}") from None
    found: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        # Never what stands there: it may be a key that somebody has put into the wrong place.
        if match is None:
            raise StartupError(f"{where}, line {number}: must be NAME:sha256:HEX, 64 digits of HEX")
        name, digest = match[1], bytes.fromhex(match[2])
        if name in found.values() or digest in found:
            what = "name" if name in found.values() else "key"
            raise StartupError(f"{where}, line {number}: an earlier line has the same {what}")
        found[digest] = name
    if not found:
        raise StartupError(f"{where}: there is no key in it")
    return found
