"""Permission to see, join and change a run."""

import json
import time

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.test import Client

from accounts.models import Person
from peer_agent.network.site import sign_request
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.messages import PROTOCOL
from runs.access import access_joinable_run, access_managed_run, access_run, listed_runs, participants, trusted_in
from runs.lifecycle import membership
from runs.models import Run
from tests.runs.factories import Owned, committed

NOBODY = AnonymousUser()
PUBLIC, UNLISTED, PRIVATE = Run.Visibility.PUBLIC, Run.Visibility.UNLISTED, Run.Visibility.PRIVATE


def make(run: Run, visibility: Run.Visibility) -> None:
    Run.objects.filter(pk=run.pk).update(visibility=visibility)


def test_anyone_sees_a_public_run(run: Run, stranger: Person) -> None:
    assert access_run(slug=run.slug, viewer=NOBODY) == run
    assert access_run(slug=run.slug, viewer=stranger) == run


def test_an_unlisted_run_is_seen_by_its_address_only(run: Run, stranger: Person) -> None:
    make(run, UNLISTED)
    assert access_run(slug=run.slug, viewer=NOBODY) == run
    assert list(listed_runs(stranger)) == []


def test_a_draft_is_on_its_organizers_list_alone(run: Run, organizer: Person, stranger: Person) -> None:
    assert list(listed_runs(stranger)) == [run]
    Run.objects.filter(pk=run.pk).update(state=Run.State.DRAFT)
    assert list(listed_runs(stranger)) == []
    assert list(listed_runs(organizer)) == [run]


def test_a_private_run_is_its_organizers_alone(run: Run, organizer: Person, stranger: Person, operator: Person) -> None:
    make(run, PRIVATE)
    assert access_run(slug=run.slug, viewer=organizer) == run
    for viewer in (NOBODY, None, stranger, operator):
        with pytest.raises(Problem, match="E305"):
            access_run(slug=run.slug, viewer=viewer)


@pytest.mark.parametrize("visibility", [PUBLIC, UNLISTED, PRIVATE])
def test_an_organizer_finds_every_run_of_theirs_on_the_list(
    run: Run, organizer: Person, visibility: Run.Visibility
) -> None:
    make(run, visibility)
    assert list(listed_runs(organizer)) == [run]


def test_only_the_organizer_manages(run: Run, organizer: Person, stranger: Person, operator: Person) -> None:
    assert access_managed_run(slug=run.slug, viewer=organizer) == run
    for viewer in (NOBODY, stranger, operator):
        with pytest.raises(PermissionDenied):
            access_managed_run(slug=run.slug, viewer=viewer)


def test_a_stranger_does_not_learn_that_a_private_run_exists(run: Run, stranger: Person) -> None:
    make(run, PRIVATE)
    with pytest.raises(Problem, match="E305"):
        access_managed_run(slug=run.slug, viewer=stranger)


def test_an_organizer_whose_account_is_closed_manages_nothing(run: Run, organizer: Person) -> None:
    organizer.is_active = False
    with pytest.raises(PermissionDenied):
        access_managed_run(slug=run.slug, viewer=organizer)


@pytest.mark.parametrize(("state", "code"), [("draft", "E308"), ("preparing", "E308"), ("finished", "E306")])
def test_run_without_rounds_cannot_be_joined(run: Run, stranger: Person, state: str, code: str) -> None:
    Run.objects.filter(pk=run.pk).update(state=state)
    with pytest.raises(Problem, match=code):
        access_joinable_run(slug=run.slug, viewer=stranger)


@pytest.mark.parametrize(("state", "wait"), [("draft", None), ("preparing", "20")])
def test_machine_may_wait_only_for_a_run_in_preparation(run: Run, laptop: Owned, state: str, wait: str | None) -> None:
    Run.objects.filter(pk=run.pk).update(state=state)
    facts = {"machine": laptop.machine.peer_id, "role": "trainer", "issued_at": time.time(), "protocol": PROTOCOL}
    body = json.dumps(facts).encode()
    address, headers = f"/api/v1/runs/{run.slug}/credential", sign_request(laptop.key, body)
    answer = Client().post(address, body, "application/json", headers=headers)
    assert (answer.json()["code"], answer.headers.get("Retry-After")) == ("E308", wait)


@pytest.mark.parametrize("state", ["open", "paused", "finishing"])
def test_a_run_that_takes_part_in_rounds_can_be_joined(run: Run, stranger: Person, state: str) -> None:
    Run.objects.filter(pk=run.pk).update(state=state)
    assert access_joinable_run(slug=run.slug, viewer=stranger) == run


@pytest.mark.parametrize(
    ("visibility", "names"), [(PUBLIC, {"Amina", "Teo"}), (UNLISTED, {"Amina", "Teo"}), (PRIVATE, {"Amina"})]
)
def test_who_gave_something_is_in_a_run_that_is_open_to_all(
    run: Run, laptop: Owned, stranger: Person, visibility: Run.Visibility, names: set[str]
) -> None:
    make(run, visibility)
    run.refresh_from_db()
    committed(run, (laptop.machine, 4))
    assert set(participants(run).values_list("username", flat=True)) == names


def test_members_are_in_a_run_until_they_are_removed(run: Run, volunteer: Person, laptop: Owned) -> None:
    committed(run, (laptop.machine, 4))
    member = membership.add_member(run=run, name="Teo")
    assert volunteer in participants(run)
    membership.remove_member(member=member)
    assert volunteer not in participants(run)


@pytest.mark.parametrize(
    ("visibility", "names"),
    [(PUBLIC, {"Amina", "Teo"}), (UNLISTED, {"Amina", "Teo"}), (PRIVATE, None), (Run.Visibility.REQUEST, None)],
)
def test_organizer_and_members_are_trusted_or_everybody(
    run: Run, volunteer: Person, stranger: Person, visibility: Run.Visibility, names: set[str] | None
) -> None:
    member = membership.add_member(run=run, name="Teo")
    make(run, visibility)
    run.refresh_from_db()
    assert trusted_in(run) == names
    membership.remove_member(member=member)
    assert volunteer.username not in (trusted_in(run) or ())


def test_whose_account_is_closed_is_in_no_run(run: Run, organizer: Person) -> None:
    Person.objects.filter(pk=organizer.pk).update(is_active=False)
    assert not participants(run).exists()
