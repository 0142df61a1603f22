"""Database queries made by pages: fewer than twenty, and no more for fifty rows than for two."""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import Person, Team, TeamMember, Token
from accounts.services import create_token
from coordination.models import Presence
from notices import services as notices
from notices.models import Event, Way
from runs.lifecycle.membership import add_member, create_invitation
from runs.models import AveragedTotal, JoinRequest, NamedVolunteer, Release, Run, RunRole, Snapshot, Trial
from tests.runs.factories import committed, opened, owned, pictured
from tests.web.browsing import as_
from web.run_picture.loading import period_boards

FEW, MANY = 2, 50
LIMIT = 20  # exclusive
PAGES = [
    "/",
    "/operator/",
    "/metrics",
    "/machines/",
    "/account/",
    "/account/notifications/",
    "/account/notifications/new.json",
    "/runs/run-0/",
    "/runs/run-0/feed.json",
    "/runs/run-0/manage/",
    "/runs/run-0/pictures/0.png",
    "/runs/run-0/rollback/0/",
    "/runs/run-0/trail/",
    "/runs/run-0/try/",
    "/runs/run-0/leaderboard/",
    "/runs/run-0/leaderboard/?of=teams",
    "/runs/run-0/leaderboard/?of=machines",
    "/runs/run-0/leaderboard/?period=week",
    "/runs/run-0/leaderboard/?period=day",
    "/runs/run-0/swarm/",
    "/runs/run-0/activity/",
    "/runs/run-0/feed.rss",
    "/runs/run-0/own/",
    "/runs/run-0/curve.png",
    "/runs/run-0/curve.csv",
    "/runs/run-0/badge.svg",
    "/runs/run-0/embed/",
    "/runs/run-0/poster/",
    "/runs/run-0/projector/",
    "/runs/run-0/publish/",
    "/runs/run-0/edit/",
    "/runs/run-1/",
    "/runs/asked/",
    "/runs/asked/manage/",
    "/people/helper0/",
    "/people/helper0/certificate/",
    "/people/helper0/runs/run-0/",
    "/teams/many/",
    "/teams/many/preview.png",
    "/api/v1/runs",
    "/api/v1/runs/run-0",
    "/api/v1/runs/run-0/steps",
    "/api/v1/runs/run-0/ledger",
    "/api/v1/runs/run-0/leaderboard",
    "/api/v1/runs/run-0/snapshots",
    "/api/v1/runs/run-0/facts",
    "/api/v1/runs/run-0/plan",
    "/api/v1/runs/run-0/links",
    "/api/v1/runs/run-0/verdict",
    "/admin/runs/run/",
    "/admin/runs/dataset/",
    "/admin/runs/logentry/",
    "/admin/runs/ledgerentry/",
    "/admin/accounts/person/",
    "/admin/accounts/machine/",
]


@pytest.fixture
def grow(operator: Person) -> Callable[[int, int], None]:
    """Return a function that adds rows of every kind. The operator organizes all runs, and trains in one of them."""

    def add(begin: int, end: int) -> None:
        notices.choose(person=operator, wanted=[(Event.FINISHED, Way.BROWSER)])
        for place in range(begin, end):
            run = opened(operator, slug=f"run-{place}", visibility=Run.Visibility.PRIVATE)
            if place != 1:  # `finish` gives the run of place 1 its release
                Release.objects.create(run=run, state=Release.State.READY, step=1, index=place)
            Trial.objects.create(run=run, asker=str(place), prompt="")
            Presence.objects.create(run=run, phase="accumulate", done=0, target=4, members=[])
            if place == 0:
                train_in(run, operator)
                pictured(run.dataset, "cats", "dogs")
            if place == 1:
                finish(run, operator)
            first = Run.objects.get(slug="run-0")
            person = Person.objects.create_user(f"helper{place}", "seven calm otters")
            committed(first, (owned(person).machine, 4))
            team, _ = Team.objects.get_or_create(slug="many", defaults={"name": "Many", "leader": person})
            TeamMember.objects.create(team=team, person=person, joined_day=0)
            owned(operator, f"machine {place}")
            notices.send_test(person=operator, way=Way.BROWSER)
            create_token(person=operator, purpose=Token.Purpose.API, label=str(place))
            add_member(run=first, name=person.username)
            create_invitation(run=first)
            Presence.objects.update(at=timezone.now() + timedelta(days=1))  # so that the presence never becomes stale
            if place == 0:
                opened(operator, slug="asked", visibility=Run.Visibility.REQUEST)
            asking = Run.objects.get(slug="asked")
            JoinRequest.objects.create(run=asking, person=person, message="Please")
            RunRole.objects.create(run=first, person=person, role="moderator", invited_by=operator)
            Snapshot.objects.create(
                run=first, index=place + 1, step=place + 1, state_digest="", file=f"{place}", size=1, heldout_loss=5.0
            )

    return add


