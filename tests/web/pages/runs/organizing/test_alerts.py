"""Alerts where those who manage a run read them, and the number that they set."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import Person
from coordination.models import Presence
from runs.models import Run
from tests.runs.factories import Owned, committed
from tests.web.browsing import as_, page
from tests.web.pages.runs.organizing.test_roles import MANAGE
from tests.web.requesters import given_role

ALERTS = "/runs/proverbs/alerts/"


@pytest.fixture
def stalled(run: Run, laptop: Owned) -> Run:
    """A machine is there, and its step was made long ago."""
    entry, ago = committed(run, (laptop.machine, 4)), timezone.now() - timedelta(hours=2)
    type(entry).objects.update(at=ago)
    member = {"peer": laptop.machine.peer_id, "name": "Teo", "state": "ready", "done": 1, "samples_per_s": 1.0}
    members = [{**member, "role": "trainer"}, {**member, "role": "relay", "name": "operator"}]
    Presence.objects.create(run=run, phase="accumulate", target=4, members=members, crowd=[[ago.timestamp(), 1]])
    return run


@pytest.mark.parametrize("role", [None, Run.Role.CO_ORGANIZER, Run.Role.MODERATOR])
def test_they_stand_on_both_pages_for_those_who_have_a_role(
    stalled: Run, stranger: Person, role: Run.Role | None
) -> None:
    if role is not None:
        given_role(stalled, stranger, role)
    client = as_(stranger) if role else as_("Amina")
    text = page(client.get(MANAGE))
    assert "<strong>Step takes too long</strong> (E421). No step has been made since" in text
    assert "1 problem in this run: step takes too long. <a" in page(client.get("/runs/proverbs/"))


def test_nobody_else_reads_of_them(stalled: Run, volunteer: Person) -> None:
    for client in (Client(), as_(volunteer)):
        assert "in this run" not in page(client.get("/runs/proverbs/"))


def test_a_run_without_trouble_says_nothing(run: Run, organizer: Person) -> None:
    assert "in this run" not in page(as_(organizer).get("/runs/proverbs/"))


def test_a_minimum_is_set_shown_and_taken_off(stalled: Run, organizer: Person) -> None:
    client = as_(organizer)
    assert client.post(ALERTS, {"machines": "3"})["Location"] == MANAGE
    text = page(client.get(MANAGE))
    assert 'name="machines" value="3"' in text
    assert "(E422). Fewer than 3 machines have been training since" in text
    assert "2 problems in this run: step takes too long, few machines." in page(client.get("/runs/proverbs/"))
    client.post(ALERTS, {"machines": ""})
    assert "E422" not in page(client.get(MANAGE))
    assert Run.objects.get().least_machines is None


@pytest.mark.parametrize("machines", ["0", "-1", "x", "100001", "1.5"])
def test_what_is_no_number_of_machines_stays_in_its_field(run: Run, organizer: Person, machines: str) -> None:
    answer = as_(organizer).post(ALERTS, {"machines": machines})
    assert answer.status_code == 400
    assert f'value="{machines}"' in page(answer)
    assert Run.objects.get().least_machines is None
