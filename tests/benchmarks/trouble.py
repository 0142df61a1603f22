"""Rounds in which one peer has only a tenth of its uplink or freezes during an upload, compared with normal rounds.
See README.md.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace as copy_of

from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.identifiers import PeerId
from tests.benchmarks.measures.affected import TENTH, a_reducer, a_sender, beside_usual, chunks_by_reducer
from tests.benchmarks.measures.moved import planned
from tests.benchmarks.rig.coordinator import Coordinator, Timed
from tests.benchmarks.rig.figures import Figures, publish, say
from tests.benchmarks.rig.swarm import EARLY_S, Swarm, end_of_any, swarm, trainers_of, unless, way_of
from tests.benchmarks.rig.tally import AVERAGE, GRADIENT
from tests.benchmarks.rivals.environment import Unavailable
from tests.benchmarks.rivals.place import WARM_UP, Place
from tests.emulation.calibration import calibrated
from tests.emulation.counters import MOST_BUSY, cpu_busy, processor_time
from tests.emulation.floor import floor_s
from tests.emulation.kernel import queues
from tests.emulation.kernel.commands import batch, reason_against
from tests.emulation.namespaces import emulated
from tests.emulation.network import end
from tests.emulation.setups import SETUPS, Setup, setup

Kind = Literal["slow", "stopped"]
Part = Literal["sender", "reducer"]

USUAL, AFTER = 5, 4  # rounds before the trouble; rounds after the first affected one
BACK = 5  # at most this many further rounds until the peer is back
WITHOUT = 2  # rounds of the other peers after this peer was ended
LEAST_UNIT_S = 1.0  # seconds: least computing time of the trainers
# Computing takes this many times as long as an update over the narrowest link. Otherwise a peer that missed an update
# never catches up.
SLACK = 1.1
LOOK_S = 0.02
REPORT_S = 30.0  # longest wait for the peer to report its digest of the newest step
CODEC: Literal["fp16"] = "fp16"


class Asked(Struct, frozen=True, eq=False):
    """A job: one kind of trouble, for a peer with the given role in rounds, over the links of a set-up."""

    setup: Setup
    kind: Kind
    part: Part


class Troubled(Struct, eq=False):
    made: Swarm
    place: Place
    kind: Kind
    name: str
    first: int  # step of the first affected round
    back_after: int | None = None  # rounds from the end of the trouble until the peer was fully in a round again

    @property
    def peer(self) -> PeerId:
        return self.made.peers[self.name]

    @property
    def coordinator(self) -> Coordinator:
        return self.made.coordinator

    async def have_trouble(self) -> None:
        """Cause the trouble, then run the first affected round and the rounds after it. A stopped peer resumes after
        the first affected round."""
        if self.kind == "slow":
            self.let_send(TENTH)
        else:
            await self.stop_in_mid_upload()
            await self.coordinator.reach(self.first + 1)
            self.made.signal(self.name, signal.SIGCONT)
            self.coordinator.absent.discard(self.peer)
        await self.coordinator.reach(self.first + 1 + AFTER)
        self.let_send(1.0)

    def let_send(self, part: float) -> None:
        rate = self.made.setup.nominal().up[self.name] * part
        batch("tc", queues.changed("data", rate), self.made.network[self.name].namespace)

    async def stop_in_mid_upload(self) -> None:
        while (plan := self.plan_of_now()) is None:
            await self.coordinator.change()
        before, half = self.sent(), planned(plan, receivers_of(self.made))[self.peer].up / 2
        while self.sent() < before + half and self.coordinator.state.step == self.first:  # noqa: ASYNC110 (a file)
            await asyncio.sleep(LOOK_S)
        if self.coordinator.state.step > self.first:
            raise Unavailable(f"{self.name} had sent all before it could be stopped")
        self.coordinator.absent.add(self.peer)
        self.made.signal(self.name, signal.SIGSTOP)
        say(f"{self.name} is stopped at step {self.first}")

    def plan_of_now(self) -> Any:
        timed = self.coordinator.steps.get(self.first)
        return timed.plan if timed is not None else None

    def sent(self) -> int:
        return int(self.made.counted()[self.name][[GRADIENT, AVERAGE], 0].sum())

    async def come_back(self) -> None:
        """Run rounds until one contains all the peer's chunks, or the peer reduces in one."""
        begun = self.coordinator.state.step
        for number in range(1, BACK + 1):
            await self.coordinator.reach(begun + number)
            timed = self.coordinator.steps[begun + number - 1]
            if self.peer in timed.whole or (timed.plan and self.peer in chunks_by_reducer([timed.plan])):
                self.back_after = number
                return

    async def agree(self) -> Figures:
        """Return whether all reported digests of each step agree, and how many steps this peer is behind at the end."""
        step, digests = self.coordinator.state.step, self.coordinator.digests
        until = time.monotonic() + REPORT_S
        while self.peer not in digests.get(step, {}) and time.monotonic() < until:  # noqa: ASYNC110 (a dictionary)
            await asyncio.sleep(LOOK_S)
        is_equal = all(len(set(told.values())) == 1 for told in digests.values())
        told_at = [number for number, told in digests.items() if self.peer in told]
        is_trainer = self.name in trainers_of(self.made.setup)
        behind = max(0, step - max(told_at, default=0)) if is_trainer else None
        return {"digests_equal": is_equal, "behind": behind}

    async def go(self) -> list[Timed]:
        """End the peer's process, run some rounds without it, and return their history."""
        self.made.gone.add(self.name)
        self.coordinator.absent.add(self.peer)
        end(self.made.network[self.name].started[-1:])
        await self.coordinator.reach(self.coordinator.state.step + 1)
        begun = self.coordinator.state.step
        await self.coordinator.reach(begun + WITHOUT)
        return [self.coordinator.steps[step] for step in range(begun, begun + WITHOUT)]


