"""A real relay against a scripted site and real contributors: plans, refusals, restarts, disks, other relays."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from peer_agent.averaging.reducer import ClosedSpan
from peer_agent.averaging.update_log import UpdateLog
from peer_agent.machine.home import Home
from peer_agent.network.link import Connection, Refused
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import PLAN, RECORD, Role, sign
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.log.merkle import pack_leaves
from peer_agent.protocol.log.records import digest_of
from peer_agent.protocol.relay import events as e
from peer_agent.protocol.sealed import planned_whole, seal_plan
from peer_agent.protocol.wire import LOGGED, Frame, Kind
from peer_agent.relay import process as relay_module
from peer_agent.relay.process import Relay
from peer_agent.relay.run import RelayedRun
from tests.agent.scripted_site import (
    OTHER_RELAY,
    PATIENCE_S,
    RELAY,
    OwnAccess,
    dial_relay,
    next_of,
    planned,
    relaying,
    site,
)
from tests.averaging.driver import closed_by
from tests.averaging.rounds import (
    RUN,
    averaged,
    entry_of,
    frames_of,
    record_of,
    reduction_of,
)
from tests.network.loopback import how_it_ends
from tests.protocol.identities import SITE_KEY, SITE_PUBLIC, STRANGERS_KEY
from tests.relay.scenes import REHELLO, commit_of, offers, plan, send_all

Dial = Callable[[Relay, int], Awaitable[Connection]]


@pytest.fixture
async def dial(tmp_path: Path) -> AsyncIterator[Dial]:
    links: list[Connection] = []

    async def to(relay: Relay, slot: int) -> Connection:
        links.append(await dial_relay(relay.url, tmp_path, slot))
        return links[-1]

    yield to
    for link in links:
        link.abort()
        await how_it_ends(link)


def named(plan: m.Plan) -> dict[str, Any]:
    return {"run": plan.run, "step": plan.step, "fence": plan.fence, "attempt": plan.attempt}


# --- plans -------------------------------------------------------------------------------------------------------


async def test_a_span_held_before_a_restart_is_served_after_the_commit(tmp_path: Path, dial: Dial) -> None:
    sendings = offers()
    attempt = plan(sendings)
    async with site() as script:
        async with relaying(script, tmp_path / "relay") as relay:
            await script.says(REHELLO, planned(attempt))
            await script.hears(m.Hello)
            for slot, sending in enumerate(sendings):
                link = await dial(relay, slot)
                assert (await next_of(link, m.Open)).received == ()
                await send_all(link, attempt, slot, sending)
            done = [await script.hears(m.SpanDone) for _ in attempt.spans]
        spans, payloads = averaged(attempt, sendings)
        assert sorted(d.root for d in done) == sorted(s.root for s in spans)
        async with relaying(script, tmp_path / "relay") as relay:
            await script.says(commit_of(entry_of(record_of(attempt, spans))), REHELLO)
            while (await script.hears(m.Heartbeat)).index < 1:
                pass
            link = await dial(relay, 0)
            await link.send(m.FetchSpan(run=RUN, index=1, span=1))
            for chunk in range(attempt.spans[1].first, attempt.spans[1].stop):
                frame = await link.receive()
                assert isinstance(frame, Frame)
                assert (frame.fence, frame.chunk, bytes(frame.payload)) == (LOGGED, chunk, payloads[chunk])


async def test_chunks_close_with_the_clock_without_who_sends_nothing(
    tmp_path: Path, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean of three out of four slots has the same bits as in a round that drops the fourth."""
    monkeypatch.setattr(relay_module, "IDLE_TICKS", 10**9)
    sendings = offers(4)
    attempt = replace(plan(sendings), sigma=0.05)
    async with site() as script, relaying(script, tmp_path / "relay") as relay:
        await script.says(REHELLO, planned(attempt))
        await script.hears(m.Hello)
        silent = await dial(relay, 3)
        assert (await next_of(silent, m.Open)).received == ()
        for slot, sending in enumerate(sendings[:3]):
            link = await dial(relay, slot)
            await next_of(link, m.Open)
            await send_all(link, attempt, slot, sending)
        done = [await script.hears(m.SpanDone) for _ in attempt.spans]
    assert {part.slots for each in done for part in each.included} == {(0, 1, 2)}
    alone = reduction_of(attempt, sendings, RELAY)
    spans = [each for slot in range(3) for each in closed_by(alone, frames_of(attempt, slot, sendings[slot]))]
    spans += alone.drop(3)
    assert sorted(each.root for each in done) == sorted(each.root for each in spans if isinstance(each, ClosedSpan))


# --- the log -----------------------------------------------------------------------------------------------------


