"""The HTTP interface as a page, from the OpenAPI schema that the service itself gives out."""

from collections.abc import Iterable, Mapping
from typing import Any

from noisegate.service.app import create_app
from noisegate.service.settings import load_settings

__all__ = ["http_page"]

Schema = Mapping[str, Any]

INTRODUCTION = """# HTTP

Made from the service's own OpenAPI schema, which a running service gives out at `/openapi.json`. How to start one:
[Serve](../guides/serve.md). With keys, send `Authorization: Bearer KEY`.
"""


def http_page() -> str:
    """Markdown."""
    schema = create_app(load_settings(None, decode_workers=0)).openapi()
    parts = [INTRODUCTION, "| route | what |", "| --- | --- |"]
    operations = [(m.upper(), path, found) for path, those in schema["paths"].items() for m, found in those.items()]
    parts += [f"| `{method} {path}` | {_first(found)} |" for method, path, found in operations]
    parts += [_operation(method, path, found) for method, path, found in operations]
    parts.append("\n## Bodies")
    parts += [_model(name, found) for name, found in sorted(schema["components"]["schemas"].items())]
    return "\n".join(parts) + "\n"


def _first(operation: Schema) -> str:
    summary = str(operation.get("summary", ""))
    named = summary == summary.title()  # FastAPI's own, after the function
    text = (operation.get("description") if named else None) or summary
    return str(text.split("\n")[0].split(". ")[0]).rstrip(".")


def _operation(method: str, path: str, found: Schema) -> str:
    parts = [f"\n## `{method} {path}`\n"]
    parts.append(found.get("description") or found.get("summary", ""))
    parameters = [
        (f"`{p['name']}` ({p['in']})", _kind(p["schema"]), p.get("description", ""))
        for p in found.get("parameters", ())
    ]
    if parameters:
        parts.append(_table(("parameter", "type", "meaning"), parameters))
    for kind, content in found.get("requestBody", {}).get("content", {}).items():
        schema = content.get("schema", {})
        parts.append(f"\nBody, `{kind}`: {_kind(schema)}")
        if "properties" in schema:
            parts.append(_fields(schema))
    answers = [(code, _answer(told), _meaning(told)) for code, told in found["responses"].items()]
    parts.append(_table(("status", "body", "meaning"), answers))
    return "\n".join(parts)


def _answer(told: Schema) -> str:
    return ", ".join(_kind(content.get("schema", {})) for content in told.get("content", {}).values())


def _meaning(told: Schema) -> str:
    text = str(told.get("description", ""))
    return "as asked" if text == "Successful Response" else text  # FastAPI's words where a route has none


def _model(name: str, found: Schema) -> str:
    return "\n".join([f"\n### {name}\n", found.get("description", ""), _fields(found)])


def _fields(schema: Schema) -> str:
    needed = schema.get("required", ())
    rows = [
        (f"`{name}`" + ("" if name in needed else ", optional"), _kind(kind), kind.get("description", ""))
        for name, kind in schema.get("properties", {}).items()
    ]
    return _table(("field", "type", "meaning"), rows) if rows else ""


def _kind(schema: Schema) -> str:
    """A type in words, with links to the models."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type") or "any")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join(["", line(head), "|" + " --- |" * len(head), *map(line, rows), ""])
