"""The page's files as the server gives them: headers, what they may load, what a wheel holds of them."""

import re
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fakes import Running, with_app

from mlxscore_server.routes.page import PATHS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "server" / "mlxscore_server" / "page"
DOCS = ROOT / "server" / "mlxscore_server" / "docs_page"


class Loads(HTMLParser):
    """What a document makes a browser load, and what in it a strict policy would refuse."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.addresses += [given[n] or "" for n in ("src", "href", "action") if n in given]
        self.inline += [n for n in given if n == "style" or n.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)


def policy_of(header: str) -> dict[str, str]:
    return dict(part.strip().partition(" ")[::2] for part in header.split(";"))


@pytest.mark.parametrize("path", sorted(PATHS | {"/docs"}))
def test_each_file_has_its_headers_and_needs_to_be_sent_only_once(path: str) -> None:
    async def use(app: Running) -> None:
        response = await app.client.get(path)
        assert response.status_code == 200 and response.content
        kinds = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
        kind = kinds.get(path.rpartition(".")[2], "text/html")
        assert response.headers["content-type"].partition(";")[0] == kind
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert response.headers["cache-control"] == "no-cache"
        policy = policy_of(response.headers["content-security-policy"])
        for name in ("default-src", "base-uri", "form-action", "frame-ancestors"):
            assert policy.pop(name) == "'none'"
        for name in ("script-src", "style-src", "connect-src"):
            assert policy.pop(name) == "'self'"
        docs = path.startswith("/docs")
        assert policy.pop("img-src") == ("'self' data:" if docs else "'self'")
        trusted = {"require-trusted-types-for": "'script'", "trusted-types": "'none'"}
        assert policy == ({} if docs else trusted)

        tag = response.headers["etag"]
        for known in (tag, f"W/{tag}", f'"another", {tag}', "*"):
            again = await app.client.get(path, headers={"If-None-Match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
        changed = await app.client.get(path, headers={"If-None-Match": '"another"'})
        assert changed.status_code == 200

        head = await app.client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(response.content))
        assert (await app.client.post(path)).status_code == 405

    with_app(use)


def test_the_paths_that_need_no_key_are_the_pages_own() -> None:
    """All that the two pages load is among them, and nothing else is."""
    assert {"/", "/page/main.js", "/page/theme.css", "/docs/swagger-ui-bundle.js"} <= PATHS
    files = {f"/page/{f.name}" for f in PAGE.iterdir() if f.suffix != ".html"}
    assert {path for path in PATHS if path.startswith("/page/")} == files
    for document in (PAGE / "index.html", DOCS / "docs.html"):
        loads = Loads(document.read_text("utf-8"))
        assert loads.inline == []
        pages = [at for at in loads.addresses if not at.startswith("#") and at != "openapi.json"]
        assert len(pages) >= 4
        # The link to /docs is none that is followed without being asked.
        assert {f"/{at}" for at in pages if at != "docs"} <= PATHS
    for script in PAGE.glob("*.js"):
        imported = re.findall(r'(?:from|import) "(.*?)"', script.read_text("utf-8"))
        assert {f"/page/{name.removeprefix('./')}" for name in imported} <= PATHS, script.name


def test_the_files_need_no_key_but_the_servers_right_name() -> None:
    async def use(app: Running) -> None:
        for path in sorted(PATHS):
            assert (await app.client.get(path)).status_code == 200, path
        elsewhere = await app.client.get("/", headers={"Host": "rebound.example"})
        assert elsewhere.status_code == 421
        for path in ("/v1/models", "/docs", "/openapi.json", "/page/nowhere.js"):
            assert (await app.client.get(path)).status_code == 401, path

    with_app(use, api_key=["a-key-that-is-long-enough"])


def test_no_file_outside_the_folders_can_be_asked_for() -> None:
    async def use(app: Running) -> None:
        for path in (
            "/page/",
            "/page/index.html",
            "/page/../cli.py",
            "/page/%2e%2e/cli.py",
            "/docs/docs.html",
            "/docs/LICENSE",
            "/page/main.js/",
        ):
            assert (await app.client.get(path)).status_code == 404, path

    with_app(use)


def test_our_files_name_no_other_place_and_put_no_html_in() -> None:
    ours = [*PAGE.iterdir(), DOCS / "docs.html", DOCS / "docs.js"]
    assert len(ours) > 20
    for file in ours:
        text = file.read_text("utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?:|\"//|'//|\burl\(|@import", text), file.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
    for file in DOCS.glob("*.css"):
        # Swagger UI's style sheet draws its icons itself.
        addresses = re.findall(r"url\(([^)]{,20})", file.read_text("utf-8"))
        assert all(at.strip("\"'").startswith("data:") for at in addresses), addresses


def test_a_wheel_holds_them_and_the_licence_of_what_is_not_ours(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    for folder in (PAGE, DOCS):
        for file in folder.iterdir():
            assert f"mlxscore_server/{folder.name}/{file.name}" in held
    assert "mlxscore_server/docs_page/LICENSE" in held
