"""The page in a real browser, on the real server around the fake model; at the end on the real one.

Of the fake model a byte is a token, its logprob is minus its value / 256, its rank its value + 1.
"""

import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import Opened, chromium, open_page
from fake_server import HOLD
from fakes import BOOM
from playwright.sync_api import Browser, Locator, Page, expect
from server_process import ServerProcess
from test_cli import fake_server

from mlxscore_client import Client

PHONE = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True}
Open = Callable[..., Opened]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def fake() -> Iterator[str]:
    """The address of one for all tests that only ask it."""
    with fake_server("ok") as server:
        url = server.url()
        server.until("ready")
        # A line for each request: a pipe that nobody reads would hold the server up.
        assert server.process.stderr is not None
        reader = threading.Thread(target=server.process.stderr.readlines)
        reader.start()
        yield url
        server.process.kill()
        reader.join()


@pytest.fixture
def open_at(browser: Browser) -> Iterator[Open]:
    """Pages; at the end each is asked whether it did anything that it should not."""
    opened: list[Opened] = []
    contexts: list[Any] = []

    def open_at(url: str, **options: Any) -> Opened:
        context, one = open_page(browser, url, **options)
        contexts.append(context)
        opened.append(one)
        return one

    try:
        yield open_at
        for one in opened:
            one.check()
    finally:
        for context in contexts:
            context.close()


@pytest.fixture
def opened(open_at: Open, fake: str) -> Opened:
    return open_at(fake)


def score(page: Page, text: str) -> None:
    page.get_by_label("How surprising").fill(text)
    page.locator("#text-form").get_by_role("button", name="Score").click()


def tokens(page: Page, within: str = "#mode-text") -> Locator:
    return page.locator(f"{within} .token")


def ids(page: Page, within: str = "#mode-text") -> list[int]:
    found = tokens(page, within).evaluate_all("all => all.map(one => Number(one.dataset.id))")
    assert isinstance(found, list)
    return found


def figure(page: Page, name: str, within: str = "#mode-text") -> str:
    return page.locator(f"{within} .figures div:has(> dt:text-is('{name}')) dd").inner_text()


def fact(page: Page, name: str) -> str:
    return page.locator(f"#mode-text .detail div:has(> dt:text-is('{name}')) dd").inner_text()


def test_a_text_is_typed_and_its_tokens_are_seen(opened: Opened) -> None:
    page = opened.go()
    field = page.get_by_label("How surprising")
    field.press_sequentially("Zoë")
    field.press("Control+Enter")
    expect(tokens(page)).to_have_count(4)
    assert ids(page) == list("Zoë".encode())
    given = tokens(page).evaluate_all("all => all.map(one => Number(one.dataset.logprob))")
    assert given == [-byte / 256 for byte in "Zoë".encode()]
    # The character stands where its first byte is; the second says of what it is a part.
    assert tokens(page).all_inner_texts() == ["Z", "o", "ë", "◦"]
    expect(tokens(page).nth(3)).to_have_attribute("aria-label", "part of ë: 1.0 bits, rank 172")
    assert figure(page, "model") == "bytes"
    assert figure(page, "tokens") == "4"
    assert figure(page, "computed tokens") == "4"
    assert figure(page, "cached tokens") == "0"
    assert figure(page, "time").endswith((" ms", " s"))
    assert page.locator("#model").inner_text() == "bytes"


def test_pointing_at_a_token_shows_what_the_model_thought(opened: Opened) -> None:
    page = opened.go()
    score(page, "Hm~\x00!")
    tokens(page).nth(1).hover()
    assert fact(page, "logprob") == "−0.4258 nats"  # m: 109 / 256
    assert fact(page, "surprisal") == "0.61 bits"
    assert fact(page, "probability") == "65.3%"
    assert fact(page, "rank") == "110"
    assert fact(page, "token id") == "109"
    assert fact(page, "bytes") == "6D"
    bars = page.locator("#mode-text .bars li")
    expect(bars).to_have_count(6)  # the five likeliest, and the token itself
    assert bars.locator(".rank").all_inner_texts() == ["1", "2", "3", "4", "5", "110"]
    assert bars.locator(".quoted").all_inner_texts() == ["␀", "␁", "␂", "␃", "␄", "m"]
    widths = bars.locator(".bar span").evaluate_all(
        "all => all.map(one => parseFloat(one.style.width))"
    )
    assert widths == pytest.approx(
        [100 * math.exp(-n / 256) for n in (0, 1, 2, 3, 4, 109)], abs=1e-3
    )
    expect(bars.nth(5)).to_have_class("own")
    # One of the likeliest itself: no row more.
    tokens(page).nth(3).hover()
    expect(bars).to_have_count(5)
    expect(bars.nth(0)).to_have_class("own")


