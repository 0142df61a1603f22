"""The permission table compared with the site: each address in the URL configuration, each method, each requester."""

import copy
import dataclasses
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.core.cache import cache
from django.db import transaction
from django.middleware.csrf import _get_new_csrf_string
from django.test import Client

from accounts.deactivation import close_account
from accounts.models import Person, Token
from accounts.services import create_token
from runs.lifecycle import membership
from tests.runs.factories import PASSWORD, opened
from tests.web.permission_table import FURTHER, REQUESTERS, VISIBILITIES, Row, rows
from tests.web.requesters import (
    API,
    WAYS,
    Requester,
    World,
    asking,
    closed,
    logged_in,
    make_world,
    nobody,
    removed,
    revoked,
    routes,
)
from web import health

READING = ("GET", "HEAD", "OPTIONS")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
ROWS = rows()
# Unlisted runs and runs by request answer nearly as public runs do, so only `make check` requests them.
CASES = ["*", "public", "private", *(pytest.param(name, marks=pytest.mark.check) for name in ("unlisted", "request"))]
Column = Callable[[World], Requester]


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the checks of the site, which depend on the moment and not on the requester."""
    monkeypatch.setattr(health, "look", lambda *_, **__: [])


@pytest.fixture
def member(volunteer: Person) -> Person:
    return volunteer


@pytest.fixture
def people(stranger: Person, member: Person, organizer: Person, operator: Person) -> dict[str, Person]:
    return {"stranger": stranger, "member": member, "organizer": organizer, "operator": operator}


@pytest.fixture
def banned(db: None) -> Person:
    return Person.objects.create_user("Zahra", PASSWORD)


@pytest.fixture
def columns(people: dict[str, Person], banned: Person) -> dict[str, Column]:
    organizer = people["organizer"]
    made: dict[str, Column] = {name: partial(logged_in, person) for name, person in people.items()}
    made |= {"revoked": partial(revoked, organizer), "closed": partial(closed, organizer)}
    return {"nobody": nobody, **made, "removed": partial(removed, banned)}


def word(answer: Any) -> str:
    """Return the answer in the table's words."""
    if answer.status_code != 302:
        return str(answer.status_code)
    return "login" if answer["Location"].startswith("/login/") else "done"


def asked(row: Row, column: Column, world: World, **headers: str) -> Any:
    """Return the answer to one cell, and undo what the request changed: rows with a savepoint, rate limits by clearing
    the cache.
    """
    cache.clear()
    with transaction.atomic():
        requester = column(world)
        requester.client.defaults |= headers
        ask = WAYS.get(f"{row.method} {row.address}", asking(row.method))
        answer = ask(requester, world, world.address(row.address))
        transaction.set_rollback(True)
    return answer


def logged_in_once(person: Person, world: World) -> Column:
    """Log in once. Each cell then gets the same session, with its own cookies."""
    requester = logged_in(person, world)

    def column(_: World) -> Requester:
        client = Client()
        client.cookies = copy.deepcopy(requester.client.cookies)
        return dataclasses.replace(requester, client=client)

    return column


def differences(row: Row, columns: dict[str, Column], world: World) -> Iterator[str]:
    """Yield the cells for which the site's answer differs. If a GET is refused, the HEAD must be refused too."""
    for method in methods(row):
        cells = row._replace(method=method)
        for name, expected in row.answers.items():
            if (answer := word(asked(cells, columns[name], world))) != expected:
                yield f"{cells} for {name}: {answer}, expected {expected}"
    if row.method == "GET":
        head = row._replace(method="HEAD")
        for name, expected in row.answers.items():
            if expected != "200" and (answer := word(asked(head, columns[name], world))) not in (expected, "405"):
                yield f"{head} for {name}: {answer}, expected {expected} or 405"


