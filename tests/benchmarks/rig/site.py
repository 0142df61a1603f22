"""The coordinator's messages of one round, scripted over real control links: cut, plan, commit. There is no site and no
database.

The script does not handle failures: a lost peer stops the benchmark."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from websockets.asyncio.server import Server, ServerConnection, serve

from peer_agent.network.link import SOCKET_OPTIONS, Connection, LinkLost, Refused
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import GENESIS, ChunkRange, Contribution, SpanEntry, Unit, digest_of, seal, whole
from peer_agent.protocol.plan import spans_of
from peer_agent.protocol.recipe import Codec, encode_recipe
from peer_agent.protocol.sealed import SealedCommit, plan_of, planned_for, planned_whole, seal_plan
from peer_agent.recipes.causal_lm import CausalLM, Model
from tests.averaging.rounds import SCALARS
from tests.benchmarks.rig.machines import admitted
from tests.protocol.identities import RUN, SITE_KEY, SITE_PUBLIC

PATIENCE_S = 60.0
Body = TypeVar("Body", bound=m.Message)
PLACE: dict[str, Any] = {"run": RUN, "fence": 1, "attempt": 1}
RECIPE = CausalLM(model=Model(context=257))  # 256 loss tokens per sample: a power of two, so that the mean is exact
SAMPLES = 4  # samples of each contributor in a round


class Times(Struct, frozen=True):
    """Seconds from the cut until all offers have arrived, all spans are on disk, and all contributors have the
    averages."""

    offered_s: float
    reduced_s: float
    held_s: float


class Site:
    def __init__(self, grid: Grid) -> None:
        self.grid, self.index, self.digest = grid, 0, GENESIS
        self.spans = 0  # number of spans in the last round
        self.relays: dict[PeerId, Connection] = {}
        self.contributors: dict[PeerId, Connection] = {}
        self._heard: defaultdict[type, asyncio.Queue[tuple[PeerId, Any]]] = defaultdict(asyncio.Queue)
        self._server: Server

    async def listen(self) -> str:
        self._server = await serve(self._serve, "127.0.0.1", 0, **SOCKET_OPTIONS)
        port = next(iter(self._server.sockets)).getsockname()[1]
        return f"ws://127.0.0.1:{port}/"

    async def close(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, socket: ServerConnection) -> None:
        try:
            link = await admitted(socket)
            assert link.credential is not None
            peer, role = link.credential.peer, link.credential.role
            (self.relays if role is Role.RELAY else self.contributors)[peer] = link
            await link.send(m.Rehello(run=RUN, fence=1))
            while True:
                body = await link.receive()
                assert not isinstance(body, m.SlotRefused), f"{peer} refused {body}"
                self._heard[type(body)].put_nowait((peer, body))
        except (LinkLost, Refused):
            return

    # --- before the first round ---------------------------------------------------------------------------------

    async def relay_addresses(self, relays: int) -> tuple[m.Listener, ...]:
        hellos = await self._gather(m.Hello, relays)
        addresses = tuple(m.Listener(peer, hello.url) for peer, hello in hellos)
        await self._tell(self.relays.values(), m.Listeners(run=RUN, listeners=addresses))
        return addresses

    async def bring_together(self, addresses: tuple[m.Listener, ...], contributors: int) -> None:
        """Announce the relays to the contributors, and wait until the contributors are linked to them."""
        for is_judged in (False, True):
            await self._gather(m.Hello, contributors)
            await self._tell(self.contributors.values(), self._greeting(addresses, is_judged=is_judged))
        await self._gather(m.Report, contributors)

    def _greeting(self, listeners: tuple[m.Listener, ...], *, is_judged: bool) -> m.Greeting:
        snapshot = m.Snapshot(index=0, step=0, digest=GENESIS, state_digest="", file="0" * 64, size=0)
        return m.Greeting(
            run=RUN,
            slug="a-round",
            title="A round",
            fence=1,
            recipe=encode_recipe(RECIPE),
            elements=self.grid.elements,
            shards=(),
            snapshot=snapshot,
            index=0,
            step=0,
            digest=GENESIS,
            listeners=listeners,
            site_key=SITE_PUBLIC,
            reconciled=is_judged,
        )

    async def _have_work_done(self) -> None:
        """Lease one unit to each contributor, and wait until each has reported its gradient."""
        for number, link in enumerate(self.contributors.values()):
            unit = Unit(0, number, SAMPLES * self.index, SAMPLES * (self.index + 1))
            await link.send(m.Lease(run=RUN, fence=1, units=(unit,), quota=SAMPLES))
        await self._gather(m.Report, len(self.contributors))

    # --- a round ------------------------------------------------------------------------------------------------

    async def round(self, codec: Codec) -> Times:
        """Run a round from cut to commit. Raise AssertionError if contributors have different averages."""
        step = self.index
        await self._have_work_done()
        began = time.perf_counter()
        cut = m.Cut(**PLACE, step=step, round=step, codec=codec, chunk_elements=self.grid.chunk_elements)
        await self._tell(self.contributors.values(), cut)
        offers = await self._gather(m.Offer, len(self.contributors))
        offered = time.perf_counter()
        plan = self._plan(step, codec, offers)
        self.spans = len(plan.spans)
        sealed = seal_plan(SITE_KEY, plan)
        await self._tell(self.relays.values(), planned_whole(sealed))
        for peer, link in self.contributors.items():
            await link.send(planned_for(sealed, peer))
        spans = await self._spans_of(plan)
        reduced = time.perf_counter()
        await self._commit(plan, spans, dict(offers))
        reports = await self._gather(m.Report, len(self.contributors))
        held = time.perf_counter()
        assert {report.step for _, report in reports} == {step + 1}
        assert len({report.digest for _, report in reports}) == 1, "the averages differ"
        return Times(offered - began, reduced - began, held - began)

    async def _spans_of(self, plan: m.Plan) -> list[m.SpanDone]:
        """Return the finished spans of this plan. Ignore duplicates and spans of the previous round, which a busy
        machine's relay may report.
        """
        done: dict[int, m.SpanDone] = {}
        async with asyncio.timeout(PATIENCE_S):
            while len(done) < len(plan.spans):
                _, span = await self._heard[m.SpanDone].get()
                if span.step == plan.step:
                    done[span.span] = span
        return list(done.values())

    def _plan(self, step: int, codec: Codec, offers: Sequence[tuple[PeerId, m.Offer]]) -> m.Plan:
        reducers = list(self.relays)
        shares = [1.0] * len(reducers)
        slots = tuple(
            m.Slot(peer=peer, weights=offer.weights, root=offer.root, norm=offer.norm, codec=codec)
            for peer, offer in sorted(offers, key=lambda pair: pair[0])
        )
        return plan_of(
            **PLACE,
            step=step,
            round=step,
            elements=self.grid.elements,
            chunk_elements=self.grid.chunk_elements,
            slots=slots,
            spans=tuple(spans_of(reducers, shares, [(0, self.grid.chunks)], self.grid, attempt=1)),
            codec_down=codec,
            duration_s=0,
        )

    async def _commit(self, plan: m.Plan, done: Sequence[m.SpanDone], offers: dict[PeerId, m.Offer]) -> None:
        closed = {span.span: span for span in done}
        everybody = tuple(range(len(plan.slots)))
        assert all(part.slots == everybody for span in done for part in span.included), "somebody was left out"
        entries = tuple(
            SpanEntry(
                span=span.span,
                first=span.first,
                stop=span.stop,
                attempt=span.attempt,
                reducer=span.reducer,
                root=closed[span.span].root.hex(),
                sum_squares=closed[span.span].sum_squares,
            )
            for span in plan.spans
        )
        record = whole(
            **PLACE,
            index=self.index + 1,
            step=plan.step + 1,
            round=plan.round,
            previous=self.digest,
            elements=plan.elements,
            chunk_elements=plan.chunk_elements,
            codec=plan.codec_down,
            spans=entries,
            scalars=SCALARS,
            contributions=tuple(
                _part(number, slot.peer, offers[slot.peer], self.grid.chunks) for number, slot in enumerate(plan.slots)
            ),
            loss=2.5,
            tokens=1,
            samples=1,
            exact=True,
        )
        entry = seal(SITE_KEY, record)
        self.index, self.digest = record.index, digest_of(entry)
        sealed = SealedCommit(entry, record)
        for peer, link in self.contributors.items():
            await link.send(sealed.to(peer, fence=1))
        await self._tell(self.relays.values(), sealed.whole(fence=1))

    async def _tell(self, links: Iterable[Connection], message: m.Message) -> None:
        for link in links:
            await link.send(message)

    async def _gather(self, kind: type[Body], count: int) -> list[tuple[PeerId, Body]]:
        async with asyncio.timeout(PATIENCE_S):
            return [await self._heard[kind].get() for _ in range(count)]


def _part(number: int, peer: PeerId, offer: m.Offer, chunks: int) -> Contribution:
    return Contribution(
        peer=peer,
        person="",
        machine="",
        slot=number,
        accumulator=offer.accumulator,
        units=tuple(done.unit for done in offer.units),
        weight=offer.loss_tokens,
        credit=1,
        samples=SAMPLES,
        tokens=offer.loss_tokens,
        included=(ChunkRange(0, chunks),),
        codec="fp16",
    )
