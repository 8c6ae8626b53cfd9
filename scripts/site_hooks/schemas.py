"""JSON schemas as tables in Markdown."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_LIMITS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
    "maxItems": "at most {}",
}


def section(name: str, schema: Schema, level: int = 3) -> Iterator[str]:
    """A heading, what it is for, and a row for each field."""
    yield f"{'#' * level} `{name}`"
    yield schema.get("description", "")
    if fields := schema.get("properties"):
        yield "\n".join(_table(fields, schema.get("required", [])))
    else:
        yield kind(schema)


def _table(fields: Mapping[str, Schema], required: list[str]) -> Iterator[str]:
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in fields.items():
        default = "required" if name in required else f"`{_json(field.get('default'))}`"
        cells = (f"`{name}`", kind(field), default, field.get("description", ""))
        yield f"| {' | '.join(map(_cell, cells))} |"


def kind(schema: Schema) -> str:
    """What a value may be, in words; other schemas as links to their own sections."""
    if ref := schema.get("$ref"):
        name = ref.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(kind, choices)))
    if "const" in schema or "enum" in schema:
        values = schema.get("enum") or [schema["const"]]
        return " or ".join(f"`{_json(value)}`" for value in values)
    said = str(schema.get("type", "anything")).replace("null", "`null`")
    if said == "array":
        items = schema.get("items", {})
        said = f"list of ({kind(items)})" if "anyOf" in items else f"list of {kind(items)}"
    limits = [words.format(schema[key]) for key, words in _LIMITS.items() if key in schema]
    return ", ".join([said, *limits])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cell(text: str) -> str:
    """On one line, with what a table and HTML would take for their own written out."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()).replace("|", "\\|"))
    return "".join(p if p.startswith("`") else p.replace("<", "&lt;") for p in parts)
