"""The API compared with its OpenAPI description: generated requests, validated answers, no server errors."""

import time
from typing import Any

import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from accounts.models import Person, Token
from accounts.services import create_token
from tests.runs.factories import Owned
from tests.web.requesters import API, World, gaps, make_world, meant, routes
from web.api import api

PLAIN = {"Accept-Encoding": "identity"}  # the test client does not decompress answers
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
DESCRIPTION = api.get_openapi_schema()
NEEDS_NO_PROOF = {("get", "/api/v1/agent"), ("post", "/api/v1/devices")}  # a machine without an account calls these
COUNTED = {
    ("post", "/api/v1/devices"),
    ("post", "/api/v1/devices/poll"),
    ("post", "/api/v1/runs/{slug}/credential"),
    ("post", "/api/v1/relays/credential"),
}
BESIDE = {API, f"{API}docs", f"{API}openapi.json"}  # pages that describe the API
OPERATIONS = [(method, path) for path, methods in DESCRIPTION["paths"].items() for method in methods]
EXAMPLES = settings(
    max_examples=12,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # no shrinking: a failure is shown as found
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def world(organizer: Person, volunteer: Person) -> World:
    return make_world(organizer, volunteer, "public")


@pytest.fixture
def described(world: World) -> Any:
    return schemathesis.openapi.from_wsgi("/api/v1/openapi.json", get_wsgi_application())


def can_be_asked_wrongly(place: tuple[str, str]) -> bool:
    """Return True if the operation's input can be invalid, that is, more than free text in the address."""
    operation = DESCRIPTION["paths"][place[1]][place[0]]
    schemas = [parameter["schema"] for parameter in operation.get("parameters", [])]
    return "requestBody" in operation or any("pattern" in one or one.get("type") != "string" for one in schemas)


def test_every_address_of_the_api_is_described() -> None:
    """The tests below call only the operations in the description."""
    found = {route.replace("<", "{").replace(">", "}") for route in routes() if route.startswith(API)}
    assert found - BESIDE == set(DESCRIPTION["paths"])


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_answers_are_as_described(described: Any, method: str, path: str) -> None:
    @EXAMPLES
    @given(described[path][method.upper()].as_strategy())
    def check(case: Any) -> None:
        case.call_and_validate(checks=CHECKS, headers=PLAIN)

    check()


@pytest.mark.check
@pytest.mark.parametrize(("method", "path"), [place for place in OPERATIONS if can_be_asked_wrongly(place)])
def test_answers_to_what_breaks_the_description_are_as_described(described: Any, method: str, path: str) -> None:
    @EXAMPLES
    @given(described[path][method.upper()].as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def check(case: Any) -> None:
        case.call_and_validate(checks=CHECKS, headers=PLAIN)

    check()


@pytest.fixture(params=["token", "credential"])
def proof(request: pytest.FixtureRequest, world: World, laptop: Owned) -> dict[str, str]:
    if request.param == "credential":
        return laptop.credential(world.run, now=int(time.time()))
    return {"Authorization": f"Bearer {create_token(person=world.laptop.person, purpose=Token.Purpose.API).secret}"}


@pytest.mark.check
@pytest.mark.parametrize(("method", "path"), [place for place in OPERATIONS if "{" in place[1]])
def test_answers_about_what_exists_are_as_described(
    described: Any, world: World, proof: dict[str, str], method: str, path: str
) -> None:
    """With existing addresses and valid proof, requests get past authentication."""
    names = known(world, path)

    @EXAMPLES
    @given(described[path][method.upper()].as_strategy())
    def check(case: Any) -> None:
        case.path_parameters |= {name: names[name] for name in case.path_parameters}
        case.call_and_validate(checks=CHECKS, headers={**PLAIN, **proof})

    check()


def known(world: World, path: str) -> dict[str, str]:
    route = path.replace("{", "<").replace("}", ">")
    return {name: world.names[meant(name, route)] for name in gaps(route)}


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_refusal_is_described_in_one_shape(method: str, path: str) -> None:
    answers = DESCRIPTION["paths"][path][method]["responses"]
    refusals = {int(status): answer for status, answer in answers.items() if int(status) >= 400 and int(status) != 416}
    shapes = {
        status: answer["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for status, answer in refusals.items()
    }
    assert set(shapes.values()) <= {"FaultOut"}
    assert (401 in shapes) == ((method, path) not in NEEDS_NO_PROOF)
    assert (422 in shapes) == takes_anything(method, path)
    assert (429 in shapes) == ((method, path) in COUNTED)
    assert "{" not in path or 404 in shapes
    assert method == "get" or 400 in shapes


def test_a_refusal_has_a_title_and_one_of_three_severities() -> None:
    parts = DESCRIPTION["components"]["schemas"]
    assert parts["FaultOut"]["required"] == ["code", "title", "severity", "text"]
    assert parts["Severity"]["enum"] == ["low", "medium", "high"]


def takes_anything(method: str, path: str) -> bool:
    operation = DESCRIPTION["paths"][path][method]
    return "requestBody" in operation or bool(operation.get("parameters"))


def test_devices_that_ask_too_often_are_told_so_as_described(
    described: Any,
    world: World,
    settings: Any,
) -> None:
    settings.RATES = dict.fromkeys(settings.RATES, (0, 900))
    asked = {"name": "desk", "system": "Linux", "run": "", "public_key": "0" * 64}
    case = described["/api/v1/devices"]["POST"].Case(body=asked, media_type="application/json")
    answer = case.call_and_validate(checks=CHECKS, headers=PLAIN)
    assert (answer.status_code, answer.json()["code"]) == (429, "E223")
