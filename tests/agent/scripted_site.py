"""A scripted site for one agent or relay on loopback: real control links, real data links, no database.

The site records every message that it receives, and sends only what the test tells it to."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from websockets.asyncio.server import ServerConnection, serve

from peer_agent.machine.home import Home, KnownSite
from peer_agent.network.link import SOCKET_OPTIONS, Connection, LinkLost, Refused, dial
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import LIFETIME_S, Credential, Role, issue, public_bytes
from peer_agent.protocol.identifiers import ANY_RUN, PeerId
from peer_agent.protocol.log.records import GENESIS, SpanEntry, digest_of, seal, whole
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.protocol.sealed import SealedCommit, planned_for, planned_whole, seal_plan
from peer_agent.protocol.session import Identity, Link, Session, Side
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.relay.process import Relay
from peer_agent.site.credential import RunAccess
from peer_agent.training.replica import Replica
from tests.averaging.rounds import RUN, SCALARS
from tests.protocol.identities import SITE_KEY, SITE_PUBLIC

PATIENCE_S = 60.0  # longest wait for an expected event; a passing test never waits this long
TRAINER, RELAY, OTHER_RELAY = PeerId("0a" * 16), PeerId("0b" * 16), PeerId("0c" * 16)
NOBODY: dict[str, Any] = {"run": RUN, "listeners": ()}
Said = TypeVar("Said", bound=m.Message)


class OwnAccess(RunAccess):
    """Access to a run without a real site. The test site's key signs the peer's credential."""

    def __init__(self, folder: Path, peer: PeerId, role: Role, control: str) -> None:
        super().__init__(Home(folder), KnownSite("http://127.0.0.1:9", peer, "ann", SITE_PUBLIC.hex()), role, "a-run")
        self.control, self.run = control, RUN

    async def renew(self) -> None:
        if self.credential is None:
            now = int(time.time())
            credential = Credential(
                person="ann",
                machine=self.peer,
                run=ANY_RUN if self.role is Role.RELAY else RUN,
                role=self.role,
                key=public_bytes(self.key),
                not_before=now - 60,
                expires=now + LIFETIME_S,
            )
            self.credential = issue(SITE_KEY, credential)


class Site:
    def __init__(self) -> None:
        self.url = ""
        self._links: asyncio.Queue[Connection] = asyncio.Queue()
        self.link: Connection
        self.heard: list[m.Message] = []

    async def serve(self, socket: ServerConnection) -> None:
        identity = Identity("site", SITE_KEY, None, SITE_PUBLIC)
        session = Session(Side.LISTENING, Link.CONTROL, identity, nonce=bytes(32), server="site", version="")
        link = Connection(socket, session, url="a peer", clock=time.time)
        await link.shake_hands()
        self._links.put_nowait(link)
        await socket.wait_closed()

    async def linked(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            self.link = await self._links.get()

    async def says(self, *messages: m.Message) -> None:
        for message in messages:
            await self.link.send(message)

    async def hears(self, kind: type[Said]) -> Said:
        """Return the next message of this kind. Keep messages of other kinds that arrive before it in `heard`."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                body = await self.link.receive()
                assert isinstance(body, m.Message)
                if isinstance(body, kind):
                    return body
                self.heard.append(body)

    async def loses(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            try:
                while True:
                    await self.link.receive()
            except (LinkLost, Refused):
                return


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    script = Site()
    async with serve(script.serve, "127.0.0.1", 0, **SOCKET_OPTIONS) as server:
        script.url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/"
        yield script


# --- a run -------------------------------------------------------------------------------------------------------

RECIPE = CausalLM(model=Model(layers=1, width=16, heads=2, context=8), vocab=300, codec_up="fp32", codec_down="fp32")


def first_snapshot(home: Home) -> m.Snapshot:
    """Store an untrained replica's state in this home's cache, and return it as the snapshot at step 0."""
    replica = Replica(RECIPE)
    folder = home.cache / "snapshots"
    folder.mkdir(parents=True)
    file = replica.save(folder / "new")
    (folder / "new").rename(folder / f"{file}.safetensors")
    size = (folder / f"{file}.safetensors").stat().st_size
    return m.Snapshot(index=0, step=0, digest=GENESIS, state_digest=replica.digest(), file=file, size=size)


def greeting(snapshot: m.Snapshot, **changes: Any) -> m.Greeting:
    usual: dict[str, Any] = {
        "slug": "a-run",
        "title": "A run",
        "fence": 1,
        "recipe": encode_recipe(RECIPE),
        "elements": Replica(RECIPE).layout.elements,
        "shards": (),
        "snapshot": snapshot,
        "index": 0,
        "step": 0,
        "digest": GENESIS,
        "site_key": SITE_PUBLIC,
        "reconciled": True,
    }
    return m.Greeting(**NOBODY, **(usual | changes))


def commits(count: int, elements: int, chunk_elements: int) -> list[m.Commit]:
    """Build a log of valid commits whose averages no peer has."""
    sealed: list[m.Commit] = []
    previous = GENESIS
    for index in range(1, count + 1):
        span = SpanEntry(
            span=0,
            first=0,
            stop=-(-elements // chunk_elements),
            attempt=1,
            reducer=RELAY,
            root="00" * 32,
            sum_squares=1.0,
        )
        record = whole(
            run=RUN,
            index=index,
            step=index,
            fence=1,
            attempt=1,
            round=index,
            previous=previous,
            elements=elements,
            chunk_elements=chunk_elements,
            codec="fp32",
            spans=(span,),
            scalars=SCALARS,
            contributions=(),
            loss=1.0,
            tokens=1,
            samples=1,
            exact=True,
        )
        entry = seal(SITE_KEY, record)
        previous = digest_of(entry)
        sealed.append(SealedCommit(entry, record).whole(fence=1))
    return sealed


def planned(plan: m.Plan, peer: PeerId | None = None) -> m.Planned:
    """Return the plan as the coordinator sends it to the trainer `peer`, or to a relay if `peer` is None."""
    sealed = seal_plan(SITE_KEY, plan)
    return planned_whole(sealed) if peer is None else planned_for(sealed, peer)


# --- a relay -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def relaying(site: Site, folder: Path, peer: PeerId = RELAY) -> AsyncIterator[Relay]:
    """Run a relay, linked to the scripted site, until the block ends. The relay may stop earlier."""
    relay = Relay(Home(folder), OwnAccess(folder, peer, Role.RELAY, site.url), host="127.0.0.1", port=0, advertise="")
    running = asyncio.create_task(relay.run())
    try:
        await site.linked()
        yield relay
    finally:
        running.cancel()
        await asyncio.wait([running])


async def dial_relay(url: str, folder: Path, number: int, relay: PeerId = RELAY) -> Connection:
    """Open a contributor's data link to a relay. The contributor is peer `number` in the plans of
    tests.averaging.rounds.
    """
    access = OwnAccess(folder / str(number), PeerId(f"{number:032x}"), Role.TRAINER, "")
    await access.renew()
    return await dial(url, link=Link.DATA, identity=access.identity(), server=relay, version="1")


async def next_of(link: Connection, kind: type[Said]) -> Said:
    """Return the next message of this kind from a data link, discarding messages of other kinds."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            body = await link.receive()
            if isinstance(body, kind):
                return body
