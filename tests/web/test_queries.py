"""How many questions a page asks the database: as many for fifty rows as for two."""

from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.models import Person, Team, TeamMember, Token
from accounts.services import create_token
from coordination.models import Presence
from runs.lifecycle.membership import add_member, create_invitation
from runs.models import Run, Snapshot
from tests.runs.factories import committed, opened, owned
from tests.web.browsing import as_

FEW, MANY = 2, 50
PAGES = [
    "/",
    "/machines/",
    "/account/",
    "/runs/run-0/",
    "/runs/run-0/feed.json",
    "/runs/run-0/manage/",
    "/runs/run-0/leaderboard/",
    "/runs/run-0/leaderboard/?of=teams",
    "/people/helper0/",
    "/people/helper0/certificate/",
    "/people/helper0/runs/run-0/",
    "/teams/many/",
    "/api/v1/runs",
    "/api/v1/runs/run-0",
    "/api/v1/runs/run-0/steps",
    "/api/v1/runs/run-0/ledger",
    "/api/v1/runs/run-0/leaderboard",
    "/api/v1/runs/run-0/snapshots",
    "/admin/runs/run/",
    "/admin/runs/dataset/",
    "/admin/runs/logentry/",
    "/admin/runs/ledgerentry/",
    "/admin/accounts/person/",
    "/admin/accounts/machine/",
]


@pytest.fixture
def grow(operator: Person) -> Callable[[int, int], None]:
    """Rows of every kind, from one number to another; the operator is the organizer too."""

    def add(begin: int, end: int) -> None:
        for place in range(begin, end):
            run = opened(operator, slug=f"run-{place}", visibility=Run.Visibility.PRIVATE)
            Presence.objects.create(run=run, phase="accumulate", done=0, target=4, members=[])
            first = Run.objects.get(slug="run-0")
            person = Person.objects.create_user(f"helper{place}", "seven calm otters")
            committed(first, (owned(person).machine, 4))
            team, _ = Team.objects.get_or_create(slug="many", defaults={"name": "Many", "leader": person})
            TeamMember.objects.create(team=team, person=person, joined_day=0)
            owned(operator, f"machine {place}")
            create_token(person=operator, purpose=Token.Purpose.API, label=str(place))
            add_member(run=first, name=person.username)
            create_invitation(run=first)
            Snapshot.objects.create(
                run=first, index=place + 1, step=place + 1, state_digest="", file=f"{place}", size=1, heldout_loss=5.0
            )

    return add


def questions(client: Client, path: str) -> int:
    """How many a page asks."""
    client.get(path)  # what is kept between requests is there now
    with CaptureQueriesContext(connection) as asked:
        answer = client.get(path)
    assert answer.status_code == 200, path
    return len(asked)


def test_more_rows_are_no_more_questions(
    operator: Person, grow: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.feed.polling.KEEP_S", 0.0)
    monkeypatch.setattr("web.pages.site.front.ON_A_PAGE", 2 * MANY)
    client = as_(operator)
    grow(0, FEW)
    few = {path: questions(client, path) for path in PAGES}
    grow(FEW, MANY)
    assert {path: questions(client, path) for path in PAGES} == few
