"""The helpers over the byte model, whose every answer is known: formulas, words, refusals; what is sent.

A byte is a token whose logprob is minus its value / 256.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from html.parser import HTMLParser
from typing import Any

import httpx
import numpy as np
import pytest
from fakes import BOOM, Running, among, loglikelihood, running

from mlxscore_client import AsyncClient, InternalServerError, InvalidRequestError, MlxscoreError
from mlxscore_client.helpers.words import corrected, words
from mlxscore_client.wire import ScoreRequest, ScoreResponse
from mlxscore_client.wire.heat_map import Cell, heat_map

SPACE = float(among(np.array([ord(" ")])))


def ask(use: Callable[[AsyncClient], Awaitable[Any]], **settings: Any) -> Any:
    """What `use` makes of a client of the real application."""

    async def main() -> Any:
        async with running(**settings) as app:
            transport = httpx.ASGITransport(app.app)
            async with AsyncClient("http://localhost", transport=transport) as client:
                return await use(client)

    return asyncio.run(main())


def refused(use: Callable[[AsyncClient], Awaitable[Any]]) -> MlxscoreError:
    with pytest.raises(MlxscoreError) as caught:
        ask(use)
    return caught.value


@pytest.mark.parametrize(
    ("normalize", "by"),
    [("none", (1, 1)), ("token", (4, 3)), ("byte", (3, 2)), ("char", (2, 2))],
)
def test_rank_divides_by_length(normalize: Any, by: tuple[int, int]) -> None:
    """Of bytes and characters the space before a choice is not counted, as lm-eval has it."""
    given = [" aé", " bb"]
    ranked = ask(lambda client: client.rank("x", given, normalize=normalize))
    scores = [loglikelihood(one) / count for one, count in zip(given, by, strict=True)]
    order = sorted(range(2), key=lambda j: -scores[j])
    assert [one.index for one in ranked] == order
    assert [one.score for one in ranked] == pytest.approx([scores[j] for j in order])
    total = sum(math.exp(score) for score in scores)
    wanted = [math.exp(scores[j]) / total for j in order]
    assert [one.probability for one in ranked] == pytest.approx(wanted)


def test_rank_takes_ids_and_keeps_the_order_of_equals() -> None:
    ranked = ask(lambda client: client.rank([65], [[66], (66,), [67]], normalize="char"))
    assert [one.index for one in ranked] == [0, 1, 2]
    assert ranked[0].continuation == [66]


def test_classify_by_names() -> None:
    async def use(client: AsyncClient) -> Any:
        labels = {"good": " +", "bad": " -!"}
        one = await client.classify("t", labels, "{text}:", normalize="byte")
        many = await client.classify(["t", "u"], labels, "{text}:")
        none = await client.classify([], labels, "{text}:")
        return one, many, none

    one, many, none = ask(use)
    assert one.label == "bad" and list(one.probabilities) == ["good", "bad"]
    assert one.scores["bad"] == pytest.approx(loglikelihood(" -!") / 2)
    assert one.loglikelihoods["bad"] == pytest.approx(loglikelihood(" -!"))
    assert len(many) == 2 and none == []


@pytest.mark.parametrize("options", [{"calibration": "pmi"}, {"calibration": "contextual"}])
def test_what_does_not_depend_on_the_text_is_calibrated_away(options: Any) -> None:
    """The byte model looks at no context at all: nothing is left of its preference."""
    found = ask(lambda client: client.classify("t", [" a", " zzz"], "{text}. So:", **options))
    assert list(found.probabilities.values()) == pytest.approx([0.5, 0.5], abs=1e-6)


def test_braces_of_a_template_stay() -> None:
    found = ask(lambda client: client.classify("a{b}", [" x"], '{"t": "{text}", "{0}":'))
    assert found.label == " x"


def test_perplexity_weighs_texts_by_their_length() -> None:
    texts = ["a b", "cccc"]
    found = ask(lambda client: client.perplexity(texts))
    nats = -sum(map(loglikelihood, texts))
    assert (found.num_tokens, found.num_words, found.num_bytes) == (7, 3, 7)
    assert found.token_perplexity == pytest.approx(math.exp(nats / 7))
    assert found.word_perplexity == pytest.approx(math.exp(nats / 3))
    assert found.bits_per_byte == pytest.approx(nats / 7 / math.log(2))
    assert found.loglikelihood == pytest.approx(sum(one.loglikelihood for one in found.texts))
    alone = ask(lambda client: client.perplexity("a b"))
    assert alone.loglikelihood == pytest.approx(loglikelihood("a b"))


def test_a_perplexity_beyond_a_float_is_none() -> None:
    text = "z" * 5000  # one word of 2,400 nats
    found = ask(lambda client: client.perplexity([text]))
    assert found.word_perplexity is None
    assert found.token_perplexity == pytest.approx(math.exp(ord("z") / 256))


def test_surprisal_moves_the_space_to_the_word_before() -> None:
    """The mass of a space is the same everywhere here: the first word gains it, the others lose and gain."""
    text = "ab c\nd"
    found = ask(lambda client: client.surprisal(text))
    assert found.bow_correction
    assert [word.text for word in found.words] == ["ab", "c", "d"]
    plain = [-loglikelihood("ab"), -loglikelihood(" c"), -loglikelihood("\nd")]
    # No space follows "c": it loses one and gains none. After the text one is taken to come.
    wanted = [plain[0] - SPACE, plain[1] + SPACE, plain[2] - SPACE]
    assert [word.surprisal for word in found.words] == pytest.approx(wanted)
    assert [(word.first_token, word.num_tokens) for word in found.words] == [(0, 2), (2, 2), (4, 2)]
    assert "".join(token.text for token in found.tokens) == text
    assert found.surprisal == pytest.approx(-loglikelihood(text))


def test_words_of_tokens() -> None:
    def of(*tokens: str | bytes) -> list[tuple[str, int, int]]:
        given = [token.encode() if isinstance(token, str) else token for token in tokens]
        return [(word.text, word.first, word.last) for word in words(given)]

    assert of() == [] and of(" ", "\n") == []
    assert of("The", " keys", " .") == [("The", 0, 1), ("keys", 1, 2), (".", 2, 3)]
    assert of("a", "", "b", " ", " c", "\n") == [("ab", 0, 3), ("c", 3, 6)]
    # One token over two words, and another that begins in the last of them.
    assert of("x", " of the", "m", " y") == [("x", 0, 1), ("of them", 1, 3), ("y", 3, 4)]
    # A character in two tokens; a white space of three bytes; bytes that are no text.
    assert of(b"\xc3", b"\xa9t", "\u3000b") == [("ét", 0, 2), ("b", 2, 3)]
    assert of(b"a\xff", b" \xfe") == [("a\ufffd", 0, 1), ("\ufffd", 1, 2)]


def test_corrections_cancel_within_a_text() -> None:
    tokens = [b"a", b"b", b" c", b" ", b" d"]
    spaces = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    found = corrected(tokens, [0.0] * 5, spaces)
    assert found == pytest.approx([0.0, 0.3, 0.4 - 0.3, 0.5 - 0.4, 0.6 - 0.5])
    assert sum(found) == pytest.approx(spaces[-1])


def test_dpo_of_ids_is_cut_as_trl_cuts() -> None:
    prompt, chosen, rejected = [10, 11, 12], [20, 21], [30]

    def sums(**options: Any) -> tuple[float, float, int, int]:
        one = ask(lambda client: client.dpo_logps(prompt, chosen, rejected, **options))
        logps = (-256 * one.ref_chosen_logps, -256 * one.ref_rejected_logps)
        return (*logps, one.chosen_tokens, one.rejected_tokens)

    assert sums() == pytest.approx((41, 30, 2, 1))
    assert sums(max_length=4) == pytest.approx((20, 30, 1, 1))
    assert sums(max_length=3) == (0, 0, 0, 0)  # TRL drops such a pair
    assert sums(max_length=2, truncation_mode="keep_end") == pytest.approx((21, 30, 1, 1))
    assert sums(max_length=1, truncation_mode="keep_end") == (0, 0, 0, 0)


def test_dpo_of_an_empty_prompt_does_not_score_the_first_token() -> None:
    async def use(client: AsyncClient) -> Any:
        return await client.dpo_logps([[]], [[20, 21]], [[]])

    assert refused(use).param == "prompt[0]"
    # What begins alike belongs to the prompt only as far as the prompt goes.
    found = ask(lambda client: client.dpo_logps("a", "bc", "bd"))
    assert (found.prompt_tokens, found.chosen_tokens) == (1, 2)
    assert found.ref_chosen_logps == pytest.approx(loglikelihood("bc"))


async def _rank(client: AsyncClient, **options: Any) -> Any:
    return await client.rank(**({"context": "x", "continuations": ["a"]} | options))


async def _classify(client: AsyncClient, **options: Any) -> Any:
    given: dict[str, Any] = {"texts": "x", "labels": [" a", " b"], "template": "{text}"}
    return await client.classify(**(given | options))


async def _dpo(client: AsyncClient, **options: Any) -> Any:
    return await client.dpo_logps(**({"prompt": "x", "chosen": "a", "rejected": "b"} | options))


CHAT = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("use", "options", "param"),
    [
        (_rank, {"normalize": "bytes"}, "normalize"),
        (_rank, {"continuations": ["a", ""]}, "continuations[1]"),
        (_rank, {"continuations": ["a", 5]}, "continuations[1]"),
        (_rank, {"continuations": []}, "continuations"),
        (_rank, {"context": [65, 999]}, "context[1]"),
        (_rank, {"context": 5}, "context"),
        (_classify, {"labels": "ab"}, "labels"),
        (_classify, {"labels": []}, "labels"),
        (_classify, {"labels": [" a", " a"]}, "labels[1]"),
        (_classify, {"labels": {"a": " x", "b": 5}}, "labels[1]"),
        (_classify, {"labels": [" a", ""]}, "labels[1]"),
        (_classify, {"template": "no slot"}, "template"),
        (_classify, {"template": "{text} {text}"}, "template"),
        (_classify, {"calibration": "context"}, "calibration"),
        (_classify, {"calibration": "contextual", "content_free": []}, "content_free"),
        (_classify, {"calibration": "pmi"}, "domain"),
        (_classify, {"texts": ["x", 5]}, "texts[1]"),
        (_classify, {"texts": ["x", "y" * 2000]}, "texts[1]"),
        (_classify, {"texts": 5}, "texts"),
        (_dpo, {"max_length": 0}, "max_length"),
        (_dpo, {"truncation_mode": "keep"}, "truncation_mode"),
        (_dpo, {"chosen": CHAT}, "chosen"),
        (_dpo, {"prompt": ["x", "y"], "chosen": ["a"], "rejected": ["b", "c"]}, "chosen"),
        (_dpo, {"prompt": ["x"], "chosen": "a", "rejected": ["b"]}, "chosen"),
        (_dpo, {"prompt": ["x", 5], "chosen": ["a"] * 2, "rejected": ["b"] * 2}, "prompt[1]"),
        (_dpo, {"prompt": [1], "chosen": [2], "rejected": [999]}, "rejected"),
        (_dpo, {"prompt": CHAT, "chosen": CHAT, "rejected": CHAT}, "prompt"),
        (_dpo, {"rejected": "b" * 2000}, "rejected"),
    ],
)
def test_errors_name_the_argument(use: Any, options: dict[str, Any], param: str) -> None:
    error = refused(lambda client: use(client, **options))
    assert str(error.param).startswith(param), error
    assert not isinstance(error, InternalServerError)


def test_errors_of_the_model_name_the_text() -> None:
    bad = chr(BOOM)
    error = refused(lambda client: client.surprisal(["fine", bad], bow_correction=False))
    assert error.param == "texts[1]"
    error = refused(lambda client: client.surprisal(["fine", bad]))
    assert str(error.param).startswith("texts[1]")
    assert refused(lambda client: client.surprisal(["fine", ""])).param == "texts[1]"
    assert refused(lambda client: client.perplexity([])).param == "texts"
    assert refused(lambda client: client.surprisal("x", unit="bit")).param == "unit"  # type: ignore[call-overload]


class Spans(HTMLParser):
    """Tags and text of a heat map."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = "<script>alert(1)</script>\"'&amp;<img src=x onerror=y>\u202e"