async def test_a_fork_is_no_storm(tmp_path: Path) -> None:
    """A regression: a relay with a forked log answered each commit with a hello, and the site answered each hello with
    all the commits.
    """
    sendings = offers()
    attempt = plan(sendings)
    spans, _ = averaged(attempt, sendings)
    records = [entry_of(record_of(attempt, spans))]
    for index in range(2, 6):
        records.append(entry_of(record_of(attempt, spans, index=index, previous=digest_of(records[-1]))))
    other = entry_of(record_of(attempt, spans, index=2, previous="ff" * 32))
    async with site() as script, relaying(script, tmp_path / "relay"):
        forked = [records[0], other, *records[2:]]
        await script.says(REHELLO, *(commit_of(record) for record in forked))
        await script.says(m.Rehello(run=RunId("cd" * 16), fence=1))  # the relay answers this message last
        hellos = [await script.hears(m.Hello) for _ in range(2)]
        assert [hello.run == RUN for hello in hellos] == [True, False]
        assert len([said for said in script.heard if isinstance(said, m.Heartbeat)]) <= 1
        assert (await script.hears(m.Heartbeat)).index == 1


async def test_links_to_other_relays_are_those_of_all_runs(tmp_path: Path) -> None:
    """A regression: a relay that one run did not know yet was dropped from the other run as well."""
    relay = Relay(Home(tmp_path), OwnAccess(tmp_path, RELAY, Role.RELAY, ""), host="127.0.0.1", port=0, advertise="")
    other = m.Listener(peer=OTHER_RELAY, url="ws://127.0.0.1:9/")
    await relay._take(m.Listeners(run=RUN, listeners=(other,)))
    await relay._take(m.Listeners(run=RunId("cd" * 16), listeners=()))
    assert list(relay.others._tasks) == [other]
    await relay.others.close()


# --- errors of the site or of a peer -----------------------------------------------------------------------------

OTHER_RUN = RunId("cd" * 16)


def signed_record(**changes: bytes) -> m.Commit:
    sendings = offers()
    payload = entry_of(record_of(plan(sendings), averaged(plan(sendings), sendings)[0])).head.payload
    for name, value in changes.items():
        payload = re.sub(rf'"{name}":[^,}}]+'.encode(), f'"{name}":'.encode() + value, payload)
    return m.Commit(run=RUN, fence=3, record=sign(SITE_KEY, RECORD, payload))


async def test_unreadable_record_sets_its_run_aside_and_no_other(tmp_path: Path, dial: Dial) -> None:
    """A regression: the shared relay crashed, restarted, received the record again, and crashed again."""
    async with site() as script, relaying(script, tmp_path / "relay") as relay:
        await script.says(REHELLO, signed_record(loss=b"null"), REHELLO, m.Rehello(run=OTHER_RUN, fence=1))
        assert (await script.hears(m.Leave)).run == RUN
        assert (await script.hears(m.Hello)).run == OTHER_RUN, "it was not told twice"
        assert relay.aside[RUN][1].code == "E218"
        with pytest.raises(Refused, match="E218"):
            await dial(relay, 0)
        await script.says(m.Rehello(run=RUN, fence=4))
        assert (await script.hears(m.Hello)).run == RUN, "a new host, a new try"


async def test_a_plan_that_cannot_be_opened_is_passed_over(tmp_path: Path) -> None:
    """A regression: such a plan ended the control link or the process."""
    unsigned = planned_whole(seal_plan(STRANGERS_KEY, plan(offers())))
    nonsense = [m.Planned(plan=sign(SITE_KEY, PLAN, payload)) for payload in (b"\xc1", b"", b"\x81\xa3run\xa1x")]
    tiny = planned(replace(plan(offers()), spans=()))
    async with site() as script, relaying(script, tmp_path / "relay") as relay:
        await script.says(REHELLO, unsigned, *nonsense, tiny, m.Rehello(run=OTHER_RUN, fence=1))
        assert [(await script.hears(m.Hello)).run for _ in range(2)] == [RUN, OTHER_RUN]
        assert relay.aside == {}


async def test_program_error_in_one_run_is_numbered_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def stumble(run: RelayedRun, event: e.Event) -> None:
        if run.run == RUN and isinstance(event, e.Ticked):
            raise KeyError("a bug")
        await taken(run, event)

    taken = RelayedRun.handle
    monkeypatch.setattr(RelayedRun, "handle", stumble)
    monkeypatch.setattr(relay_module, "TICK_S", 0.01)
    async with site() as script, relaying(script, tmp_path / "relay"):
        await script.says(REHELLO)
        assert (await script.hears(m.Leave)).run == RUN
        await script.says(m.Rehello(run=OTHER_RUN, fence=1))
        while (await script.hears(m.Hello)).run != OTHER_RUN:
            pass
    assert "E408" in caplog.text


