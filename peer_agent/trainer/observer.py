"""Looks at an agent about once a second: for the view, and for whoever asks `manyhands status`."""

import asyncio
import contextlib
import time

import msgspec
from msgspec import Struct

from peer_agent.display.status import write_status
from peer_agent.network.site import get_json
from peer_agent.network.traffic import Rates
from peer_agent.protocol.errors import Problem
from peer_agent.trainer.agent import Agent

LOOK_S = 1.0
LEADERBOARD_S = 10.0
MOST_LINES = 1000


class LeaderboardLine(Struct, frozen=True):
    """A person's line in the leaderboard, as far as it is used here."""

    rank: int
    name: str
    samples: int


class Observer:
    """Changes nothing of the agent; fills `view.now`."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.view, self.now = agent, agent.view, agent.view.now
        self._rates = Rates()
        access = agent.access
        self.now.site, self.now.run, self.now.person = access.site.url, access.slug, access.site.person

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            tasks.create_task(self._ask_for_rank())

    async def _watch(self) -> None:
        while True:
            self.look()
            self.view.refresh()
            await asyncio.to_thread(write_status, self.agent.home, self.now, time.time())
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Take down the figures of this moment."""
        agent, now = self.agent, self.now
        now.doing, now.title = doing(agent), agent.access.title
        now.up_mbps, now.down_mbps = self._rates.read()
        core = agent.core
        if core.recipe is not None:
            now.target_steps = core.recipe.target_steps
            now.step = min(max(core.step, 0) + 1, now.target_steps)
        now.relays = agent.links.addresses
        now.samples, now.quota = core.samples, core.quota
        if agent.jobs.accumulation is not None:
            now.samples_per_s = agent.jobs.accumulation.speed
        now.accepted = max(now.accepted, self.view.accepted)

    async def _ask_for_rank(self) -> None:
        """The site's own count. While it is not told, this machine's stands."""
        access = self.agent.access
        url = f"{access.site.url}/api/v1/runs/{access.slug}/leaderboard?limit={MOST_LINES}"
        while True:
            with contextlib.suppress(Problem, msgspec.ValidationError):
                answer = await get_json(url, headers=access.headers())
                self._take(msgspec.convert(answer.get("items"), list[LeaderboardLine]))
            await asyncio.sleep(LEADERBOARD_S)

    def _take(self, lines: list[LeaderboardLine]) -> None:
        mine = next((line for line in lines if line.name == self.now.person), None)
        self.now.hands = len(lines)
        if mine is not None:
            self.now.rank, self.now.accepted = mine.rank, mine.samples


def doing(agent: Agent) -> str:
    """One of the words of `status.SENTENCES`."""
    view, core = agent.view, agent.core
    if view.run_state == "finished":
        return "finished"
    if view.is_leaving:
        return "leaving"
    if view.is_away:
        return "away"
    if not core.has_state:
        return "loading" if core.greeting is not None else "joining"
    if core.round is not None:
        return "averaging"
    if not core.is_at_head:
        return "catching up"
    if view.run_state in {"waiting", "paused"}:
        return view.run_state
    return "resting" if core.quota and core.is_full else "training"
