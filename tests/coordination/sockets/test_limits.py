"""Limits on a control link: each peer's usage is bounded, and exceeding a limit harms only that peer."""

import time
from typing import Any

import pytest

from coordination.channel_layer.messages import RELAYS, ChannelOverflowed, HostAnnounced, HostSaid, LayerRestored
from coordination.hosts import claims
from coordination.sockets import consumer as consumers
from coordination.sockets import limits, polling
from coordination.sockets.limits import BUDGETS, Allowance, Allowances, Budget, Strangers, Takeovers
from coordination.threads import in_thread
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.messages import MAX_MESSAGE
from peer_agent.protocol.session import Identity
from peer_agent.protocol.wire import decode, encode
from tests.coordination.engines import fresh_database
from tests.coordination.example_run import Example, example_run
from tests.coordination.peer_link import Closed, PeerLink, connecting, credential_of, identity_of, linked
from tests.coordination.sockets.test_consumer import REFUSED, hello, received

REPLACED, TOO_LATE = 4002, 4000
SMALL = Budget(messages_per_s=2, messages=4, bytes_per_s=10, bytes=100)
TEO, NOOR = PeerId("0a" * 16), PeerId("0b" * 16)


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    with fresh_database("sqlite", request, tmp_path):
        yield example_run()


@pytest.fixture
def teo(example: Example) -> Identity:
    return identity_of(credential_of(example.teo, example.run), example.teo.key)


@pytest.fixture
def noor(example: Example) -> Identity:
    return identity_of(credential_of(example.noor, example.run), example.noor.key)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "LOOK_S", 0.01)
    monkeypatch.setattr(polling, "LEAST_PAUSE_S", 0.0)


async def hosted(layer: Any, example: Example) -> tuple[str, int]:
    """Claim the run for a host that has not been announced yet. Return the host's channel and fence."""
    channel = await layer.new_channel("host.")
    fence = await in_thread(claims.claim)(example.run, channel)
    assert fence is not None
    return channel, fence


async def greeted(link: PeerLink, layer: Any, example: Example, host: str) -> str:
    assert isinstance(await link.hear(), m.Rehello)
    await link.say(hello(example.run))
    return str((await received(layer, host)).channel)


async def how_it_closes(link: PeerLink) -> int:
    with pytest.raises(Closed) as closed:
        await link.bytes_from_site()
    return closed.value.code