def test_arrow_keys_go_from_token_to_token(opened: Opened) -> None:
    page = opened.go()
    score(page, "abc\ndef")
    expect(tokens(page)).to_have_count(7)
    tab_stops = page.locator("#mode-text .token[tabindex='0']")
    page.get_by_role("button", name="Score").first.focus()
    # The examples' three links lie in between.
    for _ in range(4):
        page.keyboard.press("Tab")
    for key, wanted in [
        ("Home", "a"),
        ("ArrowLeft", "a"),
        ("ArrowRight", "b"),
        ("ArrowDown", "e"),
        ("ArrowDown", "e"),
        ("End", "f"),
        ("ArrowRight", "f"),
        ("ArrowUp", "c"),
    ]:
        page.keyboard.press(key)
        focused = page.locator("#mode-text .token:focus")
        expect(focused).to_have_attribute("data-id", str(ord(wanted)))
        expect(focused).to_have_attribute("aria-selected", "true")
        expect(tab_stops).to_have_count(1)
        assert fact(page, "token id") == str(ord(wanted))


def test_a_finger_does_what_a_pointer_does_and_nothing_is_wider_than_a_phone(
    open_at: Open, fake: str
) -> None:
    opened = open_at(fake, **PHONE)
    page = opened.go("#text=" + quote("word " * 30 + "w" * 400))
    tokens(page).nth(6).tap()
    assert fact(page, "token id") == str(ord("o"))
    expect(page.locator("#mode-text .detail")).to_be_in_viewport()
    for tab in ("Compare", "JSONL", "Text"):
        page.get_by_role("tab", name=tab).tap()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_continuations_are_compared(opened: Opened) -> None:
    page = opened.go()
    page.get_by_role("tab", name="Compare").click()
    page.get_by_label("Which continuation").fill("The")
    page.get_by_label("Continuation 1", exact=True).fill(" b")
    page.get_by_label("Continuation 1", exact=True).press("Enter")
    page.keyboard.type(" a")  # the new one, which Enter has made
    page.get_by_label("Remove continuation 3").click()
    page.get_by_role("button", name="Add one").click()
    page.get_by_label("Continuation 3", exact=True).fill("!")
    page.get_by_role("button", name="Compare").click()
    rows = page.locator(".compared li")
    expect(rows).to_have_count(3)
    assert rows.evaluate_all("all => all.map(one => one.dataset.text)") == ["!", " a", " b"]
    scores = [-33 / 256, -(32 + 97) / 256, -(32 + 98) / 256]
    found = rows.evaluate_all("all => all.map(one => Number(one.dataset.loglikelihood))")
    assert found == pytest.approx(scores)
    total = sum(math.exp(one) for one in scores)
    shares = [math.exp(one) / total for one in scores]
    assert rows.locator(".share").all_inner_texts() == [f"{100 * one:.1f}%" for one in shares]
    widths = rows.locator(".bar span").evaluate_all(
        "all => all.map(one => parseFloat(one.style.width))"
    )
    assert widths == pytest.approx([100 * one for one in shares], abs=1e-3)
    assert "p 87.9% · −0.129 nats · 1 token" in rows.first.inner_text()
    assert ids(page, "#mode-compare") == [33, 32, 97, 32, 98]
    tokens(page, "#mode-compare").nth(2).hover()
    expect(page.locator("#mode-compare .detail")).to_contain_text(
        "token id\n97", use_inner_text=True
    )
    assert page.url.endswith("#context=The&continuation=%20b&continuation=%20a&continuation=!")


