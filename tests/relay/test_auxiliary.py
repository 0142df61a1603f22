"""An auxiliary against a scripted site: what it reports, for which peers it averages, and how it leaves."""

import asyncio
import io
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from peer_agent.display.json_lines import JsonLinesView
from peer_agent.display.status import read_status, sentence, status_facts, status_lines
from peer_agent.machine.home import Home
from peer_agent.machine.leave_request import LeaveRequest
from peer_agent.machine.limits import Limits
from peer_agent.network.link import Connection, Refused
from peer_agent.network.uplink import UPLINK
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Credential, Role, issue
from peer_agent.protocol.identifiers import ANY_RUN, PeerId, RunId
from peer_agent.protocol.log.records import Record, RecordHead, whole
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.protocol.wire import Frame, Kind
from peer_agent.relay.auxiliary import run_auxiliary
from peer_agent.relay.place import SEEN, Place, own_certificate
from peer_agent.site.machine_control import MachineControl
from tests.agent.program import ROOT
from tests.agent.scripted_site import OTHER_RELAY, PATIENCE_S, RECIPE, RELAY, OwnAccess, Site, next_of, planned, site
from tests.averaging.rounds import GRID, RUN, averaged, entry_of, record_of
from tests.network.loopback import how_it_ends
from tests.protocol.identities import SITE_KEY
from tests.protocol.test_averaged import contribution
from tests.relay.scenes import REHELLO, commit_of, greeting, offers, plan, send_all

ME = RELAY  # the auxiliary's id in the plans of these tests
NOWHERE = RunId("cd" * 16)


