"""A relay's process forwards only to listeners that the site has announced and the relay itself can reach."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from peer_agent.network.certificate import new_certificate
from peer_agent.network.link import Refused
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.relay.process import Relay
from peer_agent.site.relay_links import DataLinks
from tests.agent.scripted_site import OTHER_RELAY, PATIENCE_S, RELAY, TRAINER, Site, relaying, site
from tests.averaging.rounds import RUN
from tests.network.loopback import how_it_ends, listening
from tests.relay.forwarded import LISTENER, NOWHERE, REAL, Forwarded, access_of, give_back, gradient
from tests.relay.scenes import REHELLO


@asynccontextmanager
async def a_member(folder: Path) -> AsyncIterator[m.Listener]:
    access, certificate = await access_of(folder, LISTENER, Role.AUXILIARY), new_certificate()
    facts: dict[str, Any] = {"who": access.identity(), "identity_of": access.identity, "certificate": certificate}
    async with listening(give_back, **facts, **REAL) as server:
        yield m.Listener(LISTENER, f"wss://127.0.0.1:{server.port}/", certificate.fingerprint)


async def told(script: Site, relay: Relay, *listeners: m.Listener, reaches: set[PeerId]) -> None:
    """Announce `listeners` to the relay, and wait until the relay is linked to those in `reaches`."""
    await script.says(REHELLO, m.Listeners(run=RUN, listeners=listeners))
    async with asyncio.timeout(PATIENCE_S):
        while set(relay._addresses.get(RUN, ())) != {*listeners} or set(relay.others.open) != reaches:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def asked(folder: Path, relay: Relay, to: PeerId, run: RunId = RUN) -> object:
    way = await Forwarded(folder, m.Listener(RELAY, relay.url)).asked(to=to, run=run)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await way.receive()
    except Refused as refused:
        return refused.fault.code
    finally:
        way.abort()
        await how_it_ends(way)


async def test_trainer_reaches_a_member_through_it_without_saying_so(tmp_path: Path) -> None:
    heard: asyncio.Queue[object] = asyncio.Queue()

    async def hear(_: PeerId, body: object) -> None:
        heard.put_nowait(body)

    async with site() as script, a_member(tmp_path) as member, relaying(script, tmp_path / "relay") as relay:
        await told(script, relay, member, reaches={LISTENER})
        ours = DataLinks(await access_of(tmp_path, TRAINER, Role.TRAINER), hear)
        ours.follow((m.Listener(RELAY, relay.url), replace(member, url=NOWHERE)))
        async with asyncio.timeout(PATIENCE_S):
            while set(ours.open) != {RELAY, LISTENER}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert ours.direct == {RELAY}
            await ours.open[LISTENER].send(gradient(7, b"bytes"))
            assert getattr(await heard.get(), "chunk", None) == 7
        await ours.close()


async def test_relay_forwards_only_to_addresses_reached_and_announced(tmp_path: Path) -> None:
    async with site() as script, a_member(tmp_path) as member, relaying(script, tmp_path / "relay") as relay:
        assert await asked(tmp_path, relay, LISTENER) == "E232", "the site has told of nobody"
        with socket.create_server(("127.0.0.1", 0)) as another:  # an unrelated program on that machine
            url = f"wss://127.0.0.1:{another.getsockname()[1]}/"
            await told(script, relay, replace(member, url=url), reaches=set())
            assert await asked(tmp_path, relay, LISTENER) == "E232", "nobody has proved there who it is"
        await told(script, relay, member, reaches={LISTENER})
        assert await asked(tmp_path, relay, LISTENER) == m.Forwarding(run=RUN, to=LISTENER)
        assert await asked(tmp_path, relay, LISTENER, RunId("cd" * 16)) == "E213", "of another run"
        await told(script, relay, reaches=set())
        assert await asked(tmp_path, relay, LISTENER) == "E232", "the site tells of it no more"


async def test_it_forwards_to_no_other_relay(tmp_path: Path) -> None:
    async with (
        site() as script,
        relaying(script, tmp_path / "relay") as relay,
        relaying(script, tmp_path / "other", OTHER_RELAY) as other,
    ):
        await told(script, other, m.Listener(RELAY, relay.url), reaches={RELAY})
        end = await how_it_ends(await Forwarded(tmp_path, m.Listener(OTHER_RELAY, other.url)).asked(to=RELAY))
        assert isinstance(end, Refused)
        assert end.fault.code == "E232"


async def test_an_auxiliary_does_not_forward(tmp_path: Path) -> None:
    """The site does not decide which peers a member serves."""
    access = await access_of(tmp_path, LISTENER, Role.AUXILIARY)
    relay = Relay(access.home, access, host="127.0.0.1", port=0, advertise="")
    assert not relay.is_of_all_runs
    async with site() as script:
        access.control = script.url
        running = asyncio.create_task(relay.run())
        await script.linked()
        way = Forwarded(tmp_path, m.Listener(LISTENER, relay.url))
        assert "does not forward" in await way.why_not()
        running.cancel()
        await asyncio.wait([running])