def test_a_missing_space_is_pointed_out(opened: Opened) -> None:
    page = opened.go("#context=The&continuation=cat")
    hint = page.get_by_role("button", name="no space before it")
    hint.click()
    expect(hint).to_be_hidden()
    expect(page.get_by_label("Continuation 1", exact=True)).to_have_value(" cat")


def test_lines_become_a_table_and_a_file(opened: Opened) -> None:
    opened.expects_errors = True
    page = opened.go()
    page.get_by_role("tab", name="JSONL").click()
    lines = [
        '{"id": "q1", "context": "a", "continuations": ["b", "c"]}',
        "",
        "no json",
        '{"context": "a", "continuation": "\\u0003"}',  # on which the model fails
        "[1]",
        '{"id": "q2", "context": "a"}',
        '{"text": "<b>whole</b>"}\r',
    ]
    page.get_by_label("Items of").fill("\n".join(lines))
    page.locator("#lines-form").get_by_role("button", name="Score").click()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(7)
    texts = [row.replace("\t", "|") for row in rows.all_inner_texts()]
    assert texts[0] == "1|q1|b|−0.3828|1|"
    assert texts[1] == "1|q1|c|−0.3867|1|"
    assert texts[2].startswith("3||is not JSON: ")
    assert texts[3].startswith("4||") and texts[3].endswith(" continuation")
    assert texts[4] == "5||must be a JSON object"
    assert texts[5].startswith("6|q2|") and "continuations" in texts[5]
    assert texts[6].startswith("7||<b>whole</b>|")
    assert not any("items[" in text for text in texts)
    assert figure(page, "lines", "#mode-lines") == "2 lines scored, 4 failed"
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download").click()
    written = Path(waiting.value.path()).read_text("utf-8").splitlines()
    entries = [json.loads(line) for line in written]
    assert [entry["index"] for entry in entries] == list(range(6))
    assert [entry.get("id") for entry in entries] == ["q1", None, None, None, "q2", None]
    assert ["scores" in entry for entry in entries] == [True, False, False, False, False, True]
    assert entries[2]["error"]["code"] == "scoring_failed"
    assert [one["loglikelihood"] for one in entries[0]["scores"]] == [-98 / 256, -99 / 256]


def test_many_lines_go_in_several_requests_and_a_file_can_be_chosen(opened: Opened) -> None:
    page = opened.go()
    page.get_by_role("tab", name="JSONL").click()
    lines = [json.dumps({"id": str(i), "context": "a", "continuation": "b"}) for i in range(700)]
    page.get_by_label("or a file").set_input_files(
        {"name": "x.jsonl", "mimeType": "text/plain", "buffer": "\n".join(lines).encode()}
    )
    page.locator("#lines-form").get_by_role("button", name="Score").click()
    expect(page.get_by_text("200 more rows are in the download.")).to_be_visible()
    assert figure(page, "lines", "#mode-lines") == "700 lines scored, 0 failed"
    assert len([url for url in opened.requests if url.endswith("/score")]) == 22


def test_a_link_is_scored_at_once_and_the_address_is_a_link(opened: Opened) -> None:
    page = opened.go("#text=a%20%26%20b%2B%0A1")
    expect(tokens(page)).to_have_count(8)
    assert bytes(ids(page)) == b"a & b+\n1"
    expect(page.get_by_label("How surprising")).to_have_value("a & b+\n1")
    score(page, "100% #new?")
    expect(tokens(page)).to_have_count(10)
    page.reload()
    expect(tokens(page)).to_have_count(10)
    assert bytes(ids(page)) == b"100% #new?"
    # Another link in the open page.
    page.evaluate("location.hash = '#context=x&continuation=%20y%0Az&continuation=w'")
    expect(page.locator(".compared li")).to_have_count(2)
    expect(page.get_by_role("tab", name="Compare")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_label("Continuation 1", exact=True)).to_have_value(" y\nz")
    for fragment in ("#text=", "#context=x", "#nothing", "#%", "#continuation=a"):
        opened.go()
        page.evaluate("hash => { location.hash = hash }", fragment)
    expect(page.locator(".compared li")).to_have_count(1)