def test_every_address_and_method_is_in_the_table(organizer: Person, operator: Person, member: Person) -> None:
    world = make_world(organizer, member, "public")
    expected = {(method, row.address) for row in ROWS for method in methods(row)}
    of_pages = {("HEAD", row.address) for row in ROWS if row.method == "GET"}  # HEAD is requested beside each GET
    answered = {
        (method, route)
        for route in routes()
        for method in METHODS
        if (method, route) not in of_pages and ((method, route) in expected or answers(operator, world, method, route))
    }
    assert not answered - expected, f"without a row in permission_table.py: {sorted(answered - expected)}"
    assert not expected - answered, f"a row without an address: {sorted(expected - answered)}"


def methods(row: Row) -> tuple[str, ...]:
    return METHODS if row.method == "ANY" else (row.method,)


def answers(person: Person, world: World, method: str, route: str) -> bool:
    """Return True if the address answers the method. An address whose placeholders cannot be filled in counts as
    answering it.
    """
    client = Client()
    client.force_login(person)
    try:
        address = world.address(route)
    except KeyError:
        return True
    with transaction.atomic():
        answer = client.generic(method, address)
        transaction.set_rollback(True)
    return bool(answer.status_code != 405)


def test_every_way_of_asking_is_of_a_row() -> None:
    known = {f"{row.method} {row.address}" for row in ROWS}
    beside = {f"HEAD {row.address}" for row in ROWS if row.method == "GET"}
    assert WAYS.keys() - known - beside == set()


def test_further_requesters_name_known_ones_and_real_addresses() -> None:
    places = {f"{row.method} {row.address}" for row in ROWS}
    for name, further in FURTHER.items():
        assert further.like in REQUESTERS, name
        assert further.but.keys() - places == set(), name


def test_no_row_stands_twice_and_runs_have_all_visibilities() -> None:
    assert len({str(row) for row in ROWS}) == len(ROWS)
    kinds: dict[tuple[str, str], set[str]] = {}
    for row in ROWS:
        kinds.setdefault((row.method, row.address), set()).add(row.visibility)
    assert [place for place, found in kinds.items() if found not in ({"*"}, {*VISIBILITIES})] == []
    assert [place for place, found in kinds.items() if "/runs/<slug>" in place[1] and found == {"*"}] == []


@pytest.mark.parametrize("visibility", CASES)
def test_everyone_gets_the_answer_of_the_table(
    visibility: str, columns: dict[str, Column], people: dict[str, Person]
) -> None:
    world = make_world(people["organizer"], people["member"], "public" if visibility == "*" else visibility)
    columns |= {name: logged_in_once(person, world) for name, person in people.items()}
    rows_here = [row for row in ROWS if row.visibility == visibility]
    assert rows_here
    assert [cell for row in rows_here for cell in differences(row, columns, world)] == []


@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_a_personal_token_opens_what_its_persons_session_opens(
    visibility: str, people: dict[str, Person], banned: Person
) -> None:
    world = make_world(people["organizer"], people["member"], visibility)
    readable = [
        row
        for row in ROWS
        if row.address.startswith(f"{API}runs") and row.method == "GET" and row.visibility in ("*", visibility)
    ]
    assert len(readable) > 5
    headers = {name: bearer(person) for name, person in people.items()}
    headers["removed"] = bearer(removed(banned, world).person)
    for row in readable:
        address = world.address(row.address)
        answers_here = {name: word(Client().get(address, headers=header)) for name, header in headers.items()}
        assert answers_here == {name: row.answers[name] for name in headers}, row
    close_account(person=people["organizer"])
    for row in readable:
        assert word(Client().get(world.address(row.address), headers=headers["organizer"])) == "401", row


def bearer(person: Person | None) -> dict[str, str]:
    assert person is not None
    return {"Authorization": f"Bearer {create_token(person=person, purpose=Token.Purpose.API).secret}"}


def test_what_another_run_has_is_not_reached_through_ones_own(
    organizer: Person, stranger: Person, member: Person
) -> None:
    """Numbers in addresses are easy to guess."""
    world, own = make_world(organizer, member, "private"), opened(stranger, slug="own")
    browser = Client()
    browser.force_login(stranger)
    for place in ("members/<member_id>/", "removed/<member_id>/", "invitations/<invitation_id>/"):
        rest = world.address(place)
        assert [browser.post(f"/runs/{slug}/{rest}").status_code for slug in (own.slug, world.run.slug)] == [404, 404]
    assert browser.get(f"/runs/{own.slug}/join/{world.names['invitation_secret']}/").status_code == 302
    assert browser.get(f"/api/v1/runs/{own.slug}/release/{world.names['name']}").status_code == 404
    assert membership.members_of(world.run).exists()
    assert membership.removed_from(world.run).exists()
    assert membership.open_invitations(world.run).exists()


