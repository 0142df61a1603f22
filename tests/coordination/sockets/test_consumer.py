"""The control link at the site: which peers it admits, the errors for refused peers, and the routing of messages."""

import asyncio
import time
from typing import Any

import msgspec
import pytest
from channels.generic.websocket import AsyncWebsocketConsumer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace
from uvicorn.protocols.utils import ClientDisconnected

from coordination.channel_layer.messages import (
    RELAYS,
    HostAnnounced,
    HostSaid,
    LayerRestored,
    MachineRevoked,
    PeerLost,
    PeerSaid,
    group_of,
)
from coordination.hosts import claims
from coordination.sockets import consumer as consumers
from coordination.threads import in_thread
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.session import Failed, Identity, Opened
from peer_agent.protocol.wire import decode, encode
from runs.models import Run
from tests.coordination.engines import PATIENCE_S, fresh_database
from tests.coordination.example_run import ACCUMULATOR, Example, example_run
from tests.coordination.peer_link import Closed, changed, connecting, credential_of, identity_of, linked
from tests.runs.factories import opened

REFUSED = 4001
STRANGER = Ed25519PrivateKey.generate()
OTHER_RUN = RunId("0b" * 16)


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """Yield a run on SQLite only, since `test_claims` and `test_store` cover every database."""
    with fresh_database("sqlite", request, tmp_path):
        yield example_run()


@pytest.fixture
def teo(example: Example) -> Identity:
    return identity_of(credential_of(example.teo, example.run), example.teo.key)


def hello(run: Run) -> m.Hello:
    return m.Hello(run=run.run_id, accumulator=ACCUMULATOR)


async def received(layer: Any, channel: str) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await layer.receive(channel)


async def how_a_handshake_ends(identity: Identity) -> tuple[str, int]:
    async with connecting(identity) as link:
        event = await link.open()
        if isinstance(event, Opened):
            return await link.how_it_ends()
        assert isinstance(event, Failed)
        with pytest.raises(Closed) as closed:
            await link.bytes_from_site()
        return event.fault.code, closed.value.code


