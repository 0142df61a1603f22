"""The facts that pages show about a run's members, links and last plan."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from coordination import presence, store
from coordination.models import Presence
from coordination.presence import Carried, Link
from peer_agent.protocol.bandwidth.flows import Capacity
from peer_agent.protocol.coordinator.state import Member, RunState
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import AccumulatorId, PeerId
from runs.models import Run
from tests.coordination.example_plan import outline
from tests.coordination.example_run import example_run

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("role", "step", "of", "words"),
    [
        (Role.TRAINER, -1, 0, "syncing"),  # the peer has no replica yet
        (Role.TRAINER, 0, 0, "ready"),
        (Role.TRAINER, 11, 12, "ready"),  # the peer is applying the latest commit
        (Role.TRAINER, 10, 12, "syncing"),
        (Role.RELAY, -1, 12, "ready"),
        (Role.AUXILIARY, -1, 12, "ready"),
    ],
)
def test_only_who_is_more_than_one_step_behind_catches_up(role: Role, step: int, of: int, words: str) -> None:
    state = store.load(example_run().run, 1)
    state.step = of
    peer = PeerId("a" * 32)
    state.members = {peer: Member(peer, "Teo", "laptop", role, AccumulatorId("b" * 32), 0.0, step=step)}
    _, (seen,) = presence.picture_of(state)
    assert seen.state == words


def test_trainers_come_first_then_auxiliaries_then_relays() -> None:
    state = store.load(example_run().run, 1)
    roles = (Role.RELAY, Role.AUXILIARY, Role.TRAINER)
    for number, role in enumerate(roles):
        peer = PeerId(f"{number:032x}")
        state.members[peer] = Member(peer, "Teo", "laptop", role, AccumulatorId("b" * 32), 0.0)
    _, seen = presence.picture_of(state)
    assert [member.role for member in seen] == ["trainer", "auxiliary", "relay"]


@pytest.mark.parametrize(
    ("role", "reaches", "listens", "way"),
    [
        (Role.RELAY, (), True, ""),
        (Role.AUXILIARY, (), True, "direct"),  # other peers can reach the peer
        (Role.TRAINER, ("c", "d"), False, "direct"),
        (Role.TRAINER, ("d", "e"), False, "partly"),
        (Role.TRAINER, ("e",), False, "relayed"),
        (Role.TRAINER, (), False, "relayed"),
        (Role.TRAINER, None, False, ""),  # the peer has not reported how it listens
    ],
)
def test_a_way_is_what_a_member_says_of_those_who_average(
    role: Role, reaches: tuple[str, ...] | None, listens: bool, way: str
) -> None:
    state = store.load(example_run().run, 1)
    for letter in "cd":
        add_listener(state, letter, Role.AUXILIARY)
    add_listener(state, "e", Role.RELAY)
    peer = add_listener(state, "b", role) if listens else PeerId("b" * 32)
    member = state.members.setdefault(peer, Member(peer, "Teo", "laptop", role, AccumulatorId("b" * 32), 0.0))
    if reaches is not None:
        member.measures, member.reaches = True, frozenset(PeerId(letter * 32) for letter in reaches)
    _, seen = presence.picture_of(state)
    assert next(each.way for each in seen if each.peer == peer) == way


def test_where_relays_alone_average_everything_goes_through_them() -> None:
    state = store.load(example_run().run, 1)
    relay = add_listener(state, "e", Role.RELAY)
    member = Member(TEO, "Teo", "laptop", Role.TRAINER, AccumulatorId("b" * 32), 0.0, measures=True)
    member.reaches, state.members[TEO] = frozenset({relay}), member
    assert [each.way for each in presence.picture_of(state)[1]] == ["relayed", ""]


def add_listener(state: RunState, letter: str, role: Role) -> PeerId:
    peer = PeerId(letter * 32)
    member = Member(peer, "Ida", "seedbox", role, AccumulatorId("b" * 32), 0.0, url="wss://there", reduces=True)
    state.members[peer] = state.listening[peer] = member
    state.reached |= set() if role is Role.RELAY else {peer}
    return peer


TEO, RELAY = PeerId("a" * 32), PeerId("e" * 32)


@pytest.fixture
def state() -> RunState:
    """Return a state with a trainer whose upload rate is known, and a relay whose download rate has a known lower
    bound."""
    state = store.load(example_run().run, 1)
    for peer, role in ((TEO, Role.TRAINER), (RELAY, Role.RELAY)):
        state.members[peer] = Member(peer, "Teo", "laptop", role, AccumulatorId("b" * 32), 0.0)
    state.links.capacities = {
        (TEO, "up"): Capacity(2_125_000.4, is_floor=False, measured_at=1),
        (RELAY, "down"): Capacity(5_000_000, is_floor=True, measured_at=1),
        (PeerId("f" * 32), "up"): Capacity(1.0, is_floor=False, measured_at=1),
    }
    return state


def shown(state: RunState) -> Run:
    run = Run.objects.get()
    presence.show(run, presence.shown_of(state))
    return run


def test_link_rates_of_present_peers_are_shown_apart_from_floors(state: RunState) -> None:
    assert presence.links(shown(state)) == {
        TEO: Link("trainer", Carried(2_125_000, is_floor=False), None),
        RELAY: Link("relay", None, Carried(5_000_000, is_floor=True)),
    }


def test_links_of_a_run_that_nobody_drives_are_not_known(state: RunState) -> None:
    run = shown(state)
    Presence.objects.update(at=timezone.now() - timedelta(minutes=5))
    assert presence.links(run) == {}


def test_the_last_plan_is_read_as_it_was_written(state: RunState) -> None:
    state.outline = outline(TEO, RELAY)
    assert presence.last_plan(shown(state)) == outline(TEO, RELAY)


def test_last_plan_outlives_its_host_and_the_next_hosts_start(state: RunState) -> None:
    state.outline = outline(TEO, RELAY)
    run = shown(state)
    state.outline = None
    shown(state)
    Presence.objects.update(at=timezone.now() - timedelta(days=5))
    assert presence.last_plan(run) == outline(TEO, RELAY)


@pytest.mark.parametrize("plan", [None, {}, {"step": "five"}, [1]])
def test_a_plan_of_another_version_is_none(state: RunState, plan: object) -> None:
    run = shown(state)
    Presence.objects.update(plan=plan)
    assert presence.last_plan(run) is None


def numbers(run: Run) -> list[int]:
    return [each.trainers for each in presence.here(run).crowd]


def test_when_the_number_of_trainers_changed_is_kept(state: RunState) -> None:
    run, members = shown(state), dict(state.members)
    (first,) = presence.here(run).crowd
    assert first.trainers == 1
    assert timezone.now() - first.since < timedelta(seconds=5)
    shown(state)
    assert presence.here(run).crowd == [first], "nothing has changed"
    del state.members[TEO]
    shown(state)
    state.members = {**members, PeerId("c" * 32): members[TEO]}
    shown(state)
    assert numbers(run) == [1, 0, 2]


def test_while_no_host_drives_a_run_nobody_is_there(state: RunState) -> None:
    run = shown(state)
    gone = timezone.now() - timedelta(hours=1)
    Presence.objects.update(at=gone)
    assert numbers(run) == [1, 0]
    assert presence.here(run).crowd[1].since == gone
    shown(state)
    assert numbers(run) == [1, 0, 1]


def test_of_many_changes_the_newest_are_kept(state: RunState) -> None:
    members = dict(state.members)
    for number in range(presence.CHANGES + 3):
        state.members = members if number % 2 else {}
        run = shown(state)
    assert numbers(run) == [(number + 1) % 2 for number in range(presence.CHANGES)]
    assert Presence.objects.get().at > timezone.now() - timedelta(seconds=5)


def test_without_a_host_there_was_no_plan(state: RunState) -> None:
    assert presence.last_plan(Run.objects.get()) is None


def test_all_of_it_is_read_in_one_query(state: RunState, django_assert_num_queries: Any) -> None:
    state.outline = outline(TEO, RELAY)
    run = shown(state)
    with django_assert_num_queries(1):
        known = presence.here(run, with_links=True)
    assert known == presence.Here(
        presence.online(run),
        state.phase.value,
        presence.last_plan(run),
        Presence.objects.get().links,
        known.crowd,
    )
    assert presence.links_in(known.links) == presence.links(run)
    assert presence.here(run) == known._replace(links={})
    Presence.objects.update(at=timezone.now() - timedelta(minutes=5))
    gone = presence.here(run, with_links=True)
    assert gone == presence.Here([], "", outline(TEO, RELAY), {}, gone.crowd)
    assert gone.crowd[-1].trainers == 0
    Presence.objects.all().delete()
    assert presence.here(run) == presence.Here([], "", None, {}, [])


def test_shown_facts_do_not_change_while_a_thread_writes_them(state: RunState) -> None:
    state.outline = outline(TEO, RELAY)
    before = presence.shown_of(state)
    state.outline.took_s = 3.0
    assert before.plan == msgspec.to_builtins(outline(TEO, RELAY))
