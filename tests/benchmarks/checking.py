"""The costs of checking work: computing for audits, processor time for sketches and robust rules, and bytes.

Run `python -m tests.benchmarks.checking`. The last line is one JSON object. Described in docs/benchmarks.md.
"""

import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from peer_agent.averaging.contributor import Sending
from peer_agent.averaging.reducer import Reduction
from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.round.screening import SETTLED
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.log.merkle import pack_leaves
from peer_agent.protocol.recipe import AveragingRule
from peer_agent.protocol.relay.opened import OpenPlan
from peer_agent.simulation.site import Host
from peer_agent.simulation.world import Setting, World
from tests.averaging.rounds import contributor, plan_of
from tests.benchmarks.rig.figures import Figures, median, publish, say

PEOPLE, STEPS, SEEDS = 8, 300, 3
SLOTS, ELEMENTS, TIMES = 8, 4_000_000, 7


class Counted:
    """An observer that adds up the samples of audits, and of all updates, once everyone is settled."""

    def __init__(self) -> None:
        self.audited = self.computed = self.audits = 0
        self.is_settled = False

    def before(self, host: Host, event: e.Event, now: float) -> None:
        pass

    def after(self, host: Host, event: e.Event, commands: Sequence[e.Command], now: float) -> None:
        del event, now
        state = host.state
        members = [member for member in state.members.values() if member.trains]
        is_known = all(member.reliability.audits_passed for member in members)
        self.is_settled |= is_known and all(state.contributed[member.person] >= SETTLED for member in members)
        for command in commands if self.is_settled else ():
            if isinstance(command, e.Send) and isinstance(command.message, m.Audit):
                self.audits += 1
                self.audited += sum(unit.samples for unit in (*command.message.units, *command.message.stale))

    def persisted(self, _: Host, command: e.Persist, outcome: str) -> None:
        if outcome == "committed" and self.is_settled:
            self.computed += command.record.samples


def computing(staleness: int) -> Figures:
    """Return the share of computing that audits take, in simulated runs of strangers who have settled."""
    shares, audits = [], 0
    for seed in range(SEEDS):
        setting = Setting(trainers=PEOPLE, steps=STEPS, seed=seed, trusted=frozenset(), even=True)
        counted = Counted()
        world = World(replace(setting, staleness=staleness), [counted])
        assert world.run(partial(_is_done, world), 100_000.0)
        shares.append(counted.audited / counted.computed)
        audits += counted.audits
    say(f"staleness {staleness}: audits take {shares} of the computing")
    return {"share": median(shares), "most": max(shares), "audits": audits}


def _is_done(world: World) -> bool:
    return world.tally.finished


def reducing() -> Figures:
    """Return the processor seconds of a reducer for one vector, and the same with sketches and with other rules."""
    grid = grid_of(ELEMENTS)
    sendings = [contributor(number, 100, grid).offer("fp16") for number in range(SLOTS)]
    kinds: dict[str, dict[str, Any]] = {
        "mean": {},
        "sketches": {"seed": 77},
        "geometric median": {"rule": "geometric median"},
        "centered clip": {"rule": "centered clip"},
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(TIMES):
        for name, facts in kinds.items():  # alternately, so that a noisy machine is unfair to none
            seconds[name].append(_reduced(sendings, **facts))
    usual = median(seconds["mean"])
    return {
        "seconds": usual,
        "slots": SLOTS,
        "elements": ELEMENTS,
        "times": {name: median(each) / usual for name, each in seconds.items() if name != "mean"},
    }


def _reduced(sendings: Sequence[Sending], seed: int = 0, rule: AveragingRule = "mean") -> float:
    grid = grid_of(ELEMENTS)
    plan = replace(plan_of(sendings, grid=grid, codec_down="fp16", cuts=(0, grid.chunks)), seed=seed, rule=rule)
    reduction = Reduction(OpenPlan(plan, plan.slots))
    for slot, sending in enumerate(sendings):
        assert reduction.leaves(slot, pack_leaves(sending.leaves)) is None
    began = time.process_time()
    for chunk in grid:
        for slot, sending in enumerate(sendings):
            assert reduction.add(slot, chunk, sending.payloads[chunk]) is None
        reduction.close(chunk, 100 * SLOTS)
    return time.process_time() - began


def measure() -> Figures:
    reduced = reducing()
    return {
        "computing": {f"staleness {staleness}": computing(staleness) for staleness in (0, 1)},
        "reducing": reduced,
        "bytes_per_slot_and_span": m.SKETCH_BYTES,
    }


if __name__ == "__main__":
    sys.exit(publish("checking", measure))
