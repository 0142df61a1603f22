"""Notices about stopped machines and about runs that need volunteers: sent in time, once, and withdrawn on recovery."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import Person
from coordination import presence, store
from coordination.hosts import host, requests
from coordination.hosts.host import Host
from coordination.hosts.requests import NEEDED_AFTER, OLD, STOPPED_AFTER
from coordination.models import Presence
from coordination.threads import in_thread
from notices import outbox
from notices import services as notices
from notices.models import Event, Notice, Way
from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.state import Member, RunState
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import AccumulatorId
from runs.lifecycle import membership, services
from runs.models import Run
from tests.coordination.example_run import Example, example_run
from tests.coordination.scripted_host import TEO, Script, arrived, driven, driving, example, said, script, until
from tests.runs.factories import committed, owned

__all__ = ["driven", "example", "script"]


class World:
    """A run whose host polls the database only when the test asks for it."""

    def __init__(self, made: Example) -> None:
        self.run, self.teo, self.noor = made.run, made.teo, made.noor
        self.state: RunState = store.load(made.run, 1)
        self.needed: bool | None = None
        for person in Person.objects.all():
            chosen = [(event, Way.BROWSER) for event in (Event.NEEDED, Event.STOPPED)]
            notices.choose(person=person, wanted=chosen)

    def here(self, *owners: Any, role: Role = Role.TRAINER) -> None:
        self.state.members = {
            owner.machine.peer_id: Member(
                owner.machine.peer_id, "Teo", "laptop", role, AccumulatorId("b" * 32), 0.0, step=0
            )
            for owner in owners
        }

    def look(self, *left: Any, unwanted: Any = ()) -> None:
        gone = [owner.machine.peer_id for owner in left]
        codes = {owner.machine.peer_id: "E214" for owner in unwanted}
        asked = requests.asked_of(self.state, codes, left=gone, needed=self.needed)
        requests.look(self.run, asked)
        self.needed = asked.needs

    def told(self, event: Event) -> set[str]:
        return set(Notice.objects.filter(event=event).values_list("person__username", flat=True))


@pytest.fixture
def world(db: None) -> World:
    return World(example_run())


class TestStopped:
    def test_the_owner_alone_is_told_after_five_minutes(self, world: World) -> None:
        world.here(world.teo, world.noor)
        world.look()
        assert not Notice.objects.exists()
        world.here(world.noor)
        world.look()
        (notice,) = Notice.objects.filter(event=Event.STOPPED)
        assert (notice.person, notice.machine, notice.title) == (world.teo.machine.person, "laptop", world.run.title)
        assert notice.due_at == notice.at + STOPPED_AFTER
        world.look()
        assert Notice.objects.filter(event=Event.STOPPED).count() == 1

    def test_what_comes_back_in_time_is_not_told(self, world: World) -> None:
        world.here(world.teo, world.noor)
        world.look()
        world.here(world.noor)
        world.look()
        world.here(world.teo, world.noor)
        world.look()
        assert not Notice.objects.exists()

    def test_what_its_owner_stopped_is_not_told(self, world: World) -> None:
        world.here(world.teo, world.noor)
        world.look()
        world.here(world.noor)
        world.look(world.teo)
        assert world.told(Event.STOPPED) == set()

    def test_what_was_shut_out_is_not_told(self, world: World) -> None:
        world.here(world.teo, world.noor)
        world.look()
        world.here(world.noor)
        world.look(unwanted=[world.teo])
        assert world.told(Event.STOPPED) == set()

    def test_a_relay_computes_nothing(self, world: World) -> None:
        world.here(world.teo, role=Role.RELAY)
        world.look()
        world.here()
        world.look()
        assert world.told(Event.STOPPED) == set()

    def test_an_auxiliary_does(self, world: World) -> None:
        world.here(world.teo, role=Role.AUXILIARY)
        world.look()
        world.here()
        world.look()
        assert world.told(Event.STOPPED) == {"Teo"}

    def test_after_a_restart_of_the_site_it_is_known_who_was_here(self, world: World) -> None:
        """Running machines return within seconds of a restart, so a machine that stays away has stopped."""
        world.here(world.teo, world.noor)
        world.look()
        again = World.__new__(World)
        again.__dict__ = {**world.__dict__, "needed": None}
        again.here()
        again.look()
        again.here(world.noor)
        again.look()
        assert again.told(Event.STOPPED) == {"Teo"}
        assert again.told(Event.NEEDED) == set()

    def test_an_old_picture_says_nothing(self, world: World) -> None:
        world.here(world.teo)
        world.look()
        Presence.objects.update(at=timezone.now() - OLD - timedelta(minutes=1))
        world.here()
        world.look()
        assert world.told(Event.STOPPED) == set()

    def test_whoever_did_not_choose_it_is_told_nothing(self, world: World) -> None:
        notices.choose(person=world.teo.machine.person, wanted=[])
        world.here(world.teo)
        world.look()
        world.here()
        world.look()
        assert world.told(Event.STOPPED) == set()


class TestNeeded:
    def test_organizer_and_contributors_are_told_when_training_stops(self, world: World) -> None:
        committed(world.run, (world.noor.machine, 4))
        world.here(world.teo)
        world.look()
        world.here()
        world.look()
        assert world.told(Event.NEEDED) == {"Amina", "Noor"}, "its organizer, and who gave something"
        notice = Notice.objects.filter(event=Event.NEEDED).first()
        assert notice is not None
        assert notice.due_at == notice.at + NEEDED_AFTER
        assert notice.path == f"/runs/{world.run.slug}/"

    def test_not_where_somebody_comes_meanwhile(self, world: World) -> None:
        world.here()
        world.look()
        assert world.told(Event.NEEDED) == {"Amina"}
        world.here(world.noor)
        world.look()
        assert world.told(Event.NEEDED) == set()

    def test_relays_and_auxiliaries_are_not_enough(self, world: World) -> None:
        world.here(world.noor, role=Role.AUXILIARY)
        world.look()
        assert world.told(Event.NEEDED) == {"Amina"}

    def test_a_paused_run_needs_nobody(self, world: World) -> None:
        world.here()
        world.look()
        world.state.goal = "paused"
        world.look()
        assert world.told(Event.NEEDED) == set()
        world.state.goal = "running"
        world.look()
        assert world.told(Event.NEEDED) == {"Amina"}

    def test_once_a_day_however_often_they_come_and_go(self, world: World) -> None:
        for _ in range(3):
            world.here()
            world.look()
            Notice.objects.update(state=Notice.State.SENT, tries=1)
            world.here(world.noor)
            world.look()
        assert Notice.objects.filter(event=Event.NEEDED).count() == 1

    def test_a_run_that_ends_needs_nobody_any_more(self, world: World) -> None:
        world.here()
        world.look()
        services.finish_run(run=world.run)
        assert world.told(Event.NEEDED) == set()

    def test_members_and_not_whoever_was_removed(self, world: World) -> None:
        Run.objects.filter(pk=world.run.pk).update(visibility=Run.Visibility.PRIVATE)
        committed(world.run, (world.noor.machine, 4))
        membership.add_member(run=world.run, name="Teo")
        world.here()
        world.look()
        assert world.told(Event.NEEDED) == {"Amina", "Teo"}
        membership.remove_member(member=world.run.members.get())
        Notice.objects.all().delete()
        world.needed = None
        world.look()
        assert world.told(Event.NEEDED) == {"Amina"}


def test_what_is_shown_and_what_is_told_are_one_transaction(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.here(world.teo)
    world.look()
    world.here()

    def breaks(*_: Any, **__: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(outbox, "note", breaks)
    with pytest.raises(RuntimeError):
        world.look()
    assert presence.online(world.run), "as it was"
    monkeypatch.undo()
    world.look()
    assert world.told(Event.STOPPED) == {"Teo"}


def test_while_nothing_changes_it_costs_nothing(world: World) -> None:
    """A host polls every second, so a poll that finds no changes must not cost a query."""
    world.here(world.teo)
    world.look()
    with CaptureQueriesContext(connection) as asked:
        presence.show(world.run, presence.shown_of(world.state))
    quiet = len([query for query in asked if "SAVEPOINT" not in query["sql"]])
    with CaptureQueriesContext(connection) as asked:
        asking = requests.asked_of(world.state, {}, left=(), needed=False)
        requests._show(world.run, asking)
    assert len([query for query in asked if "SAVEPOINT" not in query["sql"]]) == quiet == 2


def test_many_that_stop_at_once_are_a_few_questions(world: World) -> None:
    """Many machines stop at once when a relay's network is cut. One query is allowed for each person who chose this
    notice.
    """
    person = Person.objects.create_user("Olga", None)
    many = [owned(person, f"machine {place}") for place in range(40)]
    world.here(*many)
    world.look()
    world.here()
    with CaptureQueriesContext(connection) as asked:
        world.look()
    assert len(asked) < 40


# The host's part


async def test_a_host_knows_who_left_on_purpose(
    driven: Host, script: Script, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[requests.Asked] = []
    look = requests.look

    def looking(run: Run, question: requests.Asked) -> requests.Wishes:
        asked.append(question)
        return look(run, question)

    monkeypatch.setattr(requests, "look", looking)
    monkeypatch.setattr(host, "LOOK_S", 0.01)
    async with driving(driven):
        (channel,) = await arrived(driven, TEO)
        await until(lambda: driven.channels)
        await driven.layer.send(driven.holding.owner, said(TEO, m.Leave(run=driven.run.run_id), channel))
        await until(lambda: any(TEO in question.left for question in asked))
        await until(lambda: TEO not in asked[-1].left)
    assert [question.needed for question in asked[:2]] == [None, True]


async def test_a_host_tells_the_organizer_that_nobody_is_there(
    driven: Host, script: Script, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "LOOK_S", 0.01)
    organizer = example.run.organizer
    await in_thread(notices.choose)(person=organizer, wanted=[(Event.NEEDED, Way.BROWSER)])
    async with driving(driven):
        while not await in_thread(Notice.objects.filter(person=organizer).exists)():
            pass
    later = timezone.now() + NEEDED_AFTER
    assert len(await in_thread(outbox.for_browser)(organizer.pk, later)) == 1