def test_a_heat_map_holds_text_as_text() -> None:
    found = Spans(heat_map([Cell(HOSTILE, 3.0, 7), Cell("\n", 99.0, 1)], title=HOSTILE))
    assert {tag for tag, _ in found.tags} == {"div", "bdi", "span"}
    assert all(set(attrs) <= {"style", "title", "dir"} for _, attrs in found.tags)
    assert found.text.count(HOSTILE) == 2
    assert "surprisal, bits" in found.text and "16 or more" in found.text
    cells = [attrs for tag, attrs in found.tags if tag == "bdi"]
    assert cells[0]["title"] == "3.00 bits, rank 7"
    # Beyond the scale's end the colour is the end's.
    assert "background:#fee838;color:#000" in str(cells[1]["style"])


def test_letters_stand_out_on_every_colour() -> None:
    """WCAG 2's contrast of 4.5 on all of the scale, and lightness grows along it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    found = Spans(heat_map([Cell("x", bits / 8, 1) for bits in range(129)]))
    styles = [str(attrs["style"]) for tag, attrs in found.tags if tag == "bdi"]
    shades: list[float] = []
    for style in styles:
        shade = luminance(style.partition("background:#")[2][:6])
        ink = {"#000": 0.0, "#fff": 1.0}[style.partition("color:")[2].rpartition("color:")[2][:4]]
        high, low = max(shade, ink), min(shade, ink)
        assert (high + 0.05) / (low + 0.05) >= 4.5
        shades.append(shade)
    assert shades == sorted(shades)


def test_results_show_themselves_in_notebooks() -> None:
    async def use(client: AsyncClient) -> Any:
        items = [{"context": "x", "continuations": ["<b>", "c"]}]
        with_tokens = await client.score_items(items, return_tokens=True)
        without = await client.score_items(items)
        return with_tokens.results[0], without.results[0], await client.surprisal("a <b>")

    with_tokens, without, surprisal = ask(use)
    assert without._repr_html_() is None and without.scores[0]._repr_html_() is None
    assert Spans(with_tokens._repr_html_()).text.count("<b>") == 1
    assert len([tag for tag, _ in Spans(with_tokens._repr_html_()).tags if tag == "bdi"]) == 4
    cells = [a for tag, a in Spans(surprisal._repr_html_()).tags if tag == "bdi"]
    assert cells[0]["title"] == f"{ord('a') / 256 / math.log(2):.2f} bits, rank {ord('a') + 1}"


def test_frames() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")

    async def use(client: AsyncClient) -> Any:
        items = [{"context": "x", "continuations": ["ab", "c"]}]
        with_tokens = await client.score_items(items, return_tokens=True)
        without = await client.score_items(items)
        return with_tokens.results[0], without.results[0], await client.surprisal("a bc")

    with_tokens, without, surprisal = ask(use)
    frame = without.to_frame()
    assert frame["loglikelihood"].tolist() == pytest.approx([*map(loglikelihood, ("ab", "c"))])
    tokens = with_tokens.to_frame("token")
    assert tokens[["continuation", "token"]].to_numpy().tolist() == [[0, 0], [0, 1], [1, 0]]
    assert tokens["text"].tolist() == ["a", "b", "c"]
    assert surprisal.to_frame()["text"].tolist() == ["a", "bc"]
    assert len(surprisal.to_frame("token")) == 4
    with pytest.raises(ValueError, match="return_tokens"):
        without.to_frame("token")
    with pytest.raises(ValueError, match="'continuation' or 'token'"):
        without.to_frame("word")
    with pytest.raises(InvalidRequestError, match="by: must be one of"):
        surprisal.to_frame("continuation")


def test_without_pandas_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    found = ask(lambda client: client.surprisal("a"))
    with pytest.raises(ImportError, match="pip install pandas"):
        found.to_frame()


def test_space_logprobs_over_http() -> None:
    async def use() -> None:
        async with running() as app:
            await check(app)

    async def check(app: Running) -> None:
        item = {"context": "x", "continuation": "a b"}
        asked = ScoreRequest.model_validate({"items": [item], "space_logprobs": True})
        answer = await app.score(**asked.model_dump(exclude_none=True))
        tokens = ScoreResponse.model_validate_json(answer.content).results[0].scores[0].tokens
        assert tokens is not None
        assert [token.space_logprob for token in tokens] == pytest.approx([SPACE] * 3)
        plain = await app.score(items=[item], return_tokens=True)
        assert "space_logprob" not in plain.json()["results"][0]["scores"][0]["tokens"][0]

    asyncio.run(use())
