"""The relay: publicly reachable, reduces for every run of its site, keeps their logs. No torch, no data, no model."""

import asyncio
import logging
from random import Random

import msgspec

from peer_agent.averaging.update_log import UpdateLog
from peer_agent.config import Home
from peer_agent.data_links import DataLinks
from peer_agent.network.link import Connected, Connection, LinkLost, Refused, Waiting, heals, keep
from peer_agent.network.relay_server import Server, serve_data
from peer_agent.passport import Passport
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Credential, Role
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.identifiers import ANY_RUN, AccumulatorId, PeerId, RunId
from peer_agent.protocol.records import Record
from peer_agent.protocol.wire import Frame
from peer_agent.relayed_run import RelayedRun

log = logging.getLogger(__name__)

PROGRESS_S = 1.0
RENEW_S = 60.0  # between looks at the credential's age
NOBODY = AccumulatorId("0" * 32)  # a relay accumulates nothing


class Relay:
    """One relay process."""

    def __init__(self, home: Home, passport: Passport, *, host: str, port: int, advertise: str) -> None:
        self.home, self.passport = home, passport
        self.host, self.port, self.url = host, port, advertise
        self.log = UpdateLog(home.folder / "log", passport.site_key)
        self.runs: dict[RunId, RelayedRun] = {}
        self.control: Connection | None = None
        self.others = DataLinks(passport, self._ignore)
        self._addresses: dict[RunId, tuple[m.RelayAddress, ...]] = {}
        self._asked_from: dict[RunId, int] = {}  # index after which commits were asked for on this link
        self._broken: asyncio.Queue[Problem] = asyncio.Queue()  # this machine's own, met while serving others

    async def run(self) -> None:
        """Listen, and speak to the site, until cancelled. Raises Problem (or a group) where going on cannot help."""
        await self.passport.renew()
        server = await serve_data(
            self.host, self.port, identity_of=self.passport.identity, handle=self._serve, admit=self._admit
        )
        self.url = self.url or f"ws://{self.host}:{server.port}/"
        log.info("listening at %s", self.url)
        control = keep(self.passport.dial_control, self._hear_site, on_state=_told, random=Random())
        async with asyncio.TaskGroup() as tasks:
            for part in (control, self._report(), self._renew(), self._break(), self._close_at_the_end(server)):
                tasks.create_task(part)

    async def _close_at_the_end(self, server: Server) -> None:
        """All links at once: each gets a moment for its last words, and there is no time for one after another."""
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.gather(self.others.close(), server.close())

    def _admit(self, credential: Credential) -> Fault | None:
        if credential.role is Role.RELAY or credential.run in self.runs:
            return None
        return Fault.of("E213") if credential.run == ANY_RUN else None

    # --- control link -------------------------------------------------------------------------------------------

    async def _hear_site(self, link: Connection) -> None:
        self.control = link
        try:
            while True:
                await self._take(await link.receive())
        finally:
            self.control = None

    async def say(self, message: m.Message) -> None:
        """To the coordinator; while the link is down nothing is said, and the next hello says it all."""
        if self.control is not None:
            try:
                await self.control.send(message)
            except (LinkLost, Refused):
                return

    def run_of(self, run: RunId) -> RelayedRun:
        """The run, from its first mention on."""
        if run not in self.runs:
            self.runs[run] = RelayedRun(
                run, self.passport.peer, self.passport.site_key, self.log, say=self.say, fetch=self._fetch
            )
        return self.runs[run]

    async def _take(self, body: m.AnyMessage | Frame) -> None:
        match body:
            case m.Rehello(run=run):
                self._asked_from.pop(run, None)
                await self._hello(run)
            case m.Planned():
                await self._plan(body)
            case m.Drop():
                await self.run_of(body.run).drop(body)
            case m.Void():
                await self.run_of(body.run).void(body)
            case m.Commit():
                await self._commit(body)
            case m.Greeting():
                self._follow(body.run, body.relays)
                self.run_of(body.run).greeted(body)
            case m.Relays():
                self._follow(body.run, body.relays)
            case m.Snapshotted():
                await self.run_of(body.run).forget(body.keep_after)
            case m.State(state="finished"):
                self.run_of(body.run).end()

    def _follow(self, run: RunId, relays: tuple[m.RelayAddress, ...]) -> None:
        """Keep a link to every relay of any run: they come to a site's runs one after another."""
        self._addresses[run] = relays
        self.others.follow(tuple(sorted({relay for of in self._addresses.values() for relay in of}, key=repr)))

    async def _plan(self, body: m.Planned) -> None:
        run = msgspec.msgpack.decode(body.plan.payload, type=m.Plan).run
        await self.run_of(run).plan(body)

    async def _commit(self, body: m.Commit) -> None:
        try:
            await self.run_of(body.run).commit(body)
        except Problem as problem:
            if problem.fault.code == "E106":
                raise
            log.warning("run %s: %s", body.run, problem)
            # A gap heals by hello, which brings the commits since; a fork needs a person, and the log keeps its own.
            last = await asyncio.to_thread(self.log.last_index, body.run)
            if last + 1 < _index(body) and self._asked_from.get(body.run) != last:
                await self._hello(body.run)

    async def _hello(self, run: RunId) -> None:
        self.run_of(run)
        last = await asyncio.to_thread(self.log.last_index, run)
        self._asked_from[run] = last
        await self.say(m.Hello(run=run, accumulator=NOBODY, url=self.url, log_index=last))

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            for run in list(self.runs.values()):
                await run.report_progress()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await self.passport.renew()
            except Problem as problem:
                if not heals(problem.fault):
                    raise
                log.warning("%s", problem)

    async def _break(self) -> None:
        raise await self._broken.get()

    # --- data links ---------------------------------------------------------------------------------------------

    async def _serve(self, link: Connection) -> None:
        try:
            await self._give_and_take(link)
        except Problem as problem:
            if problem.fault.code == "E106":
                self._broken.put_nowait(problem)
            log.warning("%s", problem)

    async def _give_and_take(self, link: Connection) -> None:
        """A trainer's link is for its run; another relay asks for spans of any run."""
        assert link.credential is not None
        if link.credential.run != ANY_RUN:
            await self.run_of(link.credential.run).serve(link.credential.peer, link.credential.role, link)
            return
        while True:
            body = await link.receive()
            if isinstance(body, m.FetchSpan | m.FetchRecords):
                await self.run_of(body.run).give(link, body)

    async def _fetch(self, run: RunId, index: int, span: int) -> list[bytes] | None:
        record = await asyncio.to_thread(self.log.record, run, index)
        entry = next(entry for entry in record.spans if entry.span == span)
        return await self.others.fetch(run, index, span, entry.stop - entry.first, entry.reducer)

    async def _ignore(self, peer: PeerId, body: m.AnyMessage | Frame) -> None:
        """Other relays' averages come by the log, whole spans at a time."""


def _index(body: m.Commit) -> int:
    return msgspec.json.decode(body.record.payload, type=Record).index


def _told(state: Connected | Waiting) -> None:
    if isinstance(state, Connected):
        log.info("site: connected")
    else:
        log.info("site: %s; again in %.1f s", state.fault, state.delay_s)
