"""The API documentation lists every operation, and its examples are valid JSON."""

import json
import re

import pytest
from django.test import Client

from tests.web.browsing import page
from web.api import api
from web.api.docs import _groups, _marked

OPERATIONS = [operation for group in _groups(api) for operation in group.operations]


def test_every_operation_has_its_place(client: Client, db: None) -> None:
    said = api.get_openapi_schema()["paths"]
    expected = {(method.upper(), path) for path, methods in said.items() for method in methods}
    assert {(each.method, each.path) for each in OPERATIONS} == expected
    shown = page(client.get("/api/v1/docs"))
    for each in OPERATIONS:
        assert f"{each.method} {each.path}" in shown
    links = re.findall(r'href="#([^"]+)"', shown)
    assert set(links) - set(re.findall(r'id="([^"]+)"', shown)) == set()


def test_it_loads_nothing_from_elsewhere(client: Client, db: None) -> None:
    shown = page(client.get("/api/v1/docs"))
    assert not re.search(r'(src|href)="(https?:)?//', shown)
    assert "<script" not in shown
    assert 'href="/api/v1/docs"' in page(client.get("/help/")), "pages lead to it"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_examples_are_json_and_sentences_are_there(operation: object) -> None:
    assert operation.title  # type: ignore[attr-defined]
    assert operation.about, "its docstring"  # type: ignore[attr-defined]
    for _, _, example in operation.answers:  # type: ignore[attr-defined]
        if example:
            json.loads(example)
    for parameter in operation.parameters:  # type: ignore[attr-defined]
        assert parameter.about, parameter.name


def test_what_is_in_back_ticks_is_code(client: Client, db: None) -> None:
    shown = page(client.get("/api/v1/docs"))
    assert "`" not in shown
    assert "<code>X-Sha256</code> is the digest" in shown
    assert _marked("a `<b>` & c") == "a <code>&lt;b&gt;</code> &amp; c"


def test_an_example_has_the_fields_of_its_answer(client: Client, db: None) -> None:
    (runs,) = (each for each in OPERATIONS if each.path == "/api/v1/runs")
    (example,) = (example for status, _, example in runs.answers if status == "200")
    found = json.loads(example)
    assert set(found) == {"items", "next"}
    assert {"slug", "title", "step", "target_steps"} <= set(found["items"][0])
    assert {parameter.name for parameter in runs.parameters} == {"cursor", "limit"}