def test_a_private_run_is_as_one_that_is_not_there(stranger: Person, organizer: Person, member: Person) -> None:
    """A missing run and a private run get the same status, headers and words, so answers do not reveal which names are
    taken.
    """
    world, missing = make_world(organizer, member, "private"), "nothing-here"
    world.names["invitation_secret"] = "wrong"
    taken = dict(world.names)
    about_runs = [row for row in ROWS if "<slug>" in row.address and row.visibility == "private"]
    assert about_runs
    for row in about_runs:
        world.names = dict(taken)
        shown = asked(row, partial(logged_in, stranger), world)
        world.names |= {"slug": missing, "draft": missing}
        nothing = asked(row, partial(logged_in, stranger), world)
        assert (shown.status_code, nothing.status_code) == (404, 404), row
        for slug in (world.run.slug, "draft"):
            shown.content = shown.content.replace(slug.encode(), missing.encode())
        assert without_chance(shown) == without_chance(nothing), row


def without_chance(answer: Any) -> tuple[str, dict[str, str]]:
    """Return the text and headers of an answer without their random parts."""
    words = re.sub(r'(csrfmiddlewaretoken" value|nonce)="[^"]*"', "", answer.content.decode())
    drawn = ("Content-Length", "Content-Security-Policy")
    return words, {name: value for name, value in answer.items() if name not in drawn}


# Forged requests

HARMLESS = {"/theme/", "/language/"}  # forms for all readers that change only how pages look
SIGNED = {"/account/notifications/stop/<token>/"}  # opened with a signed link, also by a program without a cookie
FORMS = [
    row
    for row in ROWS
    if row.method not in ("ANY", *READING) and not row.address.startswith(API) and row.address not in HARMLESS | SIGNED
]


def strict(person: Person) -> Column:
    """Log in with a client that enforces CSRF checks, as on a real browser."""
    return lambda world: logged_in(person, world, enforce_csrf_checks=True)


def with_token(person: Person) -> Column:
    def make(world: World) -> Requester:
        requester = strict(person)(world)
        requester.client.cookies["csrftoken"] = token = _get_new_csrf_string()
        requester.client.defaults["HTTP_X_CSRFTOKEN"] = token
        return requester

    return make


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize("visibility", CASES)
def test_form_without_its_token_or_from_elsewhere_does_nothing(
    visibility: str, organizer: Person, member: Person
) -> None:
    world = make_world(organizer, member, "public" if visibility == "*" else visibility)
    forms = [row for row in FORMS if row.visibility == visibility]
    assert forms
    for row in forms:
        person, name = (member, "member") if row.answers["member"] in ("done", "204") else (organizer, "organizer")
        assert word(asked(row, strict(person), world)) == "403", row
        for elsewhere in ("https://elsewhere.example", "null"):
            assert word(asked(row, with_token(person), world, HTTP_ORIGIN=elsewhere)) == "403", row
        own = asked(row, with_token(person), world, HTTP_ORIGIN="http://testserver")
        assert word(own) == row.answers[name], row


def test_a_session_alone_writes_nothing_through_the_api(organizer: Person, operator: Person, member: Person) -> None:
    world = make_world(organizer, member, "public")
    clients = [Client(), Client()]
    for client, person in zip(clients, (organizer, operator), strict=True):
        client.force_login(person)
    calls = [row for row in ROWS if row.method not in ("ANY", *READING) and row.address.startswith(API)]
    for row in (row for row in calls if row.visibility in ("*", "public")):
        for client in clients:
            answer = client.generic(row.method, world.address(row.address), b"{}", "application/json")
            assert 400 <= answer.status_code < 500, row