HOSTILE = [
    "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">",
    "a\u202egnirts\u202c b \u2067isolated\u2069 \u200f\u061c\ufeff",
    "العربية עברית and English",
    "👩‍👩‍👧‍👦 👍🏽 e\u0301 \U0001f1e9\U0001f1ea 𝒳",
    "tab\tnbsp\u00a0nul\x00del\x7fvt\x0b ls\u2028ps\u2029 nel\x85",
    "{{7*7}} ${1} %s \\u0041 '\"`; -- &lt;",
    "\n\n  \n",
    " ",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text(opened: Opened, text: str) -> None:
    page = opened.go("#text=" + quote(text))
    expect(tokens(page)).to_have_count(len(text.encode()))
    assert bytes(ids(page)) == text.encode()
    assert page.title() == "mlxscore"
    assert page.locator("main img, main script").count() == 0
    shown = "".join(tokens(page).evaluate_all("all => all.map(one => one.textContent)"))
    # Nothing that turns what stands around it, and nothing without a width.
    assert not set(shown) & set(
        "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f"
    )
    assert all(
        width > 0 for width in tokens(page).evaluate_all("all => all.map(one => one.offsetWidth)")
    )
    if text.isprintable():
        assert shown.replace("◦", "").replace("·", " ") == text
    page.get_by_role("tab", name="Compare").click()
    page.get_by_label("Which continuation").fill(text)
    page.get_by_label("Continuation 1", exact=True).fill(text)
    page.get_by_label("Remove continuation 2").click()
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".compared li")).to_have_count(1)
    page.get_by_role("tab", name="JSONL").click()
    page.get_by_label("Items of").fill(json.dumps({"id": text, "text": text}))
    page.locator("#lines-form").get_by_role("button", name="Score").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert page.title() == "mlxscore"


def test_the_policy_refuses_html_and_inline_code(opened: Opened) -> None:
    page = opened.go()
    refused = page.evaluate(
        "() => { try { document.body.innerHTML = '<p>'; return 'put in' } catch (e) { return e.name } }"
    )
    assert refused == "TypeError"
    # The console says why: that is what was asked for here.
    assert any("TrustedHTML" in line for line in opened.console)
    opened.console.clear()


def test_right_to_left_lines_do_not_turn_the_others(opened: Opened) -> None:
    page = opened.go("#text=" + quote("abc\nאבג\nxyz"))
    expect(tokens(page)).to_have_count(14)

    def lefts(ids: str) -> list[float]:
        found = tokens(page).evaluate_all(
            "(all, ids) => ids.map(id => all.find(one => one.textContent === id))"
            ".map(one => one.getBoundingClientRect().left)",
            list(ids),
        )
        assert isinstance(found, list)
        return found

    for line in ("abc", "xyz"):
        assert lefts(line) == sorted(lefts(line))
    assert lefts("אבג") == sorted(lefts("אבג"), reverse=True)


def test_a_long_text_is_shown_whole_and_the_page_still_answers(opened: Opened) -> None:
    text = "".join(f"line {i}: wörds and more wörds of a long text\n" for i in range(1100))[:50_000]
    page = opened.go()
    score(page, text)
    expect(tokens(page)).to_have_count(len(text.encode()), timeout=120_000)
    tokens(page).nth(10).click()
    page.keyboard.press("End")
    expect(page.locator("#mode-text .token:focus")).to_have_attribute(
        "data-id", str(text.encode()[-1])
    )
    expect(page.locator("#mode-text .token:focus")).to_be_in_viewport()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Home")
    assert fact(page, "token id") == str(ord("l"))
    # Too long for an address.
    assert page.url == opened.url + "/"


