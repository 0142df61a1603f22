"""The agent follows each of its owner's instructions once, answers it at once, and passes it on to the running work."""

import asyncio
import contextlib
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from peer_agent.machine.home import Home
from peer_agent.machine.limits import Limits
from peer_agent.machine.resting import Rest
from peer_agent.network.uplink import DOWNLINK, UPLINK, Traffic
from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.messages.machine import OwnerLimits, Why
from peer_agent.site import machine_control
from peer_agent.site.machine_control import MachineControl, Refusal
from tests.agent.scripted_site import OTHER_RELAY, RELAY, TRAINER
from tests.averaging.rounds import RUN


class Owned(MachineControl):
    def __init__(self, folder: Path) -> None:
        self.reports: list[m.MachineReport] = []
        self.told: list[str] = []
        self.changes = 0
        super().__init__(Home(folder), Limits(threads=3), lambda event, text: self.told.append(f"{event}: {text}"))
        self.on_change = self._count

    def _count(self) -> None:
        self.changes += 1

    def link(self) -> m.MachineReport:
        self.linked(RUN, self.reports.append)
        return self.reports[-1]


@pytest.fixture
async def owned(tmp_path: Path) -> Any:
    yield Owned(tmp_path)
    UPLINK.limit(0)
    DOWNLINK.limit(0)


async def test_the_machine_speaks_first_and_answers_at_once(owned: Owned) -> None:
    assert owned.link() == m.MachineReport(run=RUN, revision=-1, threads=3)
    owned.hear(m.Instructions(revision=4, pause=True))
    assert (owned.reports[-1].revision, owned.reports[-1].why) == (4, Why.PAUSED)
    assert owned.rest == Rest(Why.PAUSED)
    assert owned.told == ["on_hold: On hold. Paused by you."]
    owned.hear(m.Instructions(revision=5))
    assert (owned.reports[-1].revision, owned.reports[-1].why) == (5, Why.WORKS)
    assert owned.told[1:] == ["resumed: Working again."]
    assert owned.changes == 2