class TestBudgets:
    async def test_who_says_too_much_is_refused_and_nobody_else_is(
        self, example: Example, teo: Identity, noor: Identity, layer: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        small = Budget(messages_per_s=0, messages=3, bytes_per_s=1e6, bytes=1e6)
        monkeypatch.setitem(limits.BUDGETS, Role.TRAINER, small)
        monkeypatch.setattr(consumers, "ALLOWANCES", Allowances())
        host, _ = await hosted(layer, example)
        async with linked(teo) as loud, linked(noor) as quiet:
            await loud.hear()
            for _ in range(4):
                await loud.say(hello(example.run))
            assert await loud.how_it_ends() == ("E370", REFUSED)
            await greeted(quiet, layer, example, host)
        async with linked(teo) as again:
            await again.hear()
            await again.say(hello(example.run))
            assert (await again.how_it_ends())[0] == "E370", "a new socket is no new budget"

    async def test_who_does_not_read_is_refused_and_begins_anew(
        self, example: Example, teo: Identity, layer: Any
    ) -> None:
        host, _ = await hosted(layer, example)
        async with linked(teo) as link:
            back = await greeted(link, layer, example, host)
            await layer.send(back, ChannelOverflowed())
            assert await link.how_it_ends() == ("E373", REFUSED)


class TestHosts:
    async def test_a_relay_of_yesterday_hears_of_a_run_of_today(
        self, example: Example, layer: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        relay = identity_of(credential_of(example.noor, None, Role.RELAY), example.noor.key)
        async with linked(relay) as link:
            now = time.time() + 25 * 3600
            monkeypatch.setattr(time, "time", lambda: now)
            monkeypatch.setattr(polling, "LOOK_S", 1e6)
            host = await layer.new_channel("host.")
            note = HostAnnounced(RunId(example.run.run_id), 1, host)
            await layer.group_send(RELAYS, note)
            assert isinstance(decode(await link.bytes_from_site()), m.Rehello)

    async def test_one_that_is_gone_is_looked_up_at_once(
        self, example: Example, teo: Identity, layer: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(polling, "LEAST_PAUSE_S", 0.0)
        monkeypatch.setattr(polling, "LOOK_S", 1e6)
        old, fence = await hosted(layer, example)
        async with linked(teo) as link:
            await greeted(link, layer, example, old)
            layer.forget(old)
            await in_thread(claims.release)(example.run, old, fence)
            new, _ = await hosted(layer, example)
            await link.say(m.Heartbeat(run=example.run.run_id, index=0))
            await greeted(link, layer, example, new)

    async def test_a_hello_that_is_not_answered_is_asked_for_again(
        self, example: Example, teo: Identity, layer: Any, quick: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(polling, "UNANSWERED_S", 0.0)
        host, _ = await hosted(layer, example)
        async with linked(teo) as link:
            await greeted(link, layer, example, host)
            back = await greeted(link, layer, example, host)
            notice = m.Notice(run=example.run.run_id, code="E219", text="an answer")
            await layer.send(back, HostSaid(encode(notice), example.run.run_id))
            while isinstance(heard := await link.hear(), m.Rehello):
                pass
            assert heard == notice

    async def test_after_a_loss_between_processes_everybody_says_hello(
        self, example: Example, teo: Identity, layer: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(polling, "LOOK_S", 1e6)  # the site would ask again for a hello that no host answered
        host, _ = await hosted(layer, example)
        async with linked(teo) as link:
            await greeted(link, layer, example, host)
            await layer.group_send("restored", LayerRestored())
            await greeted(link, layer, example, host)


class TestSessions:
    async def test_a_second_socket_of_a_machine_replaces_the_first(
        self, example: Example, teo: Identity, noor: Identity, layer: Any
    ) -> None:
        host, _ = await hosted(layer, example)
        async with linked(teo) as first, linked(noor) as other:
            await greeted(first, layer, example, host)
            async with linked(teo) as second:
                assert await how_it_closes(first) == REPLACED
                await greeted(second, layer, example, host)
                await greeted(other, layer, example, host)

    async def test_two_that_take_it_from_each_other_are_both_told(
        self, example: Example, teo: Identity, layer: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "TAKEOVERS", 1)
        monkeypatch.setattr(consumers, "TAKEOVERS", Takeovers())
        async with linked(teo) as one, linked(teo) as two:
            assert await how_it_closes(one) == REPLACED
            async with linked(teo) as three:
                assert (await two.how_it_ends())[0] == "E131"
                assert (await three.how_it_ends())[0] == "E131"


class TestStrangers:
    async def test_too_many_make_the_oldest_go(
        self, example: Example, teo: Identity, noor: Identity, layer: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "STRANGERS", 1)
        async with connecting(noor) as first, linked(teo):
            await first.dial()
            await first.bytes_from_site()
            async with linked(teo):
                assert await how_it_closes(first) == TOO_LATE

    async def test_one_gets_eight_kilobytes(self, teo: Identity, layer: Any) -> None:
        async with connecting(teo) as link:
            await link.dial()
            await link.bytes_from_site()
            await link.send(bytes(m.MAX_HANDSHAKE + 1))
            refusal = decode(await link.bytes_from_site())
            assert isinstance(refusal, m.Refusal)
            assert refusal.code == "E210"


def test_so_many_at_once_and_then_as_many_as_are_granted() -> None:
    allowance = Allowance(SMALL, 0.0)
    assert [allowance.spend(0, 0.0) for _ in range(5)] == [True] * 4 + [False]
    assert allowance.spend(0, 1.0)
    assert not allowance.spend(0, 1.0)


def test_bytes_count_as_messages_do() -> None:
    allowance = Allowance(SMALL, 0.0)
    assert allowance.spend(100, 0.0)
    assert not allowance.spend(1, 0.0)
    assert allowance.spend(5, 1.0)


def test_rest_saves_up_no_more_than_the_most() -> None:
    allowance = Allowance(SMALL, 0.0)
    assert sum(allowance.spend(0, 1e6) for _ in range(10)) == 4


def test_an_honest_machine_is_far_below_it() -> None:
    for budget in BUDGETS.values():
        assert budget.bytes >= 4 * MAX_MESSAGE, "hellos after a network that failed again and again"
    allowance = Allowance(BUDGETS[Role.TRAINER], 0.0)
    assert all(allowance.spend(10_000, second / 50) for second in range(3600 * 50)), "fifty reports a second"


def test_a_new_socket_is_no_new_budget() -> None:
    known = Allowances()
    first = known.of("a", "run", Role.TRAINER, 0.0)
    assert known.of("a", "run", Role.TRAINER, 1.0) is first
    assert known.of("a", "other", Role.TRAINER, 1.0) is not first


def test_machines_are_forgotten_the_oldest_first() -> None:
    known = Allowances()
    first = known.of("0", "run", Role.TRAINER, 0.0)
    for number in range(1, limits.KNOWN + 1):
        known.of(str(number), "run", Role.TRAINER, 0.0)
    assert known.of("0", "run", Role.TRAINER, 0.0) is not first


def test_who_is_heard_is_not_among_the_oldest() -> None:
    known = Allowances()
    first = known.of("0", "run", Role.TRAINER, 0.0)
    for number in range(1, limits.KNOWN + 1):
        known.of(str(number), "run", Role.TRAINER, 0.0)
        assert known.of("0", "run", Role.TRAINER, 0.0) is first


def test_an_auxiliary_has_a_budget_of_its_own() -> None:
    """An auxiliary reports every span and slot of one run: more than a trainer does, but less than a relay does."""
    trainer, auxiliary, relay = (BUDGETS[role] for role in (Role.TRAINER, Role.AUXILIARY, Role.RELAY))
    assert trainer.messages < auxiliary.messages < relay.messages
    assert Allowances().of("a", "run", Role.AUXILIARY, 0.0).budget is auxiliary


def test_the_stranger_that_takes_longest_makes_room() -> None:
    strangers: Strangers[int] = Strangers()
    assert {strangers.enter(number) for number in range(limits.STRANGERS)} == {None}
    strangers.leave(0)
    assert strangers.enter(1000) is None
    assert strangers.enter(1001) == 1


def test_two_that_take_the_session_from_each_other_are_noticed() -> None:
    takeovers = Takeovers()
    times = [takeovers.count(TEO, "run", second) for second in range(limits.TAKEOVERS + 1)]
    assert times == [False] * limits.TAKEOVERS + [True]
    assert not takeovers.count(TEO, "run", 10.0), "they were told; it is counted anew"


def test_a_network_that_fails_now_and_then_is_not_two() -> None:
    takeovers = Takeovers()
    between_s = 1.01 * limits.TAKEOVERS_S / limits.TAKEOVERS
    assert not any(takeovers.count(TEO, "run", number * between_s) for number in range(1000))


def test_takeover_counts_forget_the_oldest_machine_when_full() -> None:
    takeovers = Takeovers()
    for second in range(limits.TAKEOVERS):
        takeovers.count(TEO, "run", second)
    for number in range(limits.KNOWN):
        takeovers.count(str(number), "run", 1.0)
    assert not takeovers.count(TEO, "run", 1.0)


def test_others_are_not_counted() -> None:
    takeovers = Takeovers()
    for second in range(limits.TAKEOVERS):
        takeovers.count(TEO, "run", second)
    assert not takeovers.count(NOOR, "run", 1.0)
    assert not takeovers.count(TEO, "other run", 1.0)
