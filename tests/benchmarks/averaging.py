"""Rounds of real processes over emulated home links, compared with the least possible time. See README.md."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace as copy_of
from functools import partial
from pathlib import Path
from typing import NoReturn, get_args

from msgspec import Struct
from msgspec.structs import replace

from peer_agent.protocol.bandwidth.flows import Capacity, Direction
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Record
from peer_agent.protocol.recipe import Codec
from tests.benchmarks.agents.held import error_rms, load_average, load_held
from tests.benchmarks.measures.moved import OF_ROUNDS, beside_plans, in_parts, planned, rows_between, together
from tests.benchmarks.rig.coordinator import Coordinator, Timed
from tests.benchmarks.rig.figures import Figures, median, publish, say
from tests.benchmarks.rig.swarm import (
    EARLY_S,
    STATED,
    UNIT_S,
    Swarm,
    Way,
    end_of_any,
    ids_of,
    swarm,
    trainers_of,
    unless,
    way_of,
)
from tests.benchmarks.rig.tally import Counts
from tests.benchmarks.rivals.against import Engine, compared, summary
from tests.benchmarks.rivals.costs import spent_s
from tests.benchmarks.rivals.environment import Unavailable
from tests.benchmarks.rivals.place import WARM_UP, Counted, Place
from tests.benchmarks.rivals.plans import Solve, planned_by
from tests.benchmarks.suite.sizes import AVERAGING, RIVALS, SIZES, Averaging, Rival, Wire
from tests.emulation.calibration import calibrated
from tests.emulation.counters import MOST_BUSY, Traffic, cpu_busy, traffic
from tests.emulation.floor import floor_s
from tests.emulation.kernel.commands import reason_against
from tests.emulation.namespaces import emulated
from tests.emulation.setups import SETUPS, Rates, Setup, setup

MANY_UNIT_S = 0.5  # a trainer's seconds per batch when many rounds are made and no idle links are probed
AS_FAST = 0.95  # share of the floor time that is still accepted as equally fast, given measuring errors
SHOWN = ("rounds_s", "rounds_ok", "rounds_void", "planned_s", "cpu_s_per_gb", "sent_bytes", "cpu_busy", "is_valid")


class Asked(Struct, frozen=True, eq=False):
    """A benchmark job: rounds over the links of `setup`, in each codec, and the rivals to compare them with.

    `is_many`: run many short rounds. `reserve`: percentage of each trainer's uplink that is reserved for its
    household. `sketched`: reducers make sketches of the gradients in every other round.
    """

    setup: Setup
    codecs: tuple[Wire, ...]
    rounds: int
    against: tuple[Rival, ...]
    is_many: bool = False
    reserve: int = 0
    sketched: bool = False

    @property
    def stated(self) -> Codec:
        """The codec for the rivals, since no plan chooses one for them."""
        return next((codec for codec in self.codecs if codec != "plan"), STATED)


class Seen(Struct, frozen=True, eq=False):
    """A snapshot of the kernel's counters, each process's byte counts, and the number of void rounds."""

    kernel: Counted
    processes: dict[str, Counts]
    voids: int


class Made(Struct, frozen=True, eq=False):
    """A series of finished rounds with their links and peers, and the counters before and after it."""

    setup: Setup
    way: Way
    rates: Rates
    coordinator: Coordinator
    peers: dict[str, PeerId]  # by the peer's name in the set-up
    before: Seen
    after: Seen
    rounds: int
    errors: dict[int, float]  # error of the averages of each step; measured only if the plan chose codecs
    peaks: dict[str, float]  # each trainer's highest upload in any second, as a fraction of its link

    @property
    def left(self) -> Rates:
        """The rates of all links, less the share of each trainer's uplink that is reserved for its household."""
        share = 1 - self.way.reserve / 100
        up = {name: bps * (share if name in trainers_of(self.setup) else 1) for name, bps in self.rates.up.items()}
        return copy_of(self.rates, up=up)

    @property
    def counted(self) -> dict[int, Timed]:
        steps, last = sorted(self.coordinator.steps.items()), WARM_UP + self.rounds
        return {step: timed for step, timed in steps if WARM_UP <= step < last and timed.committed_at}

    def record(self, step: int) -> Record:
        return self.coordinator.entries[step][1]


