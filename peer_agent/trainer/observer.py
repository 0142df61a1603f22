"""Observes an agent about once a second, for the display and `manyhands status`."""

import asyncio
import contextlib
import shutil
import time
from enum import Enum, auto
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from peer_agent.display.status import write_status
from peer_agent.machine import hardware
from peer_agent.machine.language import sanitize
from peer_agent.network.link import PASSING
from peer_agent.network.site import get_json
from peer_agent.network.uplink import Rates
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.trainer.agent import Agent

LOOK_S = 1.0
LEADERBOARD_S = 10.0
LEARNING_S = 60.0
DISK_S = 10.0
MOST_LINES = 1000
MOST_WORDS = 1000  # most characters in the site's warning about training


class LeaderboardLine(Struct, frozen=True):
    """The fields of a leaderboard entry used by the display."""

    rank: int
    name: str
    samples: int


class Heldout(Struct, frozen=True):
    """The held-out loss that the site measured on the latest snapshot."""

    loss: float


class Learning(Struct, frozen=True):
    """The fields of a run's learning progress shown by the display."""

    heldout: Heldout | None = None
    warning: Annotated[str, Meta(max_length=MOST_WORDS)] = ""


class Condition(Enum):
    """The conditions in which the observer looks for faults. Each has at most one open fault at a time."""

    SITE = auto()
    CLOCK = auto()
    RELAYS = auto()
    DISK = auto()


class Observer:
    """Reads the agent without changing it. Updates `view.now`, and reports faults to `view`."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.view, self.now = agent, agent.view, agent.view.now
        self._rates = Rates()
        self._found: dict[Condition, str] = {}  # the current fault's code, by condition
        access = agent.access
        self.now.site, self.now.run, self.now.person = access.site.url, access.slug, access.site.person

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            tasks.create_task(self._ask_for_rank())
            tasks.create_task(self._ask_how_it_learns())
            tasks.create_task(self._watch_disk())

    async def _watch(self) -> None:
        while True:
            self.look()
            self.look_for_troubles()
            self.view.refresh()
            await asyncio.to_thread(write_status, self.agent.home, self.now, time.time())
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        agent, now = self.agent, self.now
        now.doing, now.title = doing(agent), agent.access.title
        now.up_mbps, now.down_mbps = self._rates.read()
        now.energy_wh, now.sent_bytes = agent.owner.used
        core = agent.core
        if core.recipe is not None:
            now.target_steps = core.recipe.target_steps
            now.step = min(max(core.step, 0) + 1, now.target_steps)
        now.events = [str(event) for event in self.view.events]
        now.relays = agent.links.addresses
        now.samples, now.quota = core.samples, core.quota
        if agent.jobs.accumulation is not None:
            now.samples_per_s = agent.jobs.accumulation.speed
        now.accepted = max(now.accepted, self.view.accepted)

    def look_for_troubles(self) -> None:
        agent, links = self.agent, self.agent.links
        self._note(Condition.SITE, _of_site(agent.away))
        if agent.control is not None:
            self._note(Condition.CLOCK, hardware.of_clock(agent.control.offset_s))
        missing = set(links.addresses) - set(links.reached)
        self._note(Condition.RELAYS, hardware.of_relays(missing, links.reached))
        self.view.look()

    async def _watch_disk(self) -> None:
        folder = self.agent.home.folder
        while True:
            with contextlib.suppress(OSError):  # the next observation tries again
                free = (await asyncio.to_thread(shutil.disk_usage, folder)).free
                self._note(Condition.DISK, hardware.of_disk_in_use(free, folder))
            await asyncio.sleep(DISK_S)

    def _note(self, condition: Condition, fault: Fault | None) -> None:
        """Report a condition's current fault to the view, if it has one. If it had a different fault before, report
        that the earlier fault has ended.
        """
        before = self._found.pop(condition, "")
        if fault is not None:
            self._found[condition] = fault.code
            self.view.began(fault)
        if before and (fault is None or fault.code != before):
            self.view.ended(before)

    async def _ask_for_rank(self) -> None:
        """Regularly ask the site for the user's accepted samples. Until it responds, show this machine's own count."""
        access = self.agent.access
        url = f"{access.site.url}/api/v1/runs/{access.slug}/leaderboard?limit={MOST_LINES}"
        while True:
            with contextlib.suppress(Problem, msgspec.ValidationError):
                answer = await get_json(url, headers=access.headers())
                self._take(msgspec.convert(answer.get("items"), list[LeaderboardLine]))
            await asyncio.sleep(LEADERBOARD_S)

    async def _ask_how_it_learns(self) -> None:
        """Regularly ask the site for the held-out loss and for any warning about training. Both change only every few
        minutes.
        """
        access = self.agent.access
        url = f"{access.site.url}/api/v1/runs/{access.slug}"
        while True:
            with contextlib.suppress(Problem, msgspec.ValidationError):
                self._take_learning(msgspec.convert(await get_json(url, headers=access.headers()), Learning))
            await asyncio.sleep(LEARNING_S)

    def _take_learning(self, told: Learning) -> None:
        self.now.heldout_loss = told.heldout.loss if told.heldout is not None else None
        self.view.warn(sanitize(told.warning))

    def _take(self, lines: list[LeaderboardLine]) -> None:
        mine = next((line for line in lines if line.name == self.now.person), None)
        self.now.people = len(lines)
        if mine is not None:
            self.now.rank, self.now.accepted = mine.rank, mine.samples


def doing(agent: Agent) -> str:
    """Return what the agent is doing, as a key of `status.SENTENCES`."""
    view, core = agent.view, agent.core
    if view.run_state == "finished":
        return "finished"
    if view.is_leaving:
        return "leaving"
    if agent.away is not None:
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


def _of_site(away: Fault | None) -> Fault | None:
    """Return the fault to show while the control link is down, or None. A site that cannot be reached may just be
    restarting, so E134 is shown for it.
    """
    return hardware.not_reached(away) if away is not None and away.code in PASSING else away
