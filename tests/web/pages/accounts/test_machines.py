"""The list of a person's machines shows what each machine is doing now."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.models import Machine, Person
from coordination.models import Presence
from runs.models import AveragedTotal, Run
from tests.runs.factories import Owned, committed, opened, owned
from tests.web.browsing import as_, page
from web.pages.accounts.machines import own_machines


def seen(machine: Machine, **changes: Any) -> dict[str, Any]:
    usual = {"peer": machine.peer_id, "name": machine.person.username, "role": "trainer", "state": "ready"}
    return {**usual, "done": 0, "samples_per_s": 12.34, **changes}


def show(run: Run, *members: dict[str, Any]) -> None:
    facts = {"phase": "gathering", "done": 0, "target": 4, "void_rounds": 0, "links": {}, "members": list(members)}
    Presence.objects.update_or_create(run=run, defaults=facts)


@pytest.fixture
def run(organizer: Person) -> Run:
    return opened(organizer)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "Training"),
        ({"state": "syncing"}, "Loading the model"),
        ({"role": "auxiliary"}, "Averaging"),
        ({"role": "relay"}, "Relaying"),
    ],
)
def test_a_machine_does_what_its_host_says(run: Run, laptop: Owned, changes: dict[str, Any], state: str) -> None:
    show(run, seen(laptop.machine, **changes))
    (row,) = own_machines(laptop.machine.person)
    assert (row.run, row.state, row.is_online, row.speed) == (run, state, True, "12.3 samples/s")


def test_in_a_run_that_is_paused_it_waits(run: Run, laptop: Owned) -> None:
    Run.objects.filter(pk=run.pk).update(state=Run.State.PAUSED)
    show(run, seen(laptop.machine, samples_per_s=0.0))
    (row,) = own_machines(laptop.machine.person)
    assert (row.state, row.speed) == ("Waiting: the run is paused", "")


def test_who_is_nowhere_is_offline(run: Run, laptop: Owned, organizer: Person) -> None:
    show(run, seen(owned(organizer, "lab").machine))
    (row,) = own_machines(laptop.machine.person)
    assert (row.run, row.state, row.is_online) == (None, "Offline", False)
    show(run, seen(laptop.machine))
    Presence.objects.update(at=timezone.now() - timedelta(minutes=1))
    assert not own_machines(laptop.machine.person)[0].is_online, "of a host that is gone"


def test_credit_is_over_all_runs(run: Run, laptop: Owned, organizer: Person) -> None:
    other = opened(organizer, slug="other")
    for each in (run, other):
        committed(each, (laptop.machine, 40))
    facts = {"machine": laptop.machine, "person": laptop.machine.person}
    AveragedTotal.objects.create(run=run, bytes_averaged=3_000_000_000, **facts)
    (row,) = own_machines(laptop.machine.person)
    assert (row.samples, row.averaged) == (80, "3.0\N{NO-BREAK SPACE}GB")


def test_the_page_begins_with_the_machines_and_says_what_goes_on(run: Run, laptop: Owned) -> None:
    committed(run, (laptop.machine, 40))
    show(run, seen(laptop.machine))
    shown = page(as_(laptop.machine.person).get("/machines/"))
    assert "1 machine, 1 online. 40 samples so far." in shown
    assert shown.index("Your machines") < shown.index('name="code"')
    assert "Training, 12.3 samples/s" in shown
    assert f'href="/runs/{run.slug}/"' in shown


@pytest.mark.parametrize(("is_here", "seen_at"), [(True, []), (False, ["5 minutes ago"])])
def test_only_offline_machines_say_when_they_were_seen(
    run: Run, laptop: Owned, is_here: bool, seen_at: list[str]
) -> None:
    """The stored time is that of the last credential request. A credential remains valid for a while afterwards."""
    Machine.objects.filter(pk=laptop.machine.pk).update(last_seen_at=timezone.now() - timedelta(minutes=5, seconds=9))
    if is_here:
        show(run, seen(laptop.machine))
    shown = as_(laptop.machine.person).get("/machines/").content.decode()
    assert re.findall(r"Last seen <time[^>]*>(.*?)</time>", shown.replace("\xa0", " ")) == seen_at


def test_machines_of_one_name_are_numbered(laptop: Owned) -> None:
    person = laptop.machine.person
    younger, other = owned(person, laptop.machine.name), owned(person, "desktop")
    numbers = {row.machine: row.number for row in own_machines(person)}
    assert numbers == {laptop.machine: 1, younger.machine: 2, other.machine: 1}