def measure(asked: Asked) -> list[Figures]:
    """Measure the links, warm up, run the rounds in each codec, then run the rivals over the same links."""
    with emulated(asked.setup) as network, tempfile.TemporaryDirectory() as folder:
        place = Place(network, Path(folder), calibrated(network), asked.stated, asked.rounds)
        lines = [ours(place, asked, codec) for codec in asked.codecs]
        if asked.against:
            say(json.dumps(lines))  # printed now, so that a rival's failure loses nothing
            against = compared(place, asked.against, lines[0], engine_of(place), ids_of(asked.setup))
            for line in lines:
                line["against"] = against | summary(against["details"], line.get("round_s_median"))
        return lines


def ours(place: Place, asked: Asked, codec: Wire) -> Figures:
    """Return the figures of our rounds. If the rounds fail, return the reason, so that the rivals can still run."""
    setup, (unit_s, early_s) = asked.setup, (MANY_UNIT_S, 0.0) if asked.is_many else (UNIT_S, EARLY_S)
    try:
        way = replace(way_of(setup, codec, unit_s, early_s, asked.reserve), sketched=asked.sketched)
        run = rounds_of(place, setup, way, is_many=asked.is_many)
        return figures_of(run) | {"is_many": asked.is_many}
    except (TimeoutError, Unavailable) as trouble:
        reason = str(trouble) or f"no {place.rounds} rounds in {place.patience_s:.0f} s"
        return {"setup": setup.name, "codec": codec, "left_out": reason}


def engine_of(place: Place) -> Engine:
    """Return a function that measures our own engine with a rival's plan."""

    def engine(setup: Setup, solve: Solve) -> Figures:
        figures = figures_of(rounds_of(place, setup, way_of(setup, place.codec, early_s=EARLY_S), solve))
        shown = {name: value for name, value in figures.items() if name in SHOWN}
        peak = max(figures["peak_mb"][peer.name] for peer in setup.peers if peer.role == "trainer")
        partial_rounds = place.rounds - figures["rounds_ok"]
        return {"round_s": figures["round_s_median"], "rounds_partial": partial_rounds, "peak_mb": peak} | shown

    return engine


def rounds_of(place: Place, setup: Setup, way: Way, solve: Solve | None = None, *, is_many: bool = False) -> Made:
    """Run rounds of our engine in the place's namespaces, planned by `solve` if it is given. Stop all processes at the
    end.
    """
    with planned_by(solve):
        return asyncio.run(_rounds(place, setup, way, is_many=is_many))


async def _rounds(place: Place, setup: Setup, way: Way, *, is_many: bool) -> Made:
    async with swarm(place, setup, way) as made, asyncio.timeout(place.patience_s):
        watching = asyncio.create_task(end_of_any(place.network, setup))
        try:
            return await _counted(place, way, made, watching, is_many=is_many)
        finally:
            watching.cancel()


async def _counted(place: Place, way: Way, made: Swarm, watching: "asyncio.Task[NoReturn]", *, is_many: bool) -> Made:
    coordinator, last = made.coordinator, WARM_UP + place.rounds
    await unless(watching, coordinator.reach(WARM_UP - 1))
    if is_many:
        coordinator.end_probes()  # one more uncounted round, since a probe may be running
    await unless(watching, coordinator.reach(WARM_UP))
    coordinator.has_sketches_in_turn = way.sketched
    before, began, peaks = seen(made), time.monotonic(), dict[str, float]()
    looking = asyncio.create_task(look_at_uplinks(made, place.rates, peaks))
    await unless(watching, coordinator.reach(last))
    looking.cancel()
    after = seen(made)
    say(f"{place.rounds} rounds in {time.monotonic() - began:.1f} s")
    trainers = {made.peers[name] for name in trainers_of(made.setup)}
    await unless(watching, coordinator.reach(last_step(coordinator, trainers, way, place.rounds)))
    found = Made(made.setup, way, place.rates, coordinator, made.peers, before, after, place.rounds, {}, peaks)
    found.errors.update(errors_of(found, made.folder) if way.recipe.codecs == "plan" else {})
    return found


