"""The page that documents the API, generated from the OpenAPI schema, with no scripts or files from other sites."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.html import escape
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe
from ninja import NinjaAPI

METHODS = ("get", "post", "put", "patch", "delete")
# The groups of operations by tag, in the order of the page
GROUPS = {"runs": "About runs", "agents": "Machines", "files": "Files"}
DEPTH = 4  # depth at which examples of recursive schemas stop


class Parameter(NamedTuple):
    name: str
    kind: str  # e.g. “whole number, in the query”
    is_required: bool
    about: SafeString


class Operation(NamedTuple):
    """An HTTP method at one of the API's addresses."""

    method: str
    path: str
    title: str
    about: SafeString
    parameters: list[Parameter]
    body: str  # an example in JSON, or empty if there is no body
    answers: list[tuple[str, str, str]]  # status, meaning, and an example in JSON


class Group(NamedTuple):
    slug: str
    title: str
    operations: list[Operation]


def page_of(api: NinjaAPI) -> Any:
    @require_safe
    def docs(request: HttpRequest) -> HttpResponse:
        facts = {"groups": _groups(api), "site": request.build_absolute_uri("/").rstrip("/")}
        return render(request, "web/site/api_docs.html", facts)

    return docs


@cache
def _groups(api: NinjaAPI) -> list[Group]:
    schema: Mapping[str, Any] = api.get_openapi_schema()
    found: dict[str, list[Operation]] = {slug: [] for slug in GROUPS}
    for path, methods in schema["paths"].items():
        for method in METHODS:
            if method in methods:
                for tag in methods[method].get("tags", ["runs"])[:1]:
                    found.setdefault(tag, []).append(_operation(schema, method, path, methods[method]))
    return [Group(slug, GROUPS.get(slug, slug.capitalize()), each) for slug, each in found.items() if each]


def _operation(schema: Mapping[str, Any], method: str, path: str, said: Mapping[str, Any]) -> Operation:
    bodies = said.get("requestBody", {}).get("content", {})
    return Operation(
        method.upper(),
        path,
        said.get("summary", "").capitalize(),
        _marked(said.get("description", "")),
        [_parameter(schema, each) for each in said.get("parameters", ())],
        _example_in(schema, bodies),
        [
            (str(status), each.get("description", ""), _example_in(schema, each.get("content", {})))
            for status, each in said.get("responses", {}).items()
        ],
    )


def _parameter(schema: Mapping[str, Any], said: Mapping[str, Any]) -> Parameter:
    kinds = list(dict.fromkeys(_kinds(schema, said["schema"]))) or ["text"]
    kind = f"{'any of ' if len(kinds) > 1 else ''}{', '.join(kinds)}, in the {said['in']}"
    # A parameter that may be null has its description inside its schema.
    texts = (each["description"] for each in (said, *said["schema"].get("anyOf", ())) if "description" in each)
    return Parameter(said["name"], kind, bool(said.get("required")), _marked(next(texts, "")))


def _marked(text: str) -> SafeString:
    """Return text as HTML, with words in backticks as code."""
    parts = ((f"<code>{part}</code>" if place % 2 else part) for place, part in enumerate(escape(text).split("`")))
    return SafeString("".join(parts))


def _kinds(schema: Mapping[str, Any], said: Mapping[str, Any]) -> Iterator[str]:
    for each in said.get("anyOf", [said]):
        kind = _resolved(schema, each).get("type")
        if kind not in (None, "null"):
            yield {"string": "text", "integer": "whole number"}.get(kind, kind)


def _example_in(schema: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    said = content.get("application/json", {}).get("schema")
    return json.dumps(_example(schema, said, DEPTH), indent=2, ensure_ascii=False) if said else ""


def _example(schema: Mapping[str, Any], said: Mapping[str, Any], depth: int) -> Any:
    """Return an example of a schema: its own example or default, or else one that depends on its type."""
    said = _resolved(schema, said)
    if "anyOf" in said:
        return _example(schema, said["anyOf"][0], depth)
    for given in ("example", "default", "const"):
        if said.get(given) is not None:
            return said[given]
    if said.get("enum"):
        return said["enum"][0]
    if said.get("type") == "array":
        return [_example(schema, said.get("items", {}), depth - 1)] if depth else []
    if said.get("type") == "object" or "properties" in said:
        inside = said.get("properties", {}) if depth else {}
        return {name: _example(schema, each, depth - 1) for name, each in inside.items()}
    plain = {"integer": 0, "number": 0.0, "boolean": True, "null": None}
    return plain.get(said.get("type", ""), said.get("format", "text"))


def _resolved(schema: Mapping[str, Any], said: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in said:
        return said
    found: Mapping[str, Any] = schema["components"]["schemas"][said["$ref"].rpartition("/")[2]]
    return found
