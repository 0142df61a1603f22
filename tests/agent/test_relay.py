"""A real relay against a scripted site and real contributors: plans, refusals, restarts, disks, other relays."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from peer_agent import relay as relay_module
from peer_agent.averaging.contributor import Sending
from peer_agent.averaging.update_log import UpdateLog
from peer_agent.config import Home
from peer_agent.network.link import Connection, LinkLost
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.merkle import pack_leaves
from peer_agent.protocol.records import digest_of
from peer_agent.protocol.wire import LOGGED, Frame
from peer_agent.relay import Relay
from peer_agent.relayed_run import RelayedRun
from tests.agent.cast import OTHER_RELAY, PATIENCE_S, RELAY, OwnPassport, dial_relay, next_of, planned, relaying, site
from tests.averaging.rounds import (
    GRID,
    RUN,
    SITE_KEY,
    averaged,
    contributor,
    frames_of,
    plan_of,
    record_of,
    sealed,
)
from tests.network.cast import how_it_ends
from tests.protocol.cast import SITE_PUBLIC

Dial = Callable[[Relay, int], Awaitable[Connection]]
REHELLO = m.Rehello(run=RUN, fence=3)


@pytest.fixture(autouse=True)
def one_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of tests.averaging.rounds are signed by its own site; plans and credentials by this one."""
    opened = UpdateLog.__init__
    monkeypatch.setattr(UpdateLog, "__init__", lambda log, folder, _: opened(log, folder, SITE_KEY))


@pytest.fixture
async def dial(tmp_path: Path) -> AsyncIterator[Dial]:
    """Data links of contributors, as many as a test wants."""
    links: list[Connection] = []

    async def to(relay: Relay, slot: int) -> Connection:
        links.append(await dial_relay(relay.url, tmp_path, slot))
        return links[-1]

    yield to
    for link in links:
        link.abort()
        await how_it_ends(link)


def offers(count: int = 2) -> list[Sending]:
    return [contributor(i, 100 + i).offer("fp32") for i in range(count)]


def plan(sendings: list[Sending], **changes: Any) -> m.Plan:
    return plan_of(sendings, reducers=(RELAY, RELAY), **changes)


def greeting(fence: int, step: int, **changes: Any) -> m.Greeting:
    snapshot = m.Snapshot(index=0, step=0, digest="", state_digest="", file="", size=0)
    usual: dict[str, Any] = {
        "run": RUN,
        "slug": "",
        "title": "",
        "fence": fence,
        "recipe": b"",
        "elements": GRID.elements,
        "shards": (),
        "snapshot": snapshot,
        "index": 0,
        "step": step,
        "digest": "0" * 64,
        "relays": (),
        "site_key": SITE_PUBLIC,
        "reconciled": True,
    }
    return m.Greeting(**(usual | changes))


async def send_all(link: Connection, plan: m.Plan, slot: int, sending: Sending, leaves: bytes | None = None) -> None:
    place: dict[str, Any] = {"run": plan.run, "step": plan.step, "fence": plan.fence, "attempt": plan.attempt}
    await link.send(m.Leaves(**place, slot=slot, leaves=leaves or pack_leaves(sending.leaves)))
    for frame in frames_of(plan, slot, sending):
        await link.send(frame)


class Silent:
    """A data link whose other end takes nothing, or has just gone."""

    def __init__(self, *, is_lost: bool) -> None:
        self.is_lost = is_lost

    async def send(self, _: object) -> None:
        if self.is_lost:
            raise LinkLost("gone")
        await asyncio.Event().wait()


def run_of_a_relay(folder: Path, said: list[m.Message], fetch: Callable[..., Any] | None = None) -> RelayedRun:
    async def say(message: m.Message) -> None:
        said.append(message)

    async def nobody(*_: object) -> None:
        return None

    return RelayedRun(RUN, RELAY, SITE_PUBLIC, UpdateLog(folder, SITE_KEY), say=say, fetch=fetch or nobody)


# --- plans -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_contributor_that_is_lost_or_takes_nothing_holds_up_no_plan(tmp_path: Path, *, is_lost: bool) -> None:
    """Its error, or its full buffer, was felt by the relay's control link."""
    run = run_of_a_relay(tmp_path, [])
    sendings = offers()
    run.links[PeerId(f"{0:032x}")] = Silent(is_lost=is_lost)  # type: ignore[assignment]
    async with asyncio.timeout(PATIENCE_S):
        await run.plan(planned(plan(sendings)))
    assert run.reduction is not None
    for task in (*run._openers.values(), *run._followers.values()):
        task.cancel()


async def test_a_span_held_before_a_restart_is_served_after_the_commit(tmp_path: Path, dial: Dial) -> None:
    """The relay dies between its report and the commit, and comes back with its disk."""
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
            await script.says(m.Commit(run=RUN, fence=3, record=sealed(record_of(attempt, spans))), REHELLO)
            assert (await script.hears(m.Hello)).log_index == 1
            link = await dial(relay, 0)
            await link.send(m.FetchSpan(run=RUN, index=1, span=1))
            for chunk in range(attempt.spans[1].first, attempt.spans[1].stop):
                frame = await link.receive()
                assert isinstance(frame, Frame)
                assert (frame.fence, frame.chunk, bytes(frame.payload)) == (LOGGED, chunk, payloads[chunk])