def test_errors_are_shown_at_the_field_that_they_are_about(opened: Opened) -> None:
    opened.expects_errors = True
    page = opened.go()
    page.locator("#text-form").get_by_role("button", name="Score").click()
    field = page.get_by_label("How surprising")
    expect(field).to_have_attribute("aria-invalid", "true")
    said = page.locator("#text-form .fault")
    expect(said).to_contain_text("items[0].text")
    expect(said).to_have_role("alert")
    assert field.get_attribute("aria-describedby") == said.get_attribute("id")
    score(page, "fine")
    expect(tokens(page)).to_have_count(4)
    expect(said).to_have_count(0)
    score(page, chr(BOOM))
    expect(said).to_contain_text("the model failed")
    assert page.locator("[aria-invalid]").count() == 1

    page.get_by_role("tab", name="Compare").click()
    page.get_by_label("Which continuation").fill("x")
    page.get_by_label("Continuation 1", exact=True).fill("fine")
    page.get_by_role("button", name="Compare").click()
    said = page.locator("#compare-form .fault")
    expect(said).to_contain_text("items[0].continuations[1]")
    expect(page.get_by_label("Continuation 2", exact=True)).to_have_attribute(
        "aria-invalid", "true"
    )
    page.get_by_label("Continuation 2", exact=True).fill("y" * 2000)
    page.get_by_role("button", name="Compare").click()
    expect(said).to_contain_text("1000")  # the model's limit
    expect(page.get_by_label("Continuation 2", exact=True)).to_have_attribute(
        "aria-invalid", "true"
    )

    page.get_by_role("tab", name="JSONL").click()
    page.locator("#lines-form").get_by_role("button", name="Score").click()
    expect(page.locator("#lines-form .fault")).to_have_text("There is no line yet.")


def test_a_server_that_is_gone_or_talks_nonsense(opened: Opened) -> None:
    opened.expects_errors = True
    page = opened.go()
    page.route("**/score", lambda route: route.abort())
    score(page, "x")
    said = page.locator("#text-form .fault")
    expect(said).to_have_text("The server does not answer. Is it still running?")
    page.unroute("**/score")
    page.route("**/score", lambda route: route.fulfill(status=502, body="<h1>Bad Gateway</h1>"))
    score(page, "x")
    expect(said).to_have_text("the server answered with status 502")
    page.unroute("**/score")
    page.route("**/score", lambda route: route.fulfill(status=200, body="<h1>Welcome</h1>"))
    score(page, "x")
    expect(said).to_have_text("The server's answer broke off, or is no JSON.")


def test_what_takes_long_can_be_stopped(open_at: Open) -> None:
    with fake_server("ok") as server:
        opened = open_at(server.url())
        page = opened.go()
        score(page, chr(HOLD))
        server.until("held")
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        server.let_go()
        score(page, "after")
        expect(tokens(page)).to_have_count(5)
        assert page.locator(".fault").count() == 0


def test_a_link_waits_for_the_model(open_at: Open) -> None:
    with fake_server("slow") as server:
        opened = open_at(server.url())
        opened.expects_errors = True
        page = opened.go("#text=patience")
        expect(page.locator("#model")).to_contain_text("loading")
        server.let_go()
        expect(tokens(page)).to_have_count(8)
        expect(page.locator("#model")).to_have_text("bytes")


KEY = "a-key-that-is-long-enough"


def test_an_api_key_is_asked_for_where_one_is_needed(open_at: Open) -> None:
    with fake_server("ok", "--api-key", KEY) as server:
        opened = open_at(server.url())
        server.until("ready")
        opened.expects_errors = True
        page = opened.go("#text=locked")
        field = page.locator("#key").get_by_label("API key")
        expect(field).to_be_focused()
        said = page.locator("#key-said")
        expect(said).to_contain_text("an API key is needed")
        for wrong, why in (
            ("wrong-key", "not known here"),
            ("two words", "no spaces"),
            ("ключ", "ASCII"),
        ):
            field.fill(wrong)
            field.press("Enter")
            expect(said).to_contain_text(why)
        assert axe(page) == []
        field.fill(f" {KEY} ")
        page.get_by_role("button", name="Use this key").click()
        expect(tokens(page)).to_have_count(6)
        expect(field).to_be_hidden()
        expect(page.locator("#model")).to_have_text("bytes")
        # Kept for this tab, and nowhere else.
        kept = "[JSON.stringify(localStorage), document.cookie, location.href, document.body.textContent]"
        assert KEY not in str(page.evaluate(kept))
        page.reload()
        expect(tokens(page)).to_have_count(6)
        expect(field).to_be_hidden()
        other = page.context.new_page()
        other.goto(opened.url)
        expect(other.locator("#key")).to_be_visible()


