"""What the server's own document allows and what it forbids, made up by schemathesis: never a 5xx,
and each answer as the document has it."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from fakes import VOCAB_SIZE
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from steady_process import Steady

from mlxscore_client.wire import MAX_TOKEN_ID

# With a body, that is; the other endpoints take nothing that could be wrong.
TAKE = [
    "POST /score",
    "POST /v1/completions",
    "POST /generate",
    "POST /get_sequence_logprobs/",
    "POST /v1/score",
    "POST /generative_scoring",
    "POST /rerank",
    "POST /tokenize",
    "POST /detokenize",
]
# Their bodies are lines, of which each is right or wrong by itself: what may be wrong is the query.
STREAM = ["POST /score/stream"]
GIVE = [
    "GET /health",
    "GET /ready",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "GET /tokenizer_info",
    "GET /version",
]
# Fields that go together: bodies of these and no others are answered, most of the time.
PLAIN = {
    "ScoreItem": ("context", "continuation"),
    "ScoreRequest": ("items", "return_tokens", "boundary"),
    "CompletionRequest": ("prompt", "echo"),
    "GenerateRequest": ("text", "sampling_params"),
    "SamplingParams": ("max_new_tokens",),
    "SequenceLogprobsRequest": ("sequences", "prompt_lengths", "top_logprobs"),
    "LabelScoreRequest": ("query", "items", "label_token_ids"),
    "GenerativeScoringRequest": ("query", "items", "label_token_ids"),
    "RerankRequest": ("query", "documents", "return_documents"),
    "TokenizeRequest": ("prompt", "return_token_strs"),
    "DetokenizeRequest": ("tokens",),
}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@schemathesis.serializer("application/x-ndjson")
def as_it_is(context: Any, value: Any) -> bytes:
    return str(value).encode(errors="replace")


FIXED = settings(
    max_examples=25,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Steady]:
    with Steady("--enable-tokenizer-info-endpoint") as running:
        yield running
        assert running.troubles() == []


@pytest.fixture(scope="module")
def document(server: Steady) -> Any:
    return requests.get(f"{server.url}/openapi.json", timeout=10).json()


def operations(server: Steady, document: Any) -> dict[str, APIOperation]:
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    return {found.ok().label: found.ok() for found in schema.get_all_operations()}


def attacked(
    operation: APIOperation, mode: GenerationMode, checks: Any = CHECKS, examples: int = 25
) -> Counter[int]:
    """How often each status was the answer."""
    statuses: Counter[int] = Counter()
    with requests.Session() as session:

        @settings(FIXED, max_examples=examples)
        @given(case=operation.as_strategy(mode))
        def attack(case: schemathesis.Case) -> None:
            response = case.call(session=session)
            case.validate_response(response, checks=checks)
            assert response.headers["x-request-id"]
            if response.status_code >= 400:
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}
            statuses[response.status_code] += 1

        attack()
    return statuses


@pytest.mark.parametrize("label", [*TAKE, *STREAM, *GIVE])
def test_what_fits_the_document(server: Steady, document: Any, label: str) -> None:
    statuses = attacked(operations(server, document)[label], GenerationMode.POSITIVE)
    # Much of what the document cannot forbid is wrong: fields that exclude each other, a model's name.
    assert set(statuses) <= {200, 400, 404}


@pytest.mark.parametrize("label", TAKE)
def test_what_does_not_fit_the_document(server: Steady, document: Any, label: str) -> None:
    checks = [*CHECKS, negative_data_rejection]
    statuses = attacked(operations(server, document)[label], GenerationMode.NEGATIVE, checks)
    assert set(statuses) <= {400, 404, 415}


@pytest.mark.parametrize("label", TAKE)
def test_what_is_answered_fits_the_document(server: Steady, document: Any, label: str) -> None:
    # JSON Schema takes 2.0 for an integer and the server does not: of few bodies none may be right.
    operation = operations(server, plain(document))[label]
    assert attacked(operation, GenerationMode.POSITIVE, examples=100)[200]


def plain(schema: Any) -> Any:
    """The document of a server that takes the fields of PLAIN only, and the token ids that it has."""
    if isinstance(schema, list):
        return [plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: plain(part) for name, part in schema.items()}
    fields = PLAIN.get(str(schema.get("title")), ())
    if fields and "properties" in schema:
        made["properties"] = {name: _set(made["properties"][name]) for name in fields}
        made |= {"required": list(fields), "additionalProperties": False}
    if schema.get("title") == "SequenceLogprobsRequest":
        # Two lists of one length, prompts shorter than their sequences: chance makes hardly any.
        ids = {"type": "integer", "minimum": 0, "maximum": VOCAB_SIZE - 1}
        sequence = {"type": "array", "items": ids, "minItems": 2, "maxItems": 9}
        one = {"type": "array", "minItems": 1, "maxItems": 1}
        made["properties"]["sequences"] = one | {"items": sequence}
        made["properties"]["prompt_lengths"] = one | {"items": {"type": "integer", "const": 1}}
    if made.get("maximum") == MAX_TOKEN_ID:
        made["maximum"] = VOCAB_SIZE - 1
    return made


def _set(field: dict[str, Any]) -> dict[str, Any]:
    """A field's schema without null, and with a small number where one is asked for."""
    kinds = [kind for kind in field.get("anyOf", ()) if kind != {"type": "null"}]
    field = kinds[0] if kinds else field
    return field | {"maximum": 1} if field.get("type") == "integer" else field


def test_no_operation_is_left_out(server: Steady, document: Any) -> None:
    # Whatever else is documented takes part in the tests above once it stands in these lists.
    assert set(operations(server, document)) == {*TAKE, *STREAM, *GIVE}
