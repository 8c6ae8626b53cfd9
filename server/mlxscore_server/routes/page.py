"""`GET /` and `GET /docs`: pages for people, and the files they consist of; nothing from elsewhere."""

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

router = APIRouter(include_in_schema=False)

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_CLOSED = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_OWN = f"{_CLOSED}; script-src 'self'; style-src 'self'; connect-src 'self'"
_POLICIES = {
    # Trusted types: a browser that knows them refuses text that is put in as HTML.
    "page": f"{_OWN}; img-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'",
    # Swagger UI draws its icons from data: addresses.
    "docs_page": f"{_OWN}; img-src 'self' data:",
}
_HEADERS = {
    # Asked for anew each time, answered with 304 unless the server was updated.
    "Cache-Control": "no-cache",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _File(NamedTuple):
    """A file of a folder of this package."""

    folder: str
    name: str


def _paths() -> dict[str, _File]:
    found = {"/": _File("page", "index.html"), "/docs": _File("docs_page", "docs.html")}
    for folder, prefix in (("page", "/page/"), ("docs_page", "/docs/")):
        for entry in files("mlxscore_server").joinpath(folder).iterdir():
            if entry.name.endswith((".css", ".js", ".svg")):
                found[prefix + entry.name] = _File(folder, entry.name)
    return found


_FILES = _paths()

PATHS = frozenset(_FILES) - {"/docs"}
"""What a browser must get without an API key before it can ask a person for one. /docs has no field for a
key: the browser itself asks, and sends along what it was told when the page fetches /openapi.json."""


@cache
def _content(file: _File) -> tuple[bytes, str]:
    """The bytes, and their ETag."""
    content = files("mlxscore_server").joinpath(file.folder, file.name).read_bytes()
    return content, f'"{sha256(content).hexdigest()[:32]}"'


# Four names for all files in metrics and the log.
@router.api_route("/", methods=["GET", "HEAD"])
@router.api_route("/page/{name}", methods=["GET", "HEAD"])
@router.api_route("/docs", methods=["GET", "HEAD"])
@router.api_route("/docs/{name}", methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    """A file, or 304 to who has it already."""
    file = _FILES.get(request.scope["path"])
    if file is None:
        raise HTTPException(404)
    content, tag = _content(file)
    headers = _HEADERS | {"ETag": tag, "Content-Security-Policy": _POLICIES[file.folder]}
    held = request.headers.get("if-none-match", "").split(",")
    if {part.strip().removeprefix("W/") for part in held} & {tag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=_TYPES[file.name.rpartition(".")[2]])