class Helping:
    def __init__(self, script: Site, folder: Path, advertise: int = 0) -> None:
        self.script, self.folder = script, folder
        self.home = Home(folder / "home")
        self.access = OwnAccess(self.home.folder, ME, Role.AUXILIARY, script.url)
        self.stream = io.StringIO()
        self.view = JsonLinesView(self.stream)
        self.asked = LeaveRequest(self.home)
        place = Place("127.0.0.1", 0, advertise)
        self.owner = MachineControl(self.home, Limits(threads=1), self.view.tell)
        work = run_auxiliary(self.access, self.owner, self.asked, self.view, place=place)
        self.task = asyncio.create_task(work)
        self.links: list[Connection] = []
        self.hello: m.Hello

    def said(self, event: str) -> list[dict[str, Any]]:
        lines = [msgspec.json.decode(line) for line in self.stream.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]

    async def until(self, event: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while not (said := self.said(event)):  # noqa: ASYNC110 (it writes to a stream)
                await asyncio.sleep(0.01)
        return said[-1]

    async def ends(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.task

    async def dial(self, role: Role, peer: PeerId, run: RunId = RUN) -> Connection:
        """Open a data link, pinned to the certificate that the auxiliary reported to the site."""
        access = OwnAccess(self.folder / peer, peer, role, "")
        await access.renew()
        if run != RUN:
            assert access.credential is not None
            other = msgspec.msgpack.decode(access.credential.payload, type=Credential)
            access.credential = issue(SITE_KEY, replace(other, run=run))
        port = self.said("listening")[-1]["port"]
        listener = m.Listener(ME, f"wss://127.0.0.1:{port}/", self.hello.fingerprint)
        self.links.append(await access.dial_listener(listener))
        return self.links[-1]


@asynccontextmanager
async def helping(folder: Path, advertise: int = 0) -> AsyncIterator[Helping]:
    async with site() as script:
        one = Helping(script, folder, advertise)
        try:
            await script.linked()
            await script.says(REHELLO)
            one.hello = await script.hears(m.Hello)
            await script.says(greeting(fence=3, step=7, recipe=encode_recipe(RECIPE)))
            yield one
        finally:
            one.task.cancel()
            await asyncio.wait([one.task])
            for link in one.links:
                link.abort()
                await how_it_ends(link)


# --- what it reports ---------------------------------------------------------------------------------------------


async def test_household_keeps_its_part_and_sending_is_paced(tmp_path: Path) -> None:
    async with helping(tmp_path) as one:
        assert one.hello.reserve_percent == 20
        await one.script.says(m.Uplink(run=RUN, bytes_per_s=1_000_000), REHELLO)
        await one.script.hears(m.Hello)
        assert UPLINK.is_paced
    assert not UPLINK.is_paced


async def test_auxiliary_reduces_keeps_the_log_and_has_a_certificate(tmp_path: Path) -> None:
    async with helping(tmp_path) as one:
        listening = one.said("listening")[-1]
        assert (one.hello.reduces, one.hello.keeps_log) == (True, True)
        assert one.hello.url == f"wss://127.0.0.1:{listening['port']}/"
        assert one.hello.fingerprint == own_certificate(one.home).fingerprint
        assert one.stream.getvalue().index(SEEN[:40]) < one.stream.getvalue().index("Listening at"), "beforehand"


async def test_behind_a_router_it_names_the_port_that_is_forwarded(tmp_path: Path) -> None:
    async with helping(tmp_path, advertise=7100) as one:
        assert one.hello.url == "wss://127.0.0.1:7100/"


async def test_what_the_site_has_against_its_address_is_told(tmp_path: Path) -> None:
    async with helping(tmp_path) as one:
        await one.script.says(m.Notice(run=RUN, code="E376", text="nobody is told"))
        assert (await one.until("error"))["code"] == "E376"


# --- for which peers it averages --------------------------------------------------------------------------------------


async def test_auxiliary_averages_for_trainers_and_serves_a_relay(tmp_path: Path) -> None:
    sendings = offers()
    attempt = plan(sendings)
    spans, payloads = averaged(attempt, sendings)
    async with helping(tmp_path) as one:
        relay = await one.dial(Role.RELAY, OTHER_RELAY)
        await one.script.says(planned(attempt))
        for slot, sending in enumerate(sendings):
            link = await one.dial(Role.TRAINER, PeerId(f"{slot:032x}"))
            await next_of(link, m.Open)
            await send_all(link, attempt, slot, sending)
        done = [await one.script.hears(m.SpanDone) for _ in attempt.spans]
        assert sorted(said.root for said in done) == sorted(span.root for span in spans)
        async with asyncio.timeout(PATIENCE_S):
            frames = [await relay.receive() for _ in payloads]
        got = {frame.chunk: bytes(frame.payload) for frame in frames if isinstance(frame, Frame)}
        assert got == payloads
        assert {frame.kind for frame in frames if isinstance(frame, Frame)} == {Kind.AVERAGE}
        await one.script.says(commit_of(entry_of(_with_contributions(record_of(attempt, spans), len(sendings)))))
        told = await one.until("step")
        assert (told["step"], told["averaged_bytes"]) == (8, len(sendings) * 4 * GRID.elements)


def _with_contributions(record: Record, count: int) -> Record:
    made = {"version", "contributors", "contributions_root"}
    facts = {name: getattr(record, name) for name in RecordHead.__struct_fields__ if name not in made}
    return whole(contributions=tuple(contribution(slot, [(0, GRID.chunks)], "fp32") for slot in range(count)), **facts)


@pytest.mark.parametrize(("role", "run"), [(Role.TRAINER, NOWHERE), (Role.AUXILIARY, NOWHERE), (Role.TRAINER, ANY_RUN)])
async def test_nobody_of_another_run_is_let_in(tmp_path: Path, role: Role, run: RunId) -> None:
    async with helping(tmp_path) as one:
        with pytest.raises(Refused, match="E213"):
            await one.dial(role, PeerId("ee" * 16), run)


async def test_what_is_said_of_another_run_is_none_of_its_business(tmp_path: Path) -> None:
    async with helping(tmp_path) as one:
        await one.script.says(replace(REHELLO, run=NOWHERE), REHELLO)
        assert (await one.script.hears(m.Hello)).run == RUN
        assert [said for said in one.script.heard if isinstance(said, m.Hello)] == []


# --- how it leaves -----------------------------------------------------------------------------------------------


async def test_it_leaves_when_the_run_is_finished(tmp_path: Path) -> None:
    async with helping(tmp_path) as one:
        await one.script.says(m.State(run=RUN, state="finished", reason=""))
        await one.ends()
        assert one.said("state")[-1]["state"] == "finished"


async def test_asked_to_leave_it_sees_its_round_through(tmp_path: Path) -> None:
    sendings = offers()
    attempt = plan(sendings)
    spans, _ = averaged(attempt, sendings)
    async with helping(tmp_path) as one:
        await one.script.says(m.State(run=RUN, state="running", reason=""), planned(attempt))
        link = await one.dial(Role.TRAINER, PeerId(f"{0:032x}"))
        await next_of(link, m.Open)
        one.asked.ask(one.task.cancel)
        await one.until("leaving")
        assert not one.task.done()
        await one.script.says(commit_of(entry_of(record_of(attempt, spans))))
        await one.ends()
        assert one.said("left")


async def test_asked_to_leave_between_rounds_it_leaves_at_once(tmp_path: Path) -> None:
    async with helping(tmp_path) as one:
        await one.script.says(m.State(run=RUN, state="running", reason=""))
        await one.until("state")
        one.asked.ask(one.task.cancel)
        await one.ends()
        assert one.said("leaving") == []


async def test_another_command_is_told_what_it_does(tmp_path: Path) -> None:
    async with helping(tmp_path) as one:
        with one.home.locked():
            async with asyncio.timeout(PATIENCE_S):
                while (status := read_status(one.home)) is None or status.doing != "helping":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            lines = status_lines(one.home, status_facts(one.home, status.at))
        assert status.role == "auxiliary"
        assert sentence(status) == "Averaging for the machines that train step 8."
        assert lines[-1].endswith("0 kB averaged here")


def test_it_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
    code += "from peer_agent import cli\nfrom peer_agent.relay import auxiliary\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# --- its owner's instructions ------------------------------------------------------------------------------------


async def test_paused_it_leaves_and_comes_back_when_it_is_resumed(tmp_path: Path) -> None:
    async with helping(tmp_path) as one:
        assert [body.revision for body in one.script.heard if isinstance(body, m.MachineReport)] == [-1]
        one.script.heard.clear()
        await one.script.says(m.Instructions(revision=1, pause=True))
        await one.script.loses()
        await one.script.linked()  # the auxiliary is on hold
        report = await one.script.hears(m.MachineReport)
        assert (report.revision, report.why) == (1, "paused")
        assert not one.script.heard, "it says nothing but this"
        await one.until("on_hold")
        await one.script.says(REHELLO, m.Instructions(revision=2))
        await one.script.loses()
        await one.script.linked()
        await one.script.says(REHELLO)
        assert (await one.script.hears(m.Hello)).run == RUN
        assert [line["text"] for line in one.said("resumed")] == ["Working again."]


async def test_asked_to_finish_from_its_page_it_leaves_for_good(tmp_path: Path) -> None:
    async with helping(tmp_path) as one:
        await one.script.says(m.Instructions(revision=1, finish=True))
        await one.ends()
        assert one.said("left")


async def test_on_hold_it_leaves_when_somebody_asks(tmp_path: Path) -> None:
    async with helping(tmp_path) as one:
        await one.script.says(m.Instructions(revision=1, pause=True))
        await one.until("on_hold")
        await one.script.loses()
        await one.script.linked()
        one.asked.ask(one.task.cancel)
        await one.ends()
        assert one.said("left")