async def look_at_uplinks(made: Swarm, rates: Rates, peaks: dict[str, float]) -> None:
    """Record each trainer's highest upload in any one second, until cancelled."""
    names, at = trainers_of(made.setup), time.monotonic()
    last = traffic(made.network)
    while True:
        await asyncio.sleep(1.0)
        now, then, at, counted = traffic(made.network), at, time.monotonic(), last
        for name in names:
            bps = (now[name].up.bytes - counted[name].up.bytes) / (at - then)
            peaks[name] = max(peaks.get(name, 0.0), bps / rates.up[name])
        last = now


def seen(made: Swarm) -> Seen:
    return Seen(Counted.now(made.network), made.counted(), made.coordinator.state.void_rounds)


def last_step(coordinator: Coordinator, trainers: set[PeerId], way: Way, rounds: int) -> int:
    """Return the last round to run. If a counted round left a trainer out, further rounds measure that trainer's
    recovery.
    """
    last = WARM_UP + rounds
    short = [step for step in range(WARM_UP, last) if way.stays and absent_from(coordinator, trainers, step)]
    return max((step + 1 + way.stays for step in short), default=last)


def absent_from(coordinator: Coordinator, trainers: set[PeerId], step: int) -> set[PeerId]:
    return trainers - {part.peer for part in coordinator.entries[step][1].contributions}


def errors_of(made: Made, folder: Path) -> dict[int, float]:
    """Return the error of the averages for each counted round that made an update, read from the agents' folders."""
    names = {peer: name for name, peer in made.peers.items()}
    errors = {}
    for step in made.counted:
        record = made.record(step)
        homes = {part.peer: folder / names[part.peer] for part in record.contributions}
        averages = [found for home in homes.values() if (found := load_average(home, step)) is not None]
        if averages:
            errors[step] = error_rms(record, {peer: load_held(home, step) for peer, home in homes.items()}, averages[0])
    return errors


def figures_of(run: Made) -> Figures:
    found, codec, coordinator, peers = run.setup, run.way.recipe.codec_up, run.coordinator, run.peers
    wire, steps = wire_bytes(codec, found.elements), list(run.counted.values())
    before, after = run.before.kernel, run.after.kernel
    round_s, floor = median(timed.round_s for timed in steps), floor_s(found, run.left, wire, wire)
    moved = {name: after.traffic[name] - before.traffic[name] for name in peers}
    busy = cpu_busy(before.busy, after.busy)
    sent = sum(each.up.bytes for each in moved.values())
    return {
        "setup": found.name,
        "scale": found.scale,
        "peers": len(found.peers),
        "parameters": found.elements,
        "codec": codec,
        "reserve_percent": run.way.reserve,
        "uplink_peak": max(run.peaks.values(), default=None),
        "wire_bytes": wire,
        "floor_s": floor,
        "raw_floor_s": floor_s(found, found.nominal(), wire, wire),
        "round_s_median": round_s,
        "ratio": round_s / floor,
        "rounds_s": [timed.round_s for timed in steps],
        "cut_to_plan_s": median(timed.planned_at - timed.cut_at for timed in steps),
        "planned_s": median(timed.planned_s for timed in steps),
        "cpu_busy": busy,
        "is_valid": busy <= MOST_BUSY,
        "cpu_s_per_gb": spent_s(before.costs, after.costs) / (sent / 1e9),
        "cpu_s": {name: spent.cpu_s - before.costs[name].cpu_s for name, spent in after.costs.items()},
        "peak_mb": {name: spent.peak_mb for name, spent in after.costs.items()},
        "sent_bytes": sent / len(steps),
        "rounds_ok": sum(_is_ok(run, step) for step in run.counted),
        "rounds_void": run.after.voids - run.before.voids,
        "in_and_holding": sum(len(timed.whole & timed.held_at.keys()) for timed in steps)
        / (len(steps) * len(trainers_of(found))),
        "per_peer_up_bytes": {name: each.up.bytes / len(steps) for name, each in moved.items()},
        "per_peer_down_bytes": {name: each.down.bytes / len(steps) for name, each in moved.items()},
        "relay_bytes": _relay_bytes(found, moved, len(steps)),
        "bytes": _bytes_beside_plans(run, steps, sent),
        "learned_bandwidth_error": link_errors(
            coordinator.state.links.capacities, coordinator.shown_by, peers, run.rates
        ),
        "not_measured": _not_measured(coordinator.state.links.capacities, peers),
        "notes": [note for note in coordinator.notes if not note.startswith("step")][-8:],
        **(freedom_of(run) if run.way.recipe.codecs == "plan" else {}),
        **({"sketches": sketches_of(steps)} if run.way.sketched else {}),
    }