def axe(page: Page) -> list[str]:
    found = Axe().run(page)
    return [
        f"{one['id']}: {node['html'][:200]} {node.get('failureSummary')}"
        for one in found.response["violations"]
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("size", [{}, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(open_at: Open, fake: str, scheme: str, size: dict[str, Any]) -> None:
    opened = open_at(fake, color_scheme=scheme, **size)
    opened.expects_errors = True
    page = opened.go()
    assert axe(page) == []
    score(page, "Some <b>text</b> with ë, ש and 👍\n\tof two lines \u202e")
    expect(page.locator("#mode-text .result")).to_be_visible()
    # All steps of the scale, which the fake model's even answers do not reach.
    page.evaluate(
        "document.querySelectorAll('#mode-text .token').forEach((one, index) => {"
        "  one.className = `token step${index % 8}` })"
    )
    assert axe(page) == []
    page.locator("#text-input").fill("")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".fault")).to_be_visible()
    page.evaluate("document.getElementById('key').hidden = false")
    assert axe(page) == []
    page.goto(opened.url + "/#context=The%20cat&continuation=%20sat&continuation=s")
    page.reload()
    expect(page.locator(".compared li")).to_have_count(2)
    assert axe(page) == []
    page.get_by_role("tab", name="JSONL").click()
    page.get_by_role("button", name="three items").click()
    page.get_by_label("Items of").press("End")
    page.get_by_label("Items of").press_sequentially("\nno json")
    page.get_by_label("Items of").press("Control+Enter")
    expect(page.locator("tbody tr.failed").first).to_be_visible()
    assert axe(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colours_can_be_told_apart_without_hue(open_at: Open, fake: str, scheme: str) -> None:
    page = open_at(fake, color_scheme=scheme).go("#text=x")
    legend = page.locator("#mode-text .legend li")
    expect(legend).to_have_count(8)
    colours = legend.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")

    def lightness(colour: str) -> float:
        """CIE L*, 0 to 100."""
        parts = [int(part) / 255 for part in colour.removeprefix("rgb(").rstrip(")").split(",")]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        y = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y

    steps = [lightness(colour) for colour in colours]
    away = -1 if scheme == "light" else 1
    assert all((b - a) * away > 3 for a, b in pairwise(steps)), steps


def test_docs_need_nothing_from_elsewhere_and_send_requests(open_at: Open, fake: str) -> None:
    opened = open_at(fake)
    page = opened.page
    page.goto(opened.url + "/docs")
    expect(page.locator(".opblock-summary-path", has_text="/score").first).to_be_visible()
    page.locator("#operations-default-health_health_get .opblock-summary-control").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".live-responses-table .response-col_status").last).to_contain_text("200")


def test_docs_behind_a_key_open_with_it_as_the_password(open_at: Open) -> None:
    with fake_server("ok", "--api-key", KEY) as server:
        opened = open_at(server.url(), http_credentials={"username": "any", "password": KEY})
        server.until("ready")
        opened.expects_errors = True
        opened.page.goto(opened.url + "/docs")
        paths = opened.page.locator(".opblock-summary-path", has_text="/score")
        expect(paths.first).to_be_visible()


def copied(page: Page, within: str, name: str) -> str:
    page.locator(within).get_by_role("button", name=name).click()
    expect(page.locator("#said")).to_have_text("Copied")
    page.evaluate("document.getElementById('said').textContent = ''")
    found = page.evaluate("navigator.clipboard.readText()")
    assert isinstance(found, str)
    return found


AWKWARD = 'It\'s "5 < 6" & $HOME `id` !! \\n\n\u202e👍 end'