class TestHandshake:
    async def test_a_machine_of_the_run_is_let_in(self, teo: Identity, layer: Any) -> None:
        async with linked(teo) as link:
            assert link.session.peer is None, "the site proves itself by its key alone"

    async def test_the_server_learns_whose_link_it_is_and_not_before(
        self, example: Example, teo: Identity, layer: Any
    ) -> None:
        async with connecting(teo) as dialler:
            await dialler.dial()
            assert dialler.proved == []
        async with linked(teo) as dialler:
            assert dialler.proved == [f"{example.teo.machine.peer_id} {example.run.run_id}"]

    async def test_a_credential_of_somebody_else(self, example: Example, layer: Any) -> None:
        liar = identity_of(credential_of(example.teo, example.run), example.teo.key, issued_by=STRANGER)
        assert await how_a_handshake_ends(liar) == ("E201", REFUSED)

    async def test_one_that_is_over(self, teo: Identity, layer: Any) -> None:
        late = changed(teo, not_before=int(time.time()) - 7200, expires=int(time.time()) - 3600)
        assert await how_a_handshake_ends(late) == ("E202", REFUSED)

    async def test_one_of_the_future(self, teo: Identity, layer: Any) -> None:
        early = changed(teo, not_before=int(time.time()) + 3600, expires=int(time.time()) + 7200)
        assert await how_a_handshake_ends(early) == ("E203", REFUSED)

    async def test_a_clock_within_five_minutes_is_forgiven(self, teo: Identity, layer: Any) -> None:
        async with linked(changed(teo, not_before=int(time.time()) + 240, expires=int(time.time()) + 3600)):
            pass

    async def test_somebody_elses_credential(self, example: Example, layer: Any) -> None:
        thief = identity_of(credential_of(example.teo, example.run), example.noor.key)
        assert await how_a_handshake_ends(thief) == ("E209", REFUSED)

    async def test_a_machine_that_the_site_has_forgotten(self, example: Example, teo: Identity, layer: Any) -> None:
        await in_thread(example.teo.machine.delete)()
        assert await how_a_handshake_ends(teo) == ("E101", REFUSED)

    @pytest.mark.parametrize(("state", "wait_s"), [(Run.State.DRAFT, -1.0), (Run.State.PREPARING, 20.0)])
    async def test_run_that_was_taken_back(self, teo: Identity, layer: Any, state: Run.State, wait_s: float) -> None:
        """A machine may wait only for a run that will open by itself."""
        await in_thread(Run.objects.update)(state=state)
        async with connecting(teo) as link:
            await link.open()
            answer = await link.hear()
        assert isinstance(answer, Failed)
        assert (answer.fault.code, answer.retry_after_s) == ("E308", wait_s)

    async def test_a_page_in_a_browser(self, teo: Identity, layer: Any) -> None:
        async with connecting(teo, origin="https://elsewhere.example") as link:
            with pytest.raises(Closed):
                await link.dial()

    async def test_another_version_of_the_protocol(self, teo: Identity, layer: Any) -> None:
        async with connecting(teo) as link:
            await link.dial()
            challenge = decode(await link.bytes_from_site())
            assert isinstance(challenge, m.Challenge)
            assert teo.credential is not None
            old = m.Authenticate(
                protocol=m.PROTOCOL + 1, version="9", credential=teo.credential, proof=bytes(64), nonce=bytes(32)
            )
            await link.say(old)
            refusal = decode(await link.bytes_from_site())
            assert isinstance(refusal, m.Refusal)
            assert refusal.code == "E205"

    async def test_an_agent_of_version_1(self, teo: Identity, layer: Any) -> None:
        """The messages are copied from version 1. The socket closes if the agent refuses the challenge or the site
        refuses the agent.

        In practice such an agent first asks for a credential, and the answer says what to type
        (tests/web/api/test_agents.py).
        """
        assert teo.credential is not None
        signed = {"payload": teo.credential.payload, "signature": teo.credential.signature}
        own = {"type": "Authenticate", "protocol": 1, "version": "0.1.0", "credential": signed}
        refuses = {"type": "Refusal", "code": "E205", "text": "This agent uses protocol 1.", "retry_after_s": -1.0}
        said = [own | {"proof": bytes(64), "nonce": bytes(32)}, refuses]
        for words, answered in zip(said, (True, False), strict=True):
            async with connecting(teo) as link:
                await link.dial()
                challenge = msgspec.msgpack.decode((await link.bytes_from_site())[1:])
                assert challenge.keys() == {"type", "protocol", "server", "nonce", "time"}, "as it knows it"
                await link.send(b"\x01" + msgspec.msgpack.encode(words))
                if answered:
                    refusal = decode(await link.bytes_from_site())
                    assert isinstance(refusal, m.Refusal)
                    assert (refusal.code, f"uses protocol 1; the other side uses {m.PROTOCOL}" in refusal.text) == (
                        "E205",
                        True,
                    )
                with pytest.raises(Closed) as closed:
                    await link.bytes_from_site()
                assert closed.value.code == REFUSED

    async def test_a_proof_for_another_challenge(self, teo: Identity, layer: Any) -> None:
        async with connecting(teo) as first, connecting(teo) as second:
            await first.dial()
            await second.dial()
            first.session.receive(await first.bytes_from_site(), time.time())
            (answer,) = first.session.outgoing()
            await second.bytes_from_site()
            await second.send(answer)
            refusal = decode(await second.bytes_from_site())
            assert isinstance(refusal, m.Refusal)
            assert refusal.code == "E209"

    async def test_one_that_takes_too_long(self, teo: Identity, layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(consumers, "HANDSHAKE_S", 0.01)
        async with connecting(teo) as link:
            await link.dial()
            await link.bytes_from_site()
            with pytest.raises(Closed) as closed:
                await link.bytes_from_site()
            assert closed.value.code == 4000


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("data", "code"),
        [
            (b"", "E206"),
            (b"\xff\x00 nonsense", "E206"),
            (b"\x01\x81\xa4type\xa7Gadgets", "E206"),
            (encode(m.Welcome(credential=None, proof=bytes(64))), "E208"),
            (encode(m.FetchRecords(run=OTHER_RUN, first=0)), "E208"),
            (b"\x02" + bytes(60), "E208"),
            (b"\x01" + bytes(m.MAX_MESSAGE), "E210"),
            (encode(m.Hello(run=OTHER_RUN, accumulator=ACCUMULATOR)), "E213"),
            (encode(m.Hello(run=RunId("*"), accumulator=ACCUMULATOR)), "E213"),
        ],
        ids=["empty", "garbage", "unknown", "site's", "relay's", "frame", "overlong", "another run", "every run"],
    )
    async def test_on_an_open_link(self, teo: Identity, layer: Any, data: bytes, code: str) -> None:
        async with linked(teo) as link:
            await link.send(data)
            assert await link.how_it_ends() == (code, REFUSED)

    async def test_text(self, teo: Identity, layer: Any) -> None:
        async with linked(teo) as link:
            await link.wire.send_input({"type": "websocket.receive", "text": "hello"})
            assert await link.how_it_ends() == ("E206", REFUSED)

    async def test_a_hello_before_the_proof(self, example: Example, teo: Identity, layer: Any) -> None:
        async with connecting(teo) as link:
            await link.dial()
            await link.bytes_from_site()
            await link.say(hello(example.run))
            refusal = decode(await link.bytes_from_site())
            assert isinstance(refusal, m.Refusal)
            assert refusal.code == "E208"


