"""Answers to co-organizers and moderators at a run's addresses, and what the manage page offers those roles.

Without an entry in the table here, a co-organizer gets the organizer's answers and a moderator gets a member's. Both
have their role in the run and in the draft.
"""

from typing import NamedTuple

import pytest

from accounts.models import Person
from runs.lifecycle import roles
from runs.models import Run
from tests.runs.factories import PASSWORD, Owned, committed
from tests.web.browsing import as_, page
from tests.web.permission_table import Row, rows
from tests.web.requesters import given_role, make_world
from tests.web.test_permissions import CASES, asked, logged_in_once, word

HELPERS = {"co-organizer": "organizer", "moderator": "member"}  # the requester whose answers each role shares elsewhere

TABLE = """
                                                     co-organizer moderator

GET   /runs/<slug>/manage/                           200          200
GET   /runs/<slug>/delete/                           403          403
POST  /runs/<slug>/delete/                           403          403
POST  /runs/<slug>/announce/                         done         done
POST  /runs/<slug>/members/<member_id>/              done         done
POST  /runs/<slug>/removed/                          done         done
POST  /runs/<slug>/requests/<request_id>/            done         done
POST  /runs/<slug>/removed/<member_id>/              done         done
GET   /runs/<slug>/role/                             200          200
POST  /runs/<slug>/role/                             done         done
"""


class Answer(NamedTuple):
    row: Row
    role: str
    expected: str

    def __str__(self) -> str:
        return f"{self.role} {self.row}"


def answers() -> list[Answer]:
    lines = [line.split() for line in TABLE.splitlines() if line.strip()]
    assert lines[0] == [*HELPERS]
    own = {(method, address): dict(zip(HELPERS, said, strict=True)) for method, address, *said in lines[1:]}
    of_runs = [row for row in rows() if "/runs/<slug>" in row.address]
    assert own.keys() <= {(row.method, row.address) for row in of_runs}
    return [
        Answer(row, role, own.get((row.method, row.address), {}).get(role, row.answers[like]))
        for row in of_runs
        for role, like in HELPERS.items()
    ]


RUN_FORMS = ("extend/", "finish/", "rollback/0/", "edit/", "alerts/", "roles/", "publish/", "invitations/", "trail/")
FORMS = (*RUN_FORMS, "mix/", "texts/")


@pytest.fixture
def helper(db: None) -> Person:
    return Person.objects.create_user("Zoe", PASSWORD)


@pytest.mark.usefixtures("stranger", "operator")
@pytest.mark.parametrize("visibility", CASES[1:])
@pytest.mark.parametrize("role", HELPERS)
def test_helpers_get_the_answers_of_the_table(
    role: str, visibility: str, helper: Person, organizer: Person, volunteer: Person
) -> None:
    world = make_world(organizer, volunteer, visibility)
    for run in (world.run, Run.objects.get(slug="draft")):
        given_role(run, helper, Run.Role(role))
    cells = [cell for cell in answers() if cell.role == role and cell.row.visibility == visibility]
    column = logged_in_once(helper, world)
    got = {str(cell): word(asked(cell.row, column, world)) for cell in cells}
    assert got == {str(cell): cell.expected for cell in cells}


def offered_forms(client_page: str) -> set[str]:
    """Return the addresses below the run that a page links to or posts to."""
    return {place for place in FORMS if f"/runs/proverbs/{place}" in client_page}


@pytest.mark.usefixtures("laptop")
def test_a_page_offers_what_its_reader_may_do_and_nothing_else(run: Run, helper: Person, laptop: Owned) -> None:
    committed(run, (laptop.machine, 4))
    as_organizer = offered_forms(page(as_("Amina").get("/runs/proverbs/manage/")))
    offered = given_role(run, helper, Run.Role.MODERATOR)
    text = page(as_(helper).get("/runs/proverbs/manage/"))
    assert offered_forms(text) == set()
    assert 'action="/runs/proverbs/announce/"' in text
    assert 'action="/runs/proverbs/removed/"' in text
    assert 'name="action"' not in text
    assert 'id="danger"' not in text
    roles.give_up(offered=offered)
    given_role(run, helper, Run.Role.CO_ORGANIZER)
    text = page(as_(helper).get("/runs/proverbs/manage/"))
    assert offered_forms(text) == as_organizer > set()
    assert "Co-organizer</option>" not in text, "the organizer alone chooses co-organizers"


@pytest.mark.parametrize(("name", "sees"), [("Amina", True), ("Zoe", False)])
def test_the_organizer_alone_is_offered_to_delete_a_draft(run: Run, helper: Person, name: str, sees: bool) -> None:
    Run.objects.update(state=Run.State.DRAFT)
    given_role(run, helper, Run.Role.CO_ORGANIZER)
    assert ("/runs/proverbs/delete/" in page(as_(name).get("/runs/proverbs/manage/"))) is sees
