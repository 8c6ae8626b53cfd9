"""The reference pages, written from what they describe while the site is built."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from schemas import kind, section

import mlxscore_client
from mlxscore_server.app import create_app
from mlxscore_server.engine import Engine
from mlxscore_server.settings import Settings


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    pages: dict[str, Callable[[], Iterable[str]]] = {
        "http": _http,
        "client": _client,
        "server-flags": _flags,
    }
    for name, parts in pages.items():
        content = "\n\n".join(parts()) + "\n"
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def _http() -> Iterator[str]:
    settings = Settings(enable_tokenizer_info_endpoint=True)
    document = create_app(Engine(settings, _not_loaded), settings).openapi()
    yield "# Every endpoint and field"
    yield "Written from the server's own OpenAPI document, which a running one has at `/openapi.json`."
    yield "[What they mean together, with examples](../api.md)."
    yield document["info"]["description"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield from _operation(f"{method.upper()} {path}", operation)
    yield "## Bodies"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from section(name, schema)


def _not_loaded() -> NoReturn:
    raise AssertionError("no model is needed to describe the server")


def _operation(name: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"## `{name}`"
    yield operation.get("description") or operation.get("summary", "")
    if body := operation.get("requestBody"):
        yield f"Body: {_content(body)}"
    for parameter in operation.get("parameters", []):
        yield f"`{parameter['name']}` in the {parameter['in']}: {parameter.get('description', '')}"
    rows = ["| status | | answer |", "|---|---|---|"]
    for status, answer in sorted(operation["responses"].items()):
        rows.append(f"| {status} | {answer['description']} | {_content(answer)} |")
    yield "\n".join(rows)


def _content(holder: dict[str, Any]) -> str:
    """The schema of a body, or its media type where there is none."""
    return ", ".join(
        kind(content["schema"]) if content.get("schema") else f"`{media}`"
        for media, content in holder.get("content", {}).items()
    )


def _client() -> Iterator[str]:
    names = [name for name in mlxscore_client.__all__ if isinstance(_named(name), type)]
    errors = [name for name in names if issubclass(_named(name), Exception)]
    yield "# Python client"
    yield "Written from its docstrings. [What the helpers compute, with examples](../helpers.md)."
    yield "::: mlxscore_client.Client"
    # Its other methods are the same, awaited; that is tested.
    own = 'options: {members: ["__init__", "aclose"]}'
    yield f"::: mlxscore_client.AsyncClient\n    {own}"
    yield "All methods of `Client`, with `await`."
    yield "## Results"
    models = [model for name in names if issubclass(model := _named(name), BaseModel)]
    _, made = models_json_schema([(model, "serialization") for model in models])
    for name, schema in sorted(made["$defs"].items()):
        yield from section(name, schema)
    yield "## Errors"
    for name in errors:
        options = "options: {heading_level: 3, inherited_members: false}"
        yield f"::: mlxscore_client.{name}\n    {options}"


def _named(name: str) -> Any:
    return getattr(mlxscore_client, name)


def _flags() -> Iterator[str]:
    command = [sys.executable, "-m", "mlxscore_server.cli", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    yield "# Flags of mlxscore-server"
    yield "What `mlxscore-server --help` says. [The ones that matter most](../index.md#your-own-model)."
    yield f"```text\n{said.rstrip()}\n```"
