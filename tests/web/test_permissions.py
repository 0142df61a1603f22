"""The permission table against the site: every address of the URL configuration, every method, every requester."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.middleware.csrf import _get_new_csrf_string
from django.test import Client

from accounts.deactivation import close_account
from accounts.models import Person, Token
from accounts.services import create_token
from runs.lifecycle import membership
from tests.runs.factories import PASSWORD, opened
from tests.web.permission_table import EVERYBODY, FURTHER, REQUESTERS, VISIBILITIES, Row, rows
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

READING = ("GET", "HEAD", "OPTIONS")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
ROWS = rows()
Column = Callable[[World], Requester]


@pytest.fixture
def member(volunteer: Person) -> Person:
    """Whom `make_world` makes a member of the run."""
    return volunteer


@pytest.fixture
def people(stranger: Person, member: Person, organizer: Person, operator: Person) -> dict[str, Person]:
    """Those who can log in, by their column."""
    return {"stranger": stranger, "member": member, "organizer": organizer, "operator": operator}


@pytest.fixture
def banned(db: None) -> Person:
    """Whom the organizer removes."""
    return Person.objects.create_user("Zahra", PASSWORD)


@pytest.fixture
def columns(people: dict[str, Person], banned: Person) -> dict[str, Column]:
    """How each requester is made."""
    organizer = people["organizer"]
    made: dict[str, Column] = {name: partial(logged_in, person) for name, person in people.items()}
    made |= {"revoked": partial(revoked, organizer), "closed": partial(closed, organizer)}
    return {"nobody": nobody, **made, "removed": partial(removed, banned)}


def word(answer: Any) -> str:
    """The answer as the table says it."""
    if answer.status_code != 302:
        return str(answer.status_code)
    return "login" if answer["Location"].startswith("/login/") else "done"


def asked(row: Row, column: Column, world: World, **headers: str) -> Any:
    """The answer to one cell; what it changed is undone."""
    with transaction.atomic():
        requester = column(world)
        for name, value in headers.items():
            requester.client.defaults[name] = value
        ask = WAYS.get(f"{row.method} {row.address}", asking(row.method))
        answer = ask(requester, world, world.address(row.address))
        transaction.set_rollback(True)
    return answer


def visibility_of(row: Row) -> str:
    return "public" if row.visibility == "*" else row.visibility


def test_every_address_and_method_is_in_the_table(
    organizer: Person, operator: Person, member: Person, tmp_path: Path
) -> None:
    world = make_world(organizer, member, tmp_path, "public")
    expected = {(method, row.address) for row in ROWS for method in methods(row)}
    of_pages = {("HEAD", row.address) for row in ROWS if row.method == "GET"}  # has a test of its own
    answered = {
        (method, route)
        for route in routes()
        for method in METHODS
        if (method, route) not in of_pages and ((method, route) in expected or answers(operator, world, method, route))
    }
    assert not answered - expected, f"without a row in permission_table.py: {sorted(answered - expected)}"
    assert not expected - answered, f"a row without an address: {sorted(expected - answered)}"


def methods(row: Row) -> tuple[str, ...]:
    """What a row is about."""
    return METHODS if row.method == "ANY" else (row.method,)


def answers(person: Person, world: World, method: str, route: str) -> bool:
    """Whether something answers here; an address whose gaps cannot be filled counts as answering."""
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
    assert WAYS.keys() - {f"{row.method} {row.address}" for row in ROWS} == set()


def test_whoever_is_like_somebody_else_is_so_at_addresses_that_there_are() -> None:
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


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_everyone_gets_the_answer_of_the_table(
    row: Row, columns: dict[str, Column], organizer: Person, member: Person, tmp_path: Path
) -> None:
    world = make_world(organizer, member, tmp_path, visibility_of(row))
    for method in methods(row):
        cells = row._replace(method=method)
        assert {name: word(asked(cells, columns[name], world)) for name in EVERYBODY} == row.answers, method


@pytest.mark.parametrize("row", [row for row in ROWS if row.method == "GET"], ids=str)
def test_a_request_for_the_headers_alone_opens_no_more_than_one_for_the_page(
    row: Row, columns: dict[str, Column], organizer: Person, member: Person, tmp_path: Path
) -> None:
    world = make_world(organizer, member, tmp_path, visibility_of(row))
    head = row._replace(method="HEAD")
    for name in EVERYBODY:
        assert word(asked(head, columns[name], world)) in (row.answers[name], "405"), name


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.address.startswith(f"{API}runs") and row.method == "GET"], ids=str
)
def test_a_personal_token_opens_what_its_persons_session_opens(
    row: Row, people: dict[str, Person], banned: Person, tmp_path: Path
) -> None:
    world = make_world(people["organizer"], people["member"], tmp_path, visibility_of(row))
    address, headers = world.address(row.address), {name: bearer(person) for name, person in people.items()}
    headers["removed"] = bearer(removed(banned, world).person)
    for name, header in headers.items():
        assert word(Client().get(address, headers=header)) == row.answers[name], name
    close_account(person=people["organizer"])
    assert word(Client().get(address, headers=headers["organizer"])) == "401"


def bearer(person: Person | None) -> dict[str, str]:
    """The header of a new personal token."""
    assert person is not None
    return {"Authorization": f"Bearer {create_token(person=person, purpose=Token.Purpose.API).secret}"}


def test_what_another_run_has_is_not_reached_through_ones_own(
    organizer: Person, stranger: Person, member: Person, tmp_path: Path
) -> None:
    """Each object behind the door of its own run: numbers in addresses are easily guessed."""
    world, own = make_world(organizer, member, tmp_path, "private"), opened(stranger, slug="own")
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


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "<slug>" in row.address and row.visibility == "private"], ids=str
)
def test_a_private_run_is_as_one_that_is_not_there(
    row: Row, stranger: Person, organizer: Person, member: Person, tmp_path: Path
) -> None:
    """Status, headers and words are the same, so that nobody learns which names are taken."""
    world = make_world(organizer, member, tmp_path, "private")
    if "<secret>" in row.address:
        world.names["invitation_secret"] = "wrong"
    shown = asked(row, partial(logged_in, stranger), world)
    missing = "nothing-here"
    world.names |= {"slug": missing, "draft": missing}
    nothing = asked(row, partial(logged_in, stranger), world)
    assert (shown.status_code, nothing.status_code) == (404, 404)
    for slug in (world.run.slug, "draft"):
        shown.content = shown.content.replace(slug.encode(), missing.encode())
    assert without_chance(shown) == without_chance(nothing)


def without_chance(answer: Any) -> tuple[str, dict[str, str]]:
    """What one reads, and the headers, without what is new in every answer."""
    words = re.sub(r'(csrfmiddlewaretoken" value|nonce)="[^"]*"', "", answer.content.decode())
    drawn = ("Content-Length", "Content-Security-Policy")
    return words, {name: value for name, value in answer.items() if name not in drawn}


# Writes from elsewhere

HARMLESS = {"/theme/", "/language/"}  # forms on pages that are the same for everybody, which change how these look
SIGNED = {"/account/notifications/stop/<token>/"}  # opened by who has the link, also by a program without a cookie
FORMS = [
    row
    for row in ROWS
    if row.method not in ("ANY", *READING) and not row.address.startswith(API) and row.address not in HARMLESS | SIGNED
]
CALLS = [row for row in ROWS if row.method not in ("ANY", *READING) and row.address.startswith(API)]


def strict(person: Person) -> Column:
    """A browser that is logged in and minds forgery as a real one does."""
    return lambda world: logged_in(person, world, enforce_csrf_checks=True)


def with_token(person: Person) -> Column:
    """The same, and every form carries the token of its cookie."""

    def make(world: World) -> Requester:
        requester = strict(person)(world)
        requester.client.cookies["csrftoken"] = token = _get_new_csrf_string()
        requester.client.defaults["HTTP_X_CSRFTOKEN"] = token
        return requester

    return make


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize("row", FORMS, ids=str)
def test_a_form_without_its_token_or_from_another_site_does_nothing(
    row: Row, organizer: Person, member: Person, tmp_path: Path
) -> None:
    world = make_world(organizer, member, tmp_path, visibility_of(row))
    person = member if row.answers["member"] in ("done", "204") else organizer
    assert word(asked(row, strict(person), world)) == "403"
    assert word(asked(row, with_token(person), world, HTTP_ORIGIN="https://elsewhere.example")) == "403"
    assert word(asked(row, with_token(person), world, HTTP_ORIGIN="null")) == "403"
    own = asked(row, with_token(person), world, HTTP_ORIGIN="http://testserver")
    assert word(own) == row.answers["member" if person == member else "organizer"]


@pytest.mark.parametrize("row", CALLS, ids=str)
def test_a_session_alone_writes_nothing_through_the_api(
    row: Row, organizer: Person, operator: Person, member: Person, tmp_path: Path
) -> None:
    world = make_world(organizer, member, tmp_path, visibility_of(row))
    for person in (organizer, operator):
        client = Client()
        client.force_login(person)
        answer = client.generic(row.method, world.address(row.address), b"{}", "application/json")
        assert 400 <= answer.status_code < 500