async def test_a_hostile_data_link_costs_that_link_alone(tmp_path: Path, dial: Dial) -> None:
    sendings = offers()
    attempt = plan(sendings)
    async with site() as script, relaying(script, tmp_path / "relay") as relay:
        await script.says(REHELLO, planned(attempt))
        await script.hears(m.Hello)
        hostile, honest = await dial(relay, 5), await dial(relay, 0)
        await next_of(honest, m.Open)
        place = named(attempt)
        await hostile.send(m.Leaves(**place, slot=0, leaves=pack_leaves(sendings[1].leaves)))
        await hostile.send(m.FetchSpan(run=RUN, index=2**53, span=65535))
        await next_of(hostile, m.SpanMissing)
        for number in (0, 1, 70):
            await hostile.send(Frame(Kind.GRADIENT, RUN, 7, 3, 1, 0, number, number, bytes(9)))
        await hostile.send(Frame(Kind.GRADIENT, RUN, 7, 3, 1, 0, 0, 0, bytes(8 * 1024 * 1024 - 100)))
        ending = await how_it_ends(hostile)  # the message is longer than any that the plan allows
        assert isinstance(ending, Refused)
        assert ending.fault.code == "E210"
        other = await dial(relay, 1)
        await next_of(other, m.Open)
        for slot, link in enumerate((honest, other)):
            await send_all(link, attempt, slot, sendings[slot])
        assert {(await script.hears(m.SpanDone)).span for _ in attempt.spans} == {0, 1}


async def test_a_record_that_is_damaged_here_is_not_held_here(tmp_path: Path, dial: Dial) -> None:
    sendings = offers()
    attempt = plan(sendings)
    folder = tmp_path / "relay" / "log"
    UpdateLog(folder, SITE_PUBLIC).append(entry_of(record_of(attempt, averaged(attempt, sendings)[0])))
    async with site() as script, relaying(script, tmp_path / "relay") as relay:
        (folder / RUN / "records" / "00000001.json").write_bytes(b"rot")
        link = await dial(relay, 0)
        for _ in range(2):
            await link.send(m.FetchSpan(run=RUN, index=1, span=0))
            assert (await next_of(link, m.SpanMissing)).index == 1


# --- this machine ------------------------------------------------------------------------------------------------


def problems(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [code for part in error.exceptions for code in problems(part)]
    return [error.fault.code] if isinstance(error, Problem) else [repr(error)]


async def ended(running: "asyncio.Task[None]") -> list[str]:
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([running])
    error = running.exception()
    assert error is not None
    return problems(error)


@pytest.mark.parametrize("step", ["hold", "append"])
async def test_a_full_disk_ends_it_with_its_number(
    tmp_path: Path, dial: Dial, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise Problem.of("E106", path=tmp_path, reason="it is full")

    monkeypatch.setattr(UpdateLog, step, full)
    sendings = offers()
    attempt = plan(sendings)
    spans, _ = averaged(attempt, sendings)
    async with site() as script:
        folder = tmp_path / "relay"
        access = OwnAccess(folder, RELAY, Role.RELAY, script.url)
        relay = Relay(Home(folder), access, host="127.0.0.1", port=0, advertise="")
        running = asyncio.create_task(relay.run())
        await script.linked()
        if step == "append":
            await script.says(commit_of(entry_of(record_of(attempt, spans))))
        else:
            await script.says(REHELLO, planned(attempt))
            await script.hears(m.Hello)
            for slot, sending in enumerate(sendings):
                link = await dial(relay, slot)
                await next_of(link, m.Open)
                await send_all(link, attempt, slot, sending)
        assert await ended(running) == ["E106"]


async def test_one_that_was_revoked_ends_also_while_no_run_has_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "RENEW_S", 0.0)
    async with site() as script:
        access = OwnAccess(tmp_path, RELAY, Role.RELAY, script.url)
        relay = Relay(Home(tmp_path), access, host="127.0.0.1", port=0, advertise="")
        running = asyncio.create_task(relay.run())
        await script.linked()

        async def refused() -> None:
            raise Problem.of("E214")

        access.renew = refused  # type: ignore[method-assign]
        assert await ended(running) == ["E214"]


async def test_sites_reader_reads_its_runs_log_and_nothing_else(tmp_path: Path) -> None:
    async with site() as host, relaying(host, tmp_path / "relay") as relay:
        await host.says(REHELLO)
        await host.hears(m.Hello)
        access = OwnAccess(tmp_path / "reader", PeerId("dd" * 16), Role.READER, "")
        link = await access.dial_listener(m.Listener(RELAY, relay.url))
        other = RunId("cd" * 16)
        for run in (other, RUN):
            await link.send(m.FetchSpan(run=run, index=1, span=0))
        assert (await next_of(link, m.SpanMissing)).run == RUN, "of another run it hears nothing"
        assert other not in relay.runs
        assert PeerId("dd" * 16) not in relay.runs[RUN].links, "no averages are sent to it"
        await link.close()


async def test_sites_reader_reads_a_log_that_has_no_host(tmp_path: Path) -> None:
    """The run has finished and this relay has restarted. It answers the site's reader, but no other relay."""
    async with site() as script, relaying(script, tmp_path / "relay") as relay:
        access = OwnAccess(tmp_path / "reader", PeerId("dd" * 16), Role.READER, "")
        link = await access.dial_listener(m.Listener(RELAY, relay.url))
        await link.send(m.FetchRecords(run=RUN, first=1))
        assert (await next_of(link, m.Records)).last == 0
        await link.close()