class TestMessages:
    async def announce(self, layer: Any, run: Run, fence: int, *, group: str = "") -> str:
        channel: str = await layer.new_channel()
        note = HostAnnounced(RunId(run.run_id), fence, channel)
        await layer.group_send(group or group_of(run.run_id), note)
        return channel

    async def test_a_host_that_is_there_already_is_greeted(self, example: Example, teo: Identity, layer: Any) -> None:
        host = await layer.new_channel()
        fence = await in_thread(claims.claim)(example.run, host)
        async with linked(teo) as link:
            assert await link.hear() == m.Rehello(run=example.run.run_id, fence=fence or 0)
            await link.say(hello(example.run))
            message = await received(layer, host)
        assert decode(message.data) == hello(example.run)
        peer = PeerId(example.teo.machine.peer_id)
        assert message == PeerSaid(peer, message.channel, message.data, "Teo", "laptop", Role.TRAINER)

    @pytest.mark.parametrize("role", [Role.AUXILIARY, Role.TRAINER])
    async def test_a_member_that_listens_is_told_of_where_it_is_seen(
        self, example: Example, role: Role, layer: Any
    ) -> None:
        """The site replaces the address that a peer claims. Otherwise the peer could direct all members to any
        address.
        """
        member = identity_of(credential_of(example.teo, example.run, role), example.teo.key)
        said = replace(hello(example.run), url="wss://victim.example:7100/", fingerprint="0a" * 32, reduces=True)
        async with linked(member) as link:
            host = await self.announce(layer, example.run, 1)
            await link.hear()
            await link.say(said)
            message = await received(layer, host)
        assert message.role is role
        assert decode(message.data) == replace(said, url="wss://203.0.113.7:7100/")

    async def test_unusable_address_is_removed_and_its_member_told_why(self, example: Example, layer: Any) -> None:
        member = identity_of(credential_of(example.teo, example.run, Role.AUXILIARY), example.teo.key)
        async with linked(member) as link:
            host = await self.announce(layer, example.run, 1)
            await link.hear()
            await link.say(replace(hello(example.run), url="ws://victim.example/", reduces=True, keeps_log=True))
            assert decode((await received(layer, host)).data) == hello(example.run)
            notice = await link.hear()
        assert isinstance(notice, m.Notice)
        assert (notice.code, notice.run) == ("E376", example.run.run_id)

    async def test_a_relay_is_where_its_operator_says(self, example: Example, layer: Any) -> None:
        relay = identity_of(credential_of(example.teo, None, Role.RELAY), example.teo.key)
        said = replace(hello(example.run), url="ws://relay.example:7000/", reduces=True, keeps_log=True)
        async with linked(relay) as link:
            host = await self.announce(layer, example.run, 1, group=RELAYS)
            await link.hear()
            await link.say(said)
            assert decode((await received(layer, host)).data) == said

    async def test_what_the_host_says_is_passed_on_as_it_is(self, example: Example, teo: Identity, layer: Any) -> None:
        async with linked(teo) as link:
            host = await self.announce(layer, example.run, 1)
            await link.hear()
            await link.say(hello(example.run))
            back = (await received(layer, host)).channel
            notice = m.Notice(run=example.run.run_id, code="E219", text="for the person")
            await layer.send(back, HostSaid(encode(notice)))
            assert await link.hear() == notice

    async def test_without_a_host_nothing_is_lost_but_the_message(
        self, example: Example, teo: Identity, layer: Any
    ) -> None:
        async with linked(teo) as link:
            await link.say(hello(example.run))
            host = await self.announce(layer, example.run, 1)
            await link.hear()
            await link.say(m.Leave(run=example.run.run_id))
            assert decode((await received(layer, host)).data) == m.Leave(run=example.run.run_id)

    async def test_the_host_learns_that_a_peer_is_gone(self, example: Example, teo: Identity, layer: Any) -> None:
        async with linked(teo) as link:
            host = await self.announce(layer, example.run, 1)
            await link.hear()
        message = await received(layer, host)
        assert message == PeerLost(example.teo.machine.peer_id, message.channel)
        await layer.send(host, LayerRestored())
        assert await received(layer, host) == LayerRestored(), "it learns so once"

    async def test_host_learns_of_a_peer_that_leaves_during_a_send(
        self, example: Example, teo: Identity, layer: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def gone(*_: Any, **__: Any) -> None:
            told.set()
            raise ClientDisconnected  # the server raises this when the other side has closed the socket

        told = asyncio.Event()
        async with linked(teo) as link:
            host = await self.announce(layer, example.run, 1)
            await link.hear()
            await link.say(hello(example.run))
            back = (await received(layer, host)).channel
            monkeypatch.setattr(AsyncWebsocketConsumer, "send", gone)
            await layer.send(back, HostSaid(b"anything"))
            await asyncio.wait_for(told.wait(), PATIENCE_S)
        assert isinstance(await received(layer, host), PeerLost)

    async def test_a_relay_hears_of_every_run(self, example: Example, layer: Any) -> None:
        relay = identity_of(credential_of(example.noor, None, Role.RELAY), example.noor.key)
        async with linked(relay) as link:
            host = await self.announce(layer, example.run, 3, group=RELAYS)
            assert await link.hear() == m.Rehello(run=example.run.run_id, fence=3)
            await link.say(hello(example.run))
            message = await received(layer, host)
            assert (message.role, decode(message.data)) == (Role.RELAY, hello(example.run))

    async def test_a_trainer_hears_of_its_own_run_alone(self, example: Example, teo: Identity, layer: Any) -> None:
        other = await in_thread(opened)(example.run.organizer, slug="riddles")
        async with linked(teo) as link:
            await self.announce(layer, other, 9)
            await self.announce(layer, example.run, 1)
            assert await link.hear() == m.Rehello(run=example.run.run_id, fence=1)

    @pytest.mark.parametrize("code", ["E214", "E308", "E324"])
    async def test_a_machine_that_is_revoked_in_mid_run_is_cut_off(
        self, code: str, example: Example, teo: Identity, layer: Any
    ) -> None:
        async with linked(teo) as link:
            host = await self.announce(layer, example.run, 1)
            await link.hear()
            await link.say(hello(example.run))
            back = (await received(layer, host)).channel
            await layer.send(back, MachineRevoked(code))
            assert await link.how_it_ends() == (code, REFUSED)
