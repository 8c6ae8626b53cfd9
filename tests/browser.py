"""A real browser for tests of the page: Chromium as the system has it, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    # Nothing that the browser wants for itself may be taken for a request of the page.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_browser() -> str | None:
    """Chromium's or Chrome's path: the one that MLXSCORE_BROWSER names, else one of the usual."""
    named = os.environ.get("MLXSCORE_BROWSER")
    found = [shutil.which(name) for name in ([named] if named else [*_NAMES, _MAC])]
    return next((path for path in found if path), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with an empty profile; skips the tests where there is none.

    asyncio.run does not work in this thread meanwhile.
    """
    path = find_browser()
    if path is None:
        pytest.skip(
            "there is no Chromium (./scripts/browser installs it where it may; MLXSCORE_BROWSER=path "
            "names one): the page was not tested"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page, and all that it did: complaints in the console, requests to anywhere."""

    page: Page
    url: str
    console: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])
    expects_errors: bool = False
    """Chromium writes each answer of 400 and above to the console."""

    def go(self, fragment: str = "") -> Page:
        self.page.goto(self.url + "/" + fragment)
        return self.page

    def check(self) -> None:
        """Nothing went wrong, and nothing went elsewhere."""
        own = (self.url + "/", f"blob:{self.url}", "data:")
        assert [url for url in self.requests if not url.startswith(own)] == []
        said = [
            line
            for line in self.console
            if not (self.expects_errors and line.startswith("error: Failed to load resource"))
        ]
        assert said == []


def open_page(browser: Browser, url: str, **options: Any) -> tuple[BrowserContext, Opened]:
    """A fresh page that is told of; `options` as of Playwright's new_context."""
    context = browser.new_context(**options)
    context.set_default_timeout(30_000)
    page = context.new_page()
    opened = Opened(page, url)

    def note(request: Request) -> None:
        opened.requests.append(request.url)

    page.on("console", lambda message: opened.console.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: opened.console.append(f"uncaught: {error}"))
    page.on("request", note)
    return context, opened