async def test_a_bad_slot_is_refused_once_and_its_peer_is_told(tmp_path: Path, dial: Dial) -> None:
    sendings = offers()
    attempt = plan(sendings)
    async with site() as script, relaying(script, tmp_path / "relay") as relay:
        await script.says(REHELLO, planned(attempt))
        await script.hears(m.Hello)
        link = await dial(relay, 0)
        await next_of(link, m.Open)
        await send_all(link, attempt, 0, sendings[0], leaves=pack_leaves(sendings[1].leaves))
        assert (await next_of(link, m.SlotRefused)).code == "E211"
        await link.send(m.FetchRecords(run=RUN, first=1))  # answered in turn: all the chunks were looked at by then
        await next_of(link, m.Records)
        await script.says(REHELLO)
        await script.hears(m.Hello)
        assert [type(said) for said in script.heard if not isinstance(said, m.Progress)] == [m.SlotRefused]


async def test_a_new_host_has_voided_what_was_open(tmp_path: Path) -> None:
    sendings = offers()
    run = run_of_a_relay(tmp_path, [])
    await run.plan(planned(plan(sendings)))
    run.greeted(greeting(fence=3, step=7))
    assert run.reduction is not None  # the same host
    run.greeted(greeting(fence=4, step=8))
    assert run.reduction is not None  # it was committed: the record is on its way
    run.greeted(greeting(fence=4, step=7))
    assert run.outbox is None
    assert run.reduction is None


# --- the log -----------------------------------------------------------------------------------------------------


async def test_a_fork_is_asked_about_once(tmp_path: Path) -> None:
    """Each of the commits that followed was answered with a hello, and each hello with all commits."""
    sendings = offers()
    attempt = plan(sendings)
    spans, _ = averaged(attempt, sendings)
    records = [sealed(record_of(attempt, spans))]
    for index in range(2, 6):
        records.append(sealed(record_of(attempt, spans, index=index, previous=digest_of(records[-1]))))
    other = sealed(record_of(attempt, spans, index=2, previous="ff" * 32))
    async with site() as script, relaying(script, tmp_path / "relay"):
        forked = [records[0], other, *records[2:]]
        await script.says(*(m.Commit(run=RUN, fence=3, record=record) for record in forked))
        await script.says(m.Rehello(run=RunId("cd" * 16), fence=1))  # the last that is answered
        hellos = [await script.hears(m.Hello) for _ in range(2)]
        assert [(hello.run == RUN, hello.log_index) for hello in hellos] == [(True, 1), (False, 0)]


async def test_an_entry_that_is_said_twice_is_copied_once(tmp_path: Path) -> None:
    sendings = offers()
    attempt = plan(sendings)
    spans, _ = averaged(attempt, sendings)
    commit = m.Commit(run=RUN, fence=3, record=sealed(record_of(attempt, spans)))
    asked: list[tuple[int, int]] = []
    was_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def fetch(run: RunId, index: int, span: int) -> None:
        asked.append((index, span))
        was_asked.set()
        await may_answer.wait()

    run = run_of_a_relay(tmp_path, [], fetch)
    await run.commit(commit)
    await run.commit(commit)
    (copying,) = run._copies.values()
    async with asyncio.timeout(PATIENCE_S):
        await was_asked.wait()
        run.covered = 1  # a snapshot comes
        may_answer.set()
        await copying
    assert asked == [(1, 0)]
    assert not run._copies


async def test_links_to_other_relays_are_those_of_all_runs(tmp_path: Path) -> None:
    """A relay that one run does not know yet was dropped from the other."""
    relay = Relay(Home(tmp_path), OwnPassport(tmp_path, RELAY, Role.RELAY, ""), host="127.0.0.1", port=0, advertise="")
    other = m.RelayAddress(peer=OTHER_RELAY, url="ws://127.0.0.1:9/")
    await relay._take(m.Relays(run=RUN, relays=(other,)))
    await relay._take(m.Relays(run=RunId("cd" * 16), relays=()))
    assert list(relay.others._tasks) == [other]
    await relay.others.close()


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
        passport = OwnPassport(folder, RELAY, Role.RELAY, script.url)
        relay = Relay(Home(folder), passport, host="127.0.0.1", port=0, advertise="")
        running = asyncio.create_task(relay.run())
        await script.linked()
        if step == "append":
            await script.says(m.Commit(run=RUN, fence=3, record=sealed(record_of(attempt, spans))))
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
        passport = OwnPassport(tmp_path, RELAY, Role.RELAY, script.url)
        relay = Relay(Home(tmp_path), passport, host="127.0.0.1", port=0, advertise="")
        running = asyncio.create_task(relay.run())
        await script.linked()

        async def refused() -> None:
            raise Problem.of("E214")

        passport.renew = refused  # type: ignore[method-assign]
        assert await ended(running) == ["E214"]