def receivers_of(made: Swarm) -> set[PeerId]:
    return {made.peers[name] for name in {*trainers_of(made.setup), made.setup.keeper}}


def chosen(made: Swarm, place: Place, part: Part, steps: Sequence[Timed]) -> str:
    """Choose the peer to disturb, by its part in the rounds so far. Raise Unavailable if no peer is suitable."""
    plans = [timed.plan for timed in steps if timed.plan is not None]
    chunks = {made.named(peer): count for peer, count in chunks_by_reducer(plans).items()}
    trainers = trainers_of(made.setup)
    if part == "reducer":
        found = a_reducer(chunks, trainers)
    else:
        idle = [name for name in trainers if not chunks.get(name)]
        wire = encoded_size(place.codec, made.setup.elements)
        found = a_sender(idle, place.rates.up, wire, max(plan.duration_s for plan in plans))
    if found is None:
        raise Unavailable("everybody reduces" if part == "sender" else "nobody reduces")
    return found


def unit_s_of(place: Place) -> float:
    """Return a computing time that leaves even the narrowest link enough time to receive an update between rounds."""
    wire, setup = encoded_size(place.codec, place.network.setup.elements), place.network.setup
    own_s = {name: wire / place.rates.down[name] for name in trainers_of(setup)}
    slowest = max(own_s, key=lambda name: own_s[name])
    others = replace(setup, peers=tuple(peer for peer in setup.peers if peer.name != slowest))
    kept = replace(others, keeper=others.peers[0].name) if setup.keeper == slowest else others
    return max(LEAST_UNIT_S, SLACK * own_s[slowest] - floor_s(kept, replace(place.rates, pairs={}), wire, wire))