def train_in(run: Run, person: Person) -> None:
    """Add a two-second step and two machines online, so that every part of a run's page has data."""
    trains, averages = owned(person, "trains"), owned(person, "averages")
    for _ in range(2):
        committed(run, (trains.machine, 1))
    AveragedTotal.objects.create(run=run, machine=averages.machine, person=person, bytes_averaged=10)
    shown = {"name": person.username, "state": "ready", "done": 1, "samples_per_s": 1.0}
    members = [{**shown, "peer": trains.machine.peer_id, "role": "trainer"}]
    links = {trains.machine.peer_id: {"role": "trainer", "up": None, "down": None}}
    Presence.objects.filter(run=run).update(members=members, links=links)
    measured = {"state_digest": "", "size": 1, "heldout_loss": 5.0, "written": [["", "words"]]}
    Snapshot.objects.bulk_create(
        Snapshot(run=run, index=at, step=at, file=f"written {at}", **measured) for at in range(1001, 1008)
    )


def finish(run: Run, person: Person) -> None:
    """Finish the run with a downloadable model that is worse than the model of an earlier step."""
    committed(run, (owned(person, "ended").machine, 1))
    for at, loss in ((1, 4.0), (2, 5.0)):
        facts = {"state_digest": "", "size": 1, "heldout_loss": loss, "state": Snapshot.State.VERIFIED}
        Snapshot.objects.create(run=run, index=at, step=at, file=f"{at}", **facts)
    Release.objects.create(run=run, state=Release.State.READY, step=2, index=2, named=[person.username])
    NamedVolunteer.objects.create(run=run, person=person)
    Run.objects.filter(pk=run.pk).update(state=Run.State.FINISHED)


def questions(client: Client, path: str) -> int:
    client.get(path)  # fill the caches that survive a request
    with CaptureQueriesContext(connection) as asked:
        answer = client.get(path)
    assert answer.status_code == 200, path
    return len(asked)


def test_more_rows_are_no_more_questions(
    operator: Person, grow: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.feed.polling.KEEP_S", 0.0)
    monkeypatch.setattr(period_boards.cache, "_TTLCache__ttl", 3600.0)  # on a busy machine, ten seconds soon pass
    monkeypatch.setattr("web.pages.site.front.ON_A_PAGE", 2 * MANY)
    client = as_(operator)
    grow(0, FEW)
    few = {path: questions(client, path) for path in PAGES}
    grow(FEW, MANY)
    assert {path: questions(client, path) for path in PAGES} == few
    assert {path: count for path, count in few.items() if count >= LIMIT} == {}


@pytest.mark.parametrize("declined", [None, timezone.now()])
def test_who_asks_to_join_costs_no_more(
    volunteer: Person, organizer: Person, django_assert_max_num_queries: object, declined: datetime | None
) -> None:
    run = opened(organizer, slug="asked", visibility=Run.Visibility.REQUEST)
    JoinRequest.objects.create(run=run, person=volunteer, declined_at=declined)
    client = as_(volunteer)
    client.get("/runs/asked/")
    with django_assert_max_num_queries(LIMIT - 1):  # type: ignore[operator]
        assert client.get("/runs/asked/").status_code == 200
