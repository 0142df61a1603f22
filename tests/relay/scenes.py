"""One attempt of a run with two relays, the host's messages about that attempt, and a relay without links."""

import asyncio
from pathlib import Path
from typing import Any

from peer_agent.averaging.contributor import Sending
from peer_agent.averaging.update_log import UpdateLog
from peer_agent.network.link import Connection
from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.log.merkle import pack_leaves
from peer_agent.protocol.log.records import Entry
from peer_agent.protocol.relay import events as e
from peer_agent.protocol.relay.opened import open_message
from peer_agent.relay.run import Around, RelayedRun
from tests.agent.scripted_site import PATIENCE_S, RELAY
from tests.averaging.rounds import GRID, RUN, contributor, frames_of, plan_of
from tests.protocol.identities import SITE_PUBLIC

REHELLO = m.Rehello(run=RUN, fence=3)


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
        "listeners": (),
        "site_key": SITE_PUBLIC,
        "reconciled": True,
    }
    return m.Greeting(**(usual | changes))


def commit_of(entry: Entry) -> m.Commit:
    return m.Commit(run=RUN, fence=3, record=entry.head, contributions=entry.contributions)


async def send_all(link: Connection, plan: m.Plan, slot: int, sending: Sending, leaves: bytes | None = None) -> None:
    place: dict[str, Any] = {"run": plan.run, "step": plan.step, "fence": plan.fence, "attempt": plan.attempt}
    await link.send(m.Leaves(**place, slot=slot, leaves=leaves or pack_leaves(sending.leaves)))
    for each in frames_of(plan, slot, sending):
        await link.send(each)


def run_of_a_relay(folder: Path, said: list[m.Message], ask: Any = None, clock: Any = lambda: 0.0) -> RelayedRun:
    async def nobody(*_: object) -> None:
        return None

    def failed(_: RunId, error: Exception) -> None:
        raise AssertionError(error)

    around = Around(said.append, ask or nobody, lambda *_: None, failed)
    return RelayedRun(RUN, RELAY, UpdateLog(folder, SITE_PUBLIC), around, clock=clock)


def heard(message: m.TO_PEER) -> e.Heard:
    return e.Heard(open_message(message, SITE_PUBLIC))


async def settled(run: RelayedRun) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while run._tasks:
            await asyncio.wait(run._tasks)
