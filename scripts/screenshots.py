"""Pictures of the page, by a real browser on the real server with the default model."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from browser import FLAGS, find_browser  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
MOST_BYTES = 150_000

TEXT = (
    "In the summer of 1816, a young woman named Mary Shelley was staying by a lake in Switzerland when she "
    "began to write a recipe for onion soup.\n"
    "They told each other ghost stories instead 👻, and one of them became a novel."
)
COMPARED = (
    "The keys to the old cabinet",
    [" are on the table.", " is on the table.", " was on the table.", " table the on are."],
)
LINES = """{"id": "capital", "context": "The capital of France is", "continuations": [" Paris", " London"]}
{"id": "water", "messages": [{"role": "user", "content": "Is water wet?"}], "continuations": ["Yes", "No"]}
{"id": "typo", "context": "The capital of France is", "continuatoin": " Paris"}
{"id": "river", "text": "The river rises in the hills and comes to the sea."}"""
DESK = {"viewport": {"width": 940, "height": 640}}
PHONE = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True}


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with server() as url, sync_playwright() as playwright:
        path = find_browser()
        if path is None:
            sys.exit("there is no Chromium here: scripts/browser installs it where it may")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        for scheme in ("light", "dark"):
            take(browser, url, text, f"text-{scheme}", color_scheme=scheme, **DESK)
            take(browser, url, compare, f"compare-{scheme}", color_scheme=scheme, **DESK)
            take(browser, url, lines, f"jsonl-{scheme}", color_scheme=scheme, **DESK)
        take(browser, url, text, "text-phone", color_scheme="light", **PHONE)
        take(browser, url, compare, "compare-phone", color_scheme="dark", **PHONE)
        take(browser, url, lines, "jsonl-phone", color_scheme="light", **PHONE)
        browser.close()


def text(page: Page, url: str) -> None:
    page.goto(f"{url}/#text={quote(TEXT)}")
    page.locator("#mode-text .token", has_text="recipe").click()


def compare(page: Page, url: str) -> None:
    context, continuations = COMPARED
    fragment = "".join(f"&continuation={quote(one)}" for one in continuations)
    page.goto(f"{url}/#context={quote(context)}{fragment}")
    page.locator(".compared li").first.locator(".token").first.click()


def lines(page: Page, url: str) -> None:
    page.goto(url)
    page.get_by_role("tab", name="JSONL").click()
    page.get_by_label("Items of").fill(LINES)
    page.get_by_label("Items of").press("Control+Enter")
    page.locator("#mode-lines .figures").wait_for()
    page.get_by_label("Items of").evaluate("one => one.blur()")


def take(browser: Browser, url: str, show: Any, name: str, **options: Any) -> None:
    context = browser.new_context(**options)
    page = context.new_page()
    show(page, url)
    target = PICTURES / f"{name}.png"
    page.evaluate("window.scrollTo(0, 0)")
    phone = options["viewport"]["width"] < 500
    page.screenshot(path=target, full_page=not phone)
    if phone:
        page.locator(".result:visible").evaluate("one => one.scrollIntoView()")
        page.screenshot(path=target)
    context.close()
    size = target.stat().st_size
    if size > MOST_BYTES:
        sys.exit(f"{target} has {size:,} bytes: more than a document should bring along")
    print(target.relative_to(ROOT), f"{size:,} bytes")


@contextmanager
def server() -> Iterator[str]:
    """The server on a free port; its address."""
    command = [sys.executable, "-m", "mlxscore_server.cli", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = ""
        try:
            for line in process.stderr:
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    url = found[0]
                if "ready:" in line:
                    break
            yield url
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
