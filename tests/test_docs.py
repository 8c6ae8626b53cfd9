"""What the documentation shows is what the server answers: each `curl` with the JSON below it."""

import json
import re
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from server_process import ServerProcess

DOCS = Path(__file__).parent.parent / "docs"
_BLOCK = re.compile(r"```sh\n(curl [^`]*?)```\s*(?:answers[^`]*?)?```json\n(.*?)```", re.DOTALL)
_CURL = re.compile(r"curl -s localhost:8000(/\S*) .*?-d\s*'(.*)'\s*$", re.DOTALL)
# How much was computed is for the batch and the caches to say, the fingerprint for the machine.
_VARIES = {"id", "created", "system_fingerprint", "computed_tokens", "cached_tokens"}
TOLERANCE = 2e-3  # nats, or a part of a probability: other kernels


def shown() -> list[Any]:
    examples: list[Any] = []
    for file in sorted(DOCS.glob("*.md")):
        for command, answer in _BLOCK.findall(file.read_text("utf-8")):
            found = _CURL.match(command)
            assert found, f"{file.name}: {command}"
            examples.append(
                pytest.param(found[1], found[2], answer, id=f"{file.stem}-{found[2].strip()[:50]}")
            )
    return examples


def as_shown(found: Any, wanted: Any, at: str = "the answer") -> None:
    """All that is shown is there; base64 and numbers may differ in their last digits."""
    if isinstance(wanted, dict):
        for name, value in cast(dict[str, Any], wanted).items():
            if name not in _VARIES and not name.endswith("_b64"):
                as_shown(found[name], value, f"{at}.{name}")
    elif isinstance(wanted, list):
        values = cast(list[Any], wanted)
        assert len(found) == len(values), at
        for i, (one, value) in enumerate(zip(found, values, strict=True)):
            as_shown(one, value, f"{at}[{i}]")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=TOLERANCE, abs=1e-9), at
    else:
        assert found == wanted, at


@pytest.mark.parametrize(("path", "body", "answer"), shown())
def test_the_answers_are_the_servers_own(
    server: ServerProcess, path: str, body: str, answer: str
) -> None:
    headers = {"content-type": "application/json"}
    response = httpx.post(server.url + path, content=body.encode(), headers=headers, timeout=120)
    assert response.status_code == 200, response.text
    as_shown(response.json(), json.loads(answer))


def test_each_page_with_requests_is_looked_at() -> None:
    examples = shown()
    assert {str(example.id).partition("-")[0] for example in examples} >= {"api", "labels"}
    assert len(examples) >= 15


def test_the_tests_that_are_named_are_there() -> None:
    tests = Path(__file__).parent
    named = {
        (file, name)
        for page in DOCS.glob("*.md")
        for file, name in re.findall(r"(test_\w+\.py)::(test_\w+)", page.read_text("utf-8"))
    }
    assert len(named) > 40
    for file, name in sorted(named):
        assert f"def {name}(" in (tests / file).read_text("utf-8"), f"{file}::{name}"