def sketches_of(steps: Sequence[Timed]) -> Figures:
    """Return the median times of rounds with sketches of the gradients, and of the rounds between them."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for timed in steps:
        seconds[timed.plan is not None and bool(timed.plan.seed)].append(timed.round_s)
    with_s, without_s = median(seconds[True]), median(seconds[False])
    return {"rounds": len(seconds[True]), "with_s": with_s, "without_s": without_s, "times": with_s / without_s}


def freedom_of(run: Made) -> Figures:
    """Return the figures of rounds in which the plan chose codecs and contributors. The floor time uses the same
    choices."""
    names = {peer: name for name, peer in run.peers.items()}
    steps = list(run.counted.values())
    floors = [_floor_s(run, timed, run.left) for timed in steps]
    return {
        "codec": "plan",
        "floor_s": median(floors),
        "raw_floor_s": median(_floor_s(run, timed, run.setup.nominal()) for timed in steps),
        "ratio": median(timed.round_s / floor for timed, floor in zip(steps, floors, strict=True)),
        "floors_s": floors,
        "codecs_up": Counter(codec for timed in steps for codec in timed.codecs.values()),
        "codecs_down": Counter(timed.codec_down for timed in steps),
        "left_out": Counter(names[peer] for timed in steps for peer in sorted(timed.left_out)),
        "error_rms": median(run.errors.values()) if run.errors else None,
    }


def _floor_s(run: Made, timed: Timed, rates: Rates) -> float:
    names, elements = {peer: name for name, peer in run.peers.items()}, run.setup.elements
    up = {names[peer]: wire_bytes(codec, elements) for peer, codec in timed.codecs.items()}
    return floor_s(run.setup, rates, up, wire_bytes(timed.codec_down, elements))


def wire_bytes(codec: Codec, elements: int) -> int:
    grid = grid_of(elements)
    return sum(encoded_size(codec, grid.length(chunk)) for chunk in grid)


def _is_ok(run: Made, step: int) -> bool:
    """Return True if the round includes all the work of every trainer that the plan did not leave out, and all
    trainers have the averages.
    """
    timed, record = run.coordinator.steps[step], run.record(step)
    if run.way.recipe.contributors == "all" and not run.way.recipe.staleness:
        return timed.exact and timed.slots == len(trainers_of(run.setup)) == len(timed.held_at)
    return record.is_whole and timed.is_held and {part.peer for part in record.contributions} == timed.asked


def _bytes_beside_plans(run: Made, steps: Sequence[Timed], sent: int) -> Figures:
    """Return how many bytes a round transfers beyond the planned ones.

    P is the size of an encoded vector and n the number of contributors. Bytes are given in multiples of P for peers
    that do not reduce, and in multiples of nP for relays.
    """
    found, plans = run.setup, [timed.plan for timed in steps if timed.plan is not None]
    receivers = {run.peers[name] for name in {*trainers_of(found), found.keeper}}
    processes = run.before.processes, run.after.processes
    whole = len(plans) * wire_bytes(run.way.recipe.codec_up, found.elements)
    moved = rows_between(*processes, OF_ROUNDS)
    reducers = {span.reducer for plan in plans for span in plan.spans}
    senders = [name for name in trainers_of(found) if run.peers[name] not in reducers]
    relays = [peer.name for peer in found.peers if peer.role == "relay"]
    return {
        **beside_plans([planned(plan, receivers) for plan in plans], *processes, sent),
        "who_reduces_nothing_in_p": in_parts(moved, senders, whole),
        "relays_in_np": together(moved, relays, whole * len(trainers_of(found))),
    }


def _relay_bytes(found: Setup, moved: dict[str, Traffic], rounds: int) -> dict[str, float]:
    relays = [moved[peer.name] for peer in found.peers if peer.role == "relay"]
    return {
        "up": sum(each.up.bytes for each in relays) / rounds,
        "down": sum(each.down.bytes for each in relays) / rounds,
    }


def link_errors(
    known: Mapping[Direction, Capacity],
    seen_with: Mapping[Direction, set[PeerId]],
    peers: Mapping[str, PeerId],
    rates: Rates,
) -> dict[str, float]:
    """Return the relative error of each learned link rate against the calibrated rate, by peer and direction.

    The result covers measured rates, and lower bounds found on an idle link to a peer that is as fast (`seen_with`).
    `peers` are the participants, which may be fewer than the calibrated peers.
    """
    true: dict[Direction, float] = {(peer, "up"): rates.up[name] for name, peer in peers.items()}
    true |= {(peer, "down"): rates.down[name] for name, peer in peers.items()}
    errors = {}
    for direction, capacity in known.items():
        others = seen_with.get(direction, ())
        shown_by = max((true[other, "down" if direction[1] == "up" else "up"] for other in others), default=0.0)
        if not capacity.is_floor or shown_by >= AS_FAST * true[direction]:
            errors[named(direction, peers)] = capacity.bps / true[direction] - 1
    return errors


def _not_measured(known: dict[Direction, Capacity], peers: dict[str, PeerId]) -> list[str]:
    return sorted(named(direction, peers) for direction, capacity in known.items() if capacity.is_floor)


def named(direction: Direction, peers: Mapping[str, PeerId]) -> str:
    return next(name for name, peer in peers.items() if peer == direction[0]) + f" {direction[1]}"


def _measured(asked: Asked) -> list[Figures]:
    if reason := reason_against():
        return [{"setup": asked.setup.name, "left_out": reason}]
    return measure(asked)


def main(arguments: Sequence[str]) -> int:
    for asked in jobs_of(parser().parse_args(arguments)):
        publish("averaging", partial(_measured, asked))
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.averaging", description=__doc__)
    parser.add_argument("--setup", choices=sorted(SETUPS), default="homes")
    parser.add_argument("--scale", type=float, help="of all rates; default: the set-up's own")
    codecs = (*get_args(Codec), "plan")
    parser.add_argument("--codec", choices=codecs, action="append", default=[], help="fp16; may be given several times")
    parser.add_argument("--elements", type=int, help="of the vector; default: the set-up's own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--many", action="store_true", help="short units, and no probes of idle links after warm-up")
    parser.add_argument("--reserve", type=int, default=0, help="percent of uplinks that households keep")
    parser.add_argument("--sketched", action="store_true", help="reducers make sketches in every other round")
    parser.add_argument("--against", choices=RIVALS, action="append", default=[], help="may be given several times")
    sizes = parser.add_mutually_exclusive_group()
    for size in SIZES:
        sizes.add_argument(f"--{size}", dest="size", action="store_const", const=size, help="set-ups, rivals, rounds")
    return parser


def jobs_of(wanted: argparse.Namespace) -> list[Asked]:
    if wanted.size is None:
        found = sized(setup(wanted.setup, wanted.scale), wanted.elements)
        codecs = tuple(dict.fromkeys(wanted.codec or [STATED]))
        against = tuple(dict.fromkeys(wanted.against))
        return [Asked(found, codecs, wanted.rounds, against, wanted.many, wanted.reserve, wanted.sketched)]
    return [asked_for(job, wanted) for job in AVERAGING[wanted.size]]


def asked_for(job: Averaging, wanted: argparse.Namespace) -> Asked:
    """Convert an entry of the AVERAGING table to a job. If the entry gives the vector's length, the job runs many
    short rounds.
    """
    found = sized(setup(job.setup, wanted.scale), job.elements or wanted.elements)
    return Asked(found, job.codecs, job.rounds, job.against, bool(job.elements))


def sized(found: Setup, elements: int | None) -> Setup:
    return found if elements is None else copy_of(found, elements=elements)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