def test_what_is_copied_gives_the_same_numbers(open_at: Open, fake: str) -> None:
    opened = open_at(fake, permissions=["clipboard-read", "clipboard-write"])
    page = opened.go("#text=" + quote(AWKWARD))
    expect(tokens(page)).to_have_count(len(AWKWARD.encode()))

    def sh(command: str) -> Any:
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def python(code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    logprobs = [-byte / 256 for byte in AWKWARD.encode()]
    command = copied(page, "#mode-text", "Copy as curl")
    assert "\u202e" not in command and len(command.splitlines()) == 1
    answer = sh(command)["results"][0]["scores"][0]
    assert [token["logprob"] for token in answer["tokens"]] == logprobs
    lines = python(copied(page, "#mode-text", "Copy as Python")).splitlines()
    assert [float(line.rpartition("  rank")[0].split()[-1]) for line in lines] == pytest.approx(
        logprobs, abs=1e-4
    )
    link = copied(page, "#mode-text", "Copy link")

    comparison = f"#context={quote(AWKWARD)}&continuation={quote(AWKWARD)}&continuation=x"
    page.evaluate("hash => { location.hash = hash }", comparison)
    expect(page.locator(".compared li")).to_have_count(2)
    found = sh(copied(page, "#mode-compare", "Copy as curl"))["results"][0]["scores"]
    assert found[1]["loglikelihood"] == pytest.approx(-ord("x") / 256)
    lines = python(copied(page, "#mode-compare", "Copy as Python")).splitlines()
    assert (
        lines[0].split() == ["-0.4688", "'x'"] and AWKWARD.encode("unicode_escape")[:4] == b"It's"
    )

    page.get_by_role("tab", name="JSONL").click()
    page.get_by_label("Items of").fill(json.dumps({"text": AWKWARD}))
    page.get_by_label("Items of").press("Control+Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert sh(copied(page, "#mode-lines", "Copy as curl"))["results"][0]["index"] == 0
    assert python(copied(page, "#mode-lines", "Copy as Python")).startswith("0 [")

    page.goto("about:blank")
    page.goto(link)
    expect(tokens(page)).to_have_count(len(AWKWARD.encode()))


def test_without_a_clipboard_it_can_be_copied_by_hand(opened: Opened) -> None:
    opened.page.add_init_script(
        "Object.defineProperty(navigator, 'clipboard', { value: undefined })"
    )
    page = opened.go("#text=x")
    page.get_by_role("button", name="Copy as curl").click()
    area = page.get_by_role("dialog").get_by_role("textbox")
    expect(area).to_be_focused()
    assert area.input_value().startswith("curl -s 'http://127.0.0.1:")
    page.get_by_role("button", name="Close").click()
    expect(area).to_be_hidden()


def test_the_real_model(open_at: Open, server: ServerProcess) -> None:
    text = "The old dog buried its bone. 日本語 and 👍\nEnd."
    opened = open_at(server.url)
    page = opened.go("#text=" + quote(text))
    with Client(server.url) as client:
        result = client.score_items([{"text": text}], return_tokens=True).results[0]
        wanted = result.scores[0].tokens or []
        expect(tokens(page)).to_have_count(len(wanted))
        assert ids(page) == [token.id for token in wanted]
        found = tokens(page).evaluate_all("all => all.map(one => Number(one.dataset.logprob))")
        assert found == pytest.approx([token.logprob for token in wanted], abs=1e-4)
        shown = "".join(tokens(page).evaluate_all("all => all.map(one => one.textContent)"))
        assert shown.replace("◦", "").replace("↵\n", "\n") == text

        page.evaluate(
            "location.hash = '#context=The%20capital%20of%20France%20is"
            "&continuation=%20London&continuation=%20Paris'"
        )
        rows = page.locator(".compared li")
        expect(rows).to_have_count(2)
        assert rows.evaluate_all("all => all.map(one => one.dataset.text)") == [" Paris", " London"]
        paris = client.score("The capital of France is", [" Paris"])[0]
        value = float(rows.first.get_attribute("data-loglikelihood") or "nan")
        assert value == pytest.approx(paris.loglikelihood, abs=1e-4)
        assert "the model’s own choice" in rows.first.inner_text()