async def rounds_of(place: Place, asked: Asked) -> Figures:
    """Warm up, then run normal rounds, affected rounds, rounds until the peer is back, and rounds without it."""
    way = way_of(asked.setup, CODEC, unit_s_of(place), EARLY_S)
    recipe = copy_of(way.recipe, minimum_trainers=len(trainers_of(asked.setup)) - 1)
    async with swarm(place, asked.setup, copy_of(way, recipe=recipe, pace=copy_of(way.pace, late_s=0.0))) as made:
        watching = asyncio.create_task(end_of_any(place.network, asked.setup, made.gone))

        async def do(work: Coroutine[Any, Any, None]) -> None:
            async with asyncio.timeout(place.patience_s):
                await unless(watching, work)

        try:
            await do(made.coordinator.reach(WARM_UP + USUAL))
            usual = [made.coordinator.steps[step] for step in range(WARM_UP, WARM_UP + USUAL)]
            name = chosen(made, place, asked.part, usual)
            found = Troubled(made, place, asked.kind, name, made.coordinator.state.step)
            voids = made.coordinator.state.void_rounds
            say(f"{name} ({asked.part}) is {asked.kind} from step {found.first} on")
            await do(found.have_trouble())
            await do(found.come_back())
            agreed, voids = await found.agree(), made.coordinator.state.void_rounds - voids
            without = await asyncio.wait_for(found.go(), place.patience_s)
            return figures_of(found, usual, without) | {"rounds_void": voids} | agreed
        finally:
            watching.cancel()


def figures_of(found: Troubled, usual: Sequence[Timed], without: Sequence[Timed]) -> Figures:
    steps = [found.coordinator.steps[step] for step in range(found.first, found.first + 1 + AFTER)]
    stopped = frozenset({found.peer}) if found.kind == "stopped" else frozenset()
    affected = [steps[0].seconds_without(stopped), *(timed.round_s for timed in steps[1:])]
    times = beside_usual([timed.round_s for timed in usual], affected, [timed.round_s for timed in without])
    return {
        "setup": found.made.setup.name,
        "scale": found.made.setup.scale,
        "parameters": found.made.setup.elements,
        "who": found.name,
        **times,
        "planned_s": [timed.planned_s for timed in steps],
        "attempts": [timed.attempts for timed in steps],
        "dropped": [sorted(found.made.named(peer) for peer in timed.dropped) for timed in steps],
        "left_out": [sorted(missing_of(found.made, timed)) for timed in steps],
        "back_after": found.back_after,
    }


def missing_of(made: Swarm, timed: Timed) -> set[str]:
    slots = {slot.peer for slot in timed.plan.slots} if timed.plan is not None else set()
    return {name for name in trainers_of(made.setup) if made.peers[name] not in slots}


def measure(asked: Asked) -> Figures:
    about: Figures = {"setup": asked.setup.name, "trouble": asked.kind, "part": asked.part}
    if reason := reason_against():
        return about | {"left_out": reason}
    with emulated(asked.setup) as network, tempfile.TemporaryDirectory() as folder:
        rounds = USUAL + 1 + AFTER + BACK + WITHOUT
        place = Place(network, Path(folder), calibrated(network), CODEC, rounds)
        before = processor_time()
        try:
            found = asyncio.run(rounds_of(place, asked))
        except (TimeoutError, Unavailable) as trouble:
            return about | {"left_out": str(trouble) or f"no {rounds} rounds in {place.patience_s:.0f} s"}
        busy = cpu_busy(before, processor_time())
        return about | found | {"cpu_busy": busy, "is_valid": busy <= MOST_BUSY}


def main(arguments: Sequence[str]) -> int:
    for asked in jobs_of(parser().parse_args(arguments)):
        publish("trouble", partial(measure, asked))
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.trouble", description=__doc__)
    parser.add_argument("--setup", choices=sorted(SETUPS), default="four")
    parser.add_argument("--scale", type=float, help="of all rates; default: the set-up's own")
    parser.add_argument("--elements", type=int, help="of the vector; default: the set-up's own")
    parser.add_argument("--trouble", choices=get_args(Kind), nargs="+", default=get_args(Kind))
    parser.add_argument("--of", choices=get_args(Part), nargs="+", default=get_args(Part))
    return parser


def jobs_of(wanted: argparse.Namespace) -> list[Asked]:
    found = setup(wanted.setup, wanted.scale)
    found = replace(found, elements=wanted.elements) if wanted.elements else found
    return [Asked(found, kind, part) for part in wanted.of for kind in wanted.trouble]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