async def test_a_pause_that_is_over_is_asked_about_until_the_site_agrees(
    owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's clock decides only when to ask. It may be fast, so the site's answer ends the pause."""
    until = int(time.time()) + 3600
    owned.link()
    owned.hear(m.Instructions(revision=1, pause=True, pause_until=until))
    assert owned.told == [f"on_hold: On hold. Paused until {datetime.fromtimestamp(until):%H:%M}."]  # noqa: DTZ006
    said = len(owned.reports)
    monkeypatch.setattr(machine_control, "DUE_S", 0.0)
    await owned.look()
    assert len(owned.reports) == said, "it is not over yet"
    monkeypatch.setattr("peer_agent.site.machine_control.time.time", lambda: until)
    await owned.look()
    assert len(owned.reports) == said + 1
    assert owned.rest.why is Why.PAUSED
    owned.hear(m.Instructions(revision=2))
    assert not owned.rest


async def test_what_a_run_takes_begins_anew_with_each_run(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_control, "TRAFFIC", traffic := Traffic())
    owned.linked(RUN, owned.reports.append)
    traffic.add(sent=700, received=50)
    owned._meter.energy_wh += 2.4
    owned.linked(RUN, owned.reports.append)
    assert (owned.reports[-1].sent_bytes, owned.reports[-1].energy_wh) == (700, 2), "a link is not a run"
    owned.linked(RunId("0c" * 16), owned.reports.append)
    assert (owned.reports[-1].sent_bytes, owned.reports[-1].energy_wh) == (0, 0)


async def test_what_was_heard_before_is_answered_and_not_done_again(owned: Owned) -> None:
    owned.link()
    owned.hear(m.Instructions(revision=4, move_to="other"))
    owned.move_to = ""  # as if the move to another run were done
    said = len(owned.reports)
    owned.hear(m.Instructions(revision=4, move_to="other"))
    owned.hear(m.Instructions(revision=3, pause=True))
    assert (owned.move_to, owned.rest) == ("", Rest())
    assert [report.revision for report in owned.reports[said:]] == [4, 4]


async def test_limits_replace_those_of_the_command_line_and_return(owned: Owned) -> None:
    owned.hear(m.Instructions(revision=1, limits=OwnerLimits(threads=1, duty_percent=40, up_kbps=800, down_kbps=80)))
    assert (owned.limits.threads, owned.limits.duty_percent) == (1, 40)
    assert UPLINK.is_paced
    assert (UPLINK._limited._rate, DOWNLINK._bucket._rate) == (100_000, 10_000)
    owned.hear(m.Instructions(revision=2))
    assert (owned.limits.threads, owned.limits.duty_percent) == (3, 100)
    assert not UPLINK.is_paced


def refusal(step: int, by: PeerId = RELAY, reason: str = "the root is another") -> Refusal:
    return Refusal(step, by, by == RELAY, reason)


async def test_five_refusals_hold_until_the_owner_says_something(owned: Owned) -> None:
    owned.link()
    for step in range(4):
        owned.refused(refusal(step))
    owned.accepted()
    for step in range(5, 9):
        owned.refused(refusal(step))
    owned.refused(refusal(8))
    assert not owned.rest, "one step is one refusal, however often it is said"
    owned.refused(refusal(9, reason="\x1b[31mthe root is another"))
    assert owned.rest.why is Why.REFUSED
    assert "\x1b" not in owned.rest.detail
    assert owned.reports[-1].why is Why.REFUSED
    owned.accepted()
    await owned.look()
    assert owned.rest.why is Why.REFUSED, "it passes by nothing but the owner's word"
    owned.hear(m.Instructions(revision=1))
    assert not owned.rest


@pytest.mark.parametrize(("who", "holds"), [((TRAINER,), False), ((TRAINER, OTHER_RELAY), True), ((RELAY,), True)])
async def test_what_one_member_says_puts_no_machine_on_hold(
    owned: Owned, who: tuple[PeerId, ...], *, holds: bool
) -> None:
    for step in range(20):
        owned.refused(refusal(step, who[step % len(who)]))
        await owned.look()
    assert bool(owned.rest) is holds


async def test_memory_that_was_too_much_is_not_tried_again(owned: Owned) -> None:
    owned.needed_bytes = 10**12
    owned.hear(m.Instructions(revision=1, limits=OwnerLimits(memory_mb=10**6 - 1)))
    assert owned.rest.why is Why.MEMORY, "told before anything was loaded"
    owned.needed_bytes = 0
    await owned.look()
    assert owned.rest.why is Why.MEMORY
    owned.hear(m.Instructions(revision=2, limits=OwnerLimits(memory_mb=10**6 - 1)))
    assert not owned.rest


async def test_it_looks_again_and_again(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_control, "LOOK_S", 0.01)
    seen = {"steam"}
    monkeypatch.setattr("peer_agent.machine.resting.running_programs", lambda: iter(seen))
    owned.link()
    watching = asyncio.create_task(owned.watch())
    owned.hear(m.Instructions(revision=1, limits=OwnerLimits(programs=("Steam",))))
    async with asyncio.timeout(5):
        await until(owned, lambda: owned.rest == Rest(Why.PROGRAM, "Steam"))
        seen.clear()
        await until(owned, lambda: not owned.rest)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    assert [report.why for report in owned.reports[-2:]] == [Why.PROGRAM, Why.WORKS]


async def until(owned: Owned, holds: Any) -> None:
    while not holds():
        owned.changed.clear()
        await owned.changed.wait()


async def test_unchanged_report_is_sent_once_a_minute_despite_figures(
    owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned.link()
    for _ in range(3):
        await owned.look()
    assert len(owned.reports) == 1
    monkeypatch.setattr(machine_control, "REPORT_S", 0.0)
    await owned.look()
    assert len(owned.reports) == 2


async def test_while_there_is_no_link_nothing_is_said(owned: Owned) -> None:
    owned.link()
    owned.unlinked()
    owned.hear(m.Instructions(revision=1, pause=True))
    assert len(owned.reports) == 1
    assert owned.link().why is Why.PAUSED


async def test_look_under_older_limits_is_not_judged_by_newer_ones(
    owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outdated look ignores newly listed programs, so the machine would briefly work while they run."""
    look, loop = owned._senses.look, asyncio.get_running_loop()

    def slowly(*arguments: Any, **more: Any) -> Any:
        around = look(*arguments, **more)
        loop.call_soon_threadsafe(owned.hear, m.Instructions(revision=1, limits=OwnerLimits(programs=("steam",))))
        time.sleep(0.1)
        return around

    monkeypatch.setattr(owned._senses, "look", slowly)
    await owned.look()
    assert owned._around is None
