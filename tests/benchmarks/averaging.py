"""Rounds of real processes over emulated home links, beside the least time that anybody could take. See README.md."""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import replace as copy_of
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_args

from msgspec import Struct
from msgspec.structs import replace

from peer_agent.protocol.bandwidth.flows import Capacity, Direction
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Record
from peer_agent.protocol.recipe import Codec, Model, Recipe
from tests.benchmarks.agents.held import error_rms, load_average, load_held
from tests.benchmarks.rig.coordinator import Coordinator, Timed
from tests.benchmarks.rig.figures import Figures, median, publish, say
from tests.benchmarks.rivals.against import Engine, compared, summary
from tests.benchmarks.rivals.costs import spent_s
from tests.benchmarks.rivals.environment import Unavailable
from tests.benchmarks.rivals.place import WARM_UP, Counted, Place, end_all
from tests.benchmarks.rivals.plans import Solve, planned_by
from tests.benchmarks.suite.sizes import AVERAGING, RIVALS, SIZES, Rival, Wire
from tests.emulation.calibration import calibrated
from tests.emulation.counters import MOST_BUSY, Traffic, cpu_busy
from tests.emulation.floor import floor_s
from tests.emulation.kernel.commands import reason_against
from tests.emulation.namespaces import emulated
from tests.emulation.network import Network
from tests.emulation.setups import SETUPS, Peer, Rates, Setup, setup

HERE = "tests.benchmarks"
SAMPLES = 4  # of each trainer in a round
UNIT_S = 2.5  # in which each computes them
STATED: Codec = "fp16"  # where nothing is said, and the most bits that the plan may use
AS_FAST = 0.95  # of it: no slower, but for what measuring leaves
SHOWN = ("rounds_s", "rounds_ok", "rounds_void", "planned_s", "cpu_s_per_gb", "sent_bytes", "cpu_busy", "is_valid")


class Asked(Struct, frozen=True, eq=False):
    """Rounds over these links, in each of these codecs, so many, and beside whom."""

    setup: Setup
    codecs: tuple[Wire, ...]
    rounds: int
    against: tuple[Rival, ...]

    @property
    def stated(self) -> Codec:
        """What rivals send, who have no plan."""
        return next((codec for codec in self.codecs if codec != "plan"), STATED)


class Way(Struct, frozen=True, eq=False):
    """How rounds are made: by which recipe, and whether trainers are agents without a model."""

    recipe: Recipe
    sample_s: float = 0.0  # in which such an agent computes a sample; 0: contributors give one unit a step
    stays: int = 0  # rounds that are made after somebody was left out of one


class Made(Struct, frozen=True, eq=False):
    """The rounds that were made: over which links, by whom, and what the kernel counted before and after them."""

    setup: Setup
    way: Way
    rates: Rates
    coordinator: Coordinator
    peers: dict[str, PeerId]  # by name
    before: Counted
    after: Counted
    rounds: int
    errors: dict[int, float]  # of the averages, by step, where trainers are agents

    @property
    def counted(self) -> dict[int, Timed]:
        """Steps that were made after those that warm up."""
        steps, last = sorted(self.coordinator.steps.items()), WARM_UP + self.rounds
        return {step: timed for step, timed in steps if WARM_UP <= step < last and timed.committed_at}

    def record(self, step: int) -> Record:
        """What was committed of a round."""
        return self.coordinator.entries[step][1]


def peer_of(number: int, peer: Peer) -> PeerId:
    """Relays after all others, so that ids tell them apart."""
    return PeerId(f"{number + (1 << 64 if peer.role == 'relay' else 1):032x}")


def ids_of(found: Setup) -> dict[str, PeerId]:
    """Of everybody, by name."""
    return {peer.name: peer_of(number, peer) for number, peer in enumerate(found.peers)}


def program_of(peer: Peer, place: tuple[str, str, str], address: str, way: Way, elements: int) -> tuple[str, ...]:
    """What runs there: whoever can be dialled listens. `place`: its folder, its id, where the coordinator is."""
    match peer.role:
        case "relay":
            return ("rig.relay", *place, address)
        case "auxiliary":
            return ("rig.relay", *place, address, "auxiliary")
    dialled = [address] if peer.reachable else []
    if way.sample_s:
        return ("agents.trainer", *place, str(way.sample_s), *dialled)
    return ("rig.contributor", *place, str(elements), str(UNIT_S), *dialled)


def way_of(found: Setup, codec: Wire) -> Way:
    """A batch to which every trainer gives one unit; with the plan's freedom a sample is one, as shares are uneven."""
    trainers = sum(peer.role == "trainer" for peer in found.peers)
    stated = Recipe(
        model=Model(context=257),
        target_batch=SAMPLES * trainers,
        micro_batch=SAMPLES,
        minimum_trainers=trainers,
        snapshot_every=100_000,
    )
    if codec != "plan":
        return Way(replace(stated, codec_up=codec, codec_down=codec))
    free = replace(stated, micro_batch=1, codec_up=STATED, codec_down=STATED, contributors="fast", codecs="plan")
    return Way(free, UNIT_S / SAMPLES)


def measure(asked: Asked) -> list[Figures]:
    """Calibrate, warm up, and make so many rounds in each codec; then the rivals, one after another, over the same
    links."""
    with emulated(asked.setup) as network, tempfile.TemporaryDirectory() as folder:
        place = Place(network, Path(folder), calibrated(network), asked.stated, asked.rounds)
        lines = [ours(place, asked.setup, codec) for codec in asked.codecs]
        if asked.against:
            against = compared(place, asked.against, lines[0], engine_of(place), ids_of(asked.setup))
            for line in lines:
                line["against"] = against | summary(against["details"], line.get("round_s_median"))
        return lines


def ours(place: Place, setup: Setup, codec: Wire) -> Figures:
    """Our rounds, or why there are none: the others are worth knowing all the same."""
    try:
        return figures_of(rounds_of(place, setup, way_of(setup, codec)))
    except (TimeoutError, Unavailable) as trouble:
        reason = str(trouble) or f"no {place.rounds} rounds in {place.patience_s:.0f} s"
        return {"setup": setup.name, "codec": codec, "left_out": reason}


def engine_of(place: Place) -> Engine:
    """Our own engine with another plan, as a rival."""

    def engine(setup: Setup, solve: Solve) -> Figures:
        figures = figures_of(rounds_of(place, setup, way_of(setup, place.codec), solve))
        shown = {name: value for name, value in figures.items() if name in SHOWN}
        peak = max(figures["peak_mb"][peer.name] for peer in setup.peers if peer.role == "trainer")
        partial_rounds = place.rounds - figures["rounds_ok"]
        return {"round_s": figures["round_s_median"], "rounds_partial": partial_rounds, "peak_mb": peak} | shown

    return engine


def rounds_of(place: Place, setup: Setup, way: Way, solve: Solve | None = None) -> Made:
    """Rounds of our engine in those namespaces, with its own plan or another. Nothing of it is left."""
    with planned_by(solve), tempfile.TemporaryDirectory(dir=place.folder) as folder:
        try:
            return asyncio.run(_rounds(place, setup, way, Path(folder)))
        finally:
            end_all(place.network)


async def _rounds(place: Place, setup: Setup, way: Way, folder: Path) -> Made:
    network, rounds = place.network, place.rounds
    coordinator = Coordinator(way.recipe, setup.elements)
    control = await coordinator.listen(network.host_address)
    peers = _start(network, setup, way, folder, control)
    watching = asyncio.create_task(_end_of_any(network, setup))
    try:
        async with asyncio.timeout(place.patience_s):
            await _unless(watching, coordinator.reach(WARM_UP))
            before, began = Counted.now(network), time.monotonic()
            await _unless(watching, coordinator.reach(WARM_UP + rounds))
            after = Counted.now(network)
            say(f"{rounds} rounds in {time.monotonic() - began:.1f} s")
            await _unless(watching, coordinator.reach(last_step(coordinator, trainers_of(setup), way, rounds)))
        return _made(Made(setup, way, place.rates, coordinator, peers, before, after, rounds, {}), folder)
    except TimeoutError:
        say(f"at step {coordinator.state.step}: " + "; ".join(coordinator.notes[-20:]))
        raise
    finally:
        watching.cancel()
        tell_steps(coordinator)
        await coordinator.close()


def last_step(coordinator: Coordinator, trainers: set[PeerId], way: Way, rounds: int) -> int:
    """Until which rounds are made: longer where an update was made without somebody, to see what becomes of it."""
    last = WARM_UP + rounds
    short = [step for step in range(WARM_UP, last) if way.stays and absent_from(coordinator, trainers, step)]
    return max((step + 1 + way.stays for step in short), default=last)


def trainers_of(found: Setup) -> set[PeerId]:
    """All of them."""
    ids = ids_of(found)
    return {ids[peer.name] for peer in found.peers if peer.role == "trainer"}


def absent_from(coordinator: Coordinator, trainers: set[PeerId], step: int) -> set[PeerId]:
    """Trainers that are not in what was committed of a round, whatever the reason."""
    return trainers - {part.peer for part in coordinator.entries[step][1].contributions}


def _made(made: Made, folder: Path) -> Made:
    """With what is read from the folders of its agents."""
    made.errors.update(_errors_of(made, folder) if made.way.sample_s else {})
    return made


def _errors_of(made: Made, folder: Path) -> dict[int, float]:
    """Of the averages of each counted round that somebody has made an update of by now."""
    names = {peer: name for name, peer in made.peers.items()}
    errors = {}
    for step in made.counted:
        record = made.record(step)
        homes = {part.peer: folder / names[part.peer] for part in record.contributions}
        averages = [found for home in homes.values() if (found := load_average(home, step)) is not None]
        if averages:
            errors[step] = error_rms(record, {peer: load_held(home, step) for peer, home in homes.items()}, averages[0])
    return errors


def tell_steps(coordinator: Coordinator) -> None:
    """What became of each step, for whoever looks on."""
    for step, timed in sorted(coordinator.steps.items()):
        said = f"{timed.slots} slots, {len(timed.held_at)} hold it, exact {timed.exact}"
        say(f"step {step}: took {timed.round_s:.2f} s, planned {timed.planned_s:.2f}, {said}; {timed.told}")


async def _end_of_any(network: Network, setup: Setup) -> NoReturn:
    """Wait until a process of somebody's has ended, which none does by itself. Raises Unavailable."""
    while True:
        await asyncio.sleep(1.0)
        gone = [peer.name for peer in setup.peers if network[peer.name].started[-1].poll() is not None]
        if gone:
            raise Unavailable(f"ended too early: {', '.join(gone)}")


async def _unless(watching: "asyncio.Task[NoReturn]", work: Coroutine[Any, Any, None]) -> None:
    """The work, or the error that comes before its end."""
    working = asyncio.create_task(work)
    try:
        await asyncio.wait({watching, working}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            watching.result()
        working.result()
    finally:
        working.cancel()


def _start(network: Network, found: Setup, way: Way, folder: Path, control: str) -> dict[str, PeerId]:
    """Every peer of a set-up as a process in its place; their ids by name."""
    peers = ids_of(found)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for peer in sorted(found.peers, key=lambda peer: (peer.role != "relay", peer.name != found.keeper)):
        place = (str(folder / peer.name), peers[peer.name], control)
        program = program_of(peer, place, network[peer.name].address, way, found.elements)
        network[peer.name].python("-m", f"{HERE}.{program[0]}", *program[1:], env=environment, stdin=subprocess.PIPE)
    return peers


def figures_of(run: Made) -> Figures:
    """What is published of them."""
    found, codec, coordinator, peers = run.setup, run.way.recipe.codec_up, run.coordinator, run.peers
    wire, steps = wire_bytes(codec, found.elements), list(run.counted.values())
    round_s, floor = median(timed.round_s for timed in steps), floor_s(found, run.rates, wire, wire)
    moved = {name: run.after.traffic[name] - run.before.traffic[name] for name in peers}
    busy = cpu_busy(run.before.busy, run.after.busy)
    sent = sum(each.up.bytes for each in moved.values())
    return {
        "setup": found.name,
        "scale": found.scale,
        "peers": len(found.peers),
        "parameters": found.elements,
        "codec": codec,
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
        "cpu_s_per_gb": spent_s(run.before.costs, run.after.costs) / (sent / 1e9),
        "cpu_s": {name: spent.cpu_s - run.before.costs[name].cpu_s for name, spent in run.after.costs.items()},
        "peak_mb": {name: spent.peak_mb for name, spent in run.after.costs.items()},
        "sent_bytes": sent / len(steps),
        "rounds_ok": sum(_is_ok(run, step) for step in run.counted),
        "rounds_void": coordinator.state.void_rounds,
        "per_peer_up_bytes": {name: each.up.bytes / len(steps) for name, each in moved.items()},
        "per_peer_down_bytes": {name: each.down.bytes / len(steps) for name, each in moved.items()},
        "relay_bytes": _relay_bytes(found, moved, len(steps)),
        "learned_bandwidth_error": _errors(coordinator, peers, run.rates),
        "not_measured": _not_measured(coordinator.state.capacities, peers),
        "notes": [note for note in coordinator.notes if not note.startswith("step")][-8:],
        **(freedom_of(run) if run.way.recipe.codecs == "plan" else {}),
    }


def freedom_of(run: Made) -> Figures:
    """Where the plan chose codecs and contributors: floors are of what it chose, and of the rounds as they were."""
    names = {peer: name for name, peer in run.peers.items()}
    steps = list(run.counted.values())
    floors = [_floor_s(run, timed, run.rates) for timed in steps]
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
    """Of a round of these contributors in these codecs."""
    names, elements = {peer: name for name, peer in run.peers.items()}, run.setup.elements
    up = {names[peer]: wire_bytes(codec, elements) for peer, codec in timed.codecs.items()}
    return floor_s(run.setup, rates, up, wire_bytes(timed.codec_down, elements))


def wire_bytes(codec: Codec, elements: int) -> int:
    """Of an encoded vector, chunk by chunk."""
    grid = grid_of(elements)
    return sum(encoded_size(codec, grid.length(chunk)) for chunk in grid)


def _is_ok(run: Made, step: int) -> bool:
    """Everybody was in it everywhere, and everybody has it; where the plan leaves somebody out, everybody else."""
    timed, record = run.coordinator.steps[step], run.record(step)
    if run.way.recipe.contributors == "all" and not run.way.recipe.staleness:
        trainers = sum(peer.role == "trainer" for peer in run.setup.peers)
        return timed.exact and timed.slots == trainers == len(timed.held_at)
    return record.is_whole and timed.is_held and {part.peer for part in record.contributions} == timed.asked


def _relay_bytes(found: Setup, moved: dict[str, Traffic], rounds: int) -> dict[str, float]:
    relays = [moved[peer.name] for peer in found.peers if peer.role == "relay"]
    return {
        "up": sum(each.up.bytes for each in relays) / rounds,
        "down": sum(each.down.bytes for each in relays) / rounds,
    }


def _errors(coordinator: Coordinator, peers: dict[str, PeerId], rates: Rates) -> dict[str, float]:
    """What was learned to the end, beside what was calibrated: relative error by peer and direction.

    Of what is known for sure, and of the least that is known where an idle link to somebody as fast showed it.
    """
    true: dict[Direction, float] = {(peers[name], "up"): bps for name, bps in rates.up.items()}
    true |= {(peers[name], "down"): bps for name, bps in rates.down.items()}
    errors = {}
    for direction, capacity in coordinator.state.capacities.items():
        other = coordinator.shown_by.get(direction)
        shown_by = true[other, "down" if direction[1] == "up" else "up"] if other is not None else 0.0
        if not capacity.is_floor or shown_by >= AS_FAST * true[direction]:
            errors[named(direction, peers)] = capacity.bps / true[direction] - 1
    return errors


def _not_measured(known: dict[Direction, Capacity], peers: dict[str, PeerId]) -> list[str]:
    """Directions of which only the least is known."""
    return sorted(named(direction, peers) for direction, capacity in known.items() if capacity.is_floor)


def named(direction: Direction, peers: dict[str, PeerId]) -> str:
    """`home-1 up`."""
    return next(name for name, peer in peers.items() if peer == direction[0]) + f" {direction[1]}"


def _measured(asked: Asked) -> list[Figures]:
    if reason := reason_against():
        return [{"setup": asked.setup.name, "left_out": reason}]
    return measure(asked)


def main(arguments: Sequence[str]) -> int:
    """Print the figures, a line for each set-up."""
    for asked in jobs_of(parser().parse_args(arguments)):
        publish("averaging", partial(_measured, asked))
    return 0


def parser() -> argparse.ArgumentParser:
    """What may be asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.averaging", description=__doc__)
    parser.add_argument("--setup", choices=sorted(SETUPS), default="homes")
    parser.add_argument("--scale", type=float, help="of all rates; default: the set-up's own")
    codecs = (*get_args(Codec), "plan")
    parser.add_argument("--codec", choices=codecs, action="append", default=[], help="fp16; may be given several times")
    parser.add_argument("--elements", type=int, help="of the vector; default: the set-up's own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", choices=RIVALS, action="append", default=[], help="may be given several times")
    sizes = parser.add_mutually_exclusive_group()
    for size in SIZES:
        sizes.add_argument(f"--{size}", dest="size", action="store_const", const=size, help="set-ups, rivals, rounds")
    return parser


def jobs_of(wanted: argparse.Namespace) -> list[Asked]:
    """One set-up as asked for, or all of a size."""
    if wanted.size is None:
        found = setup(wanted.setup, wanted.scale)
        found = sized(found, wanted.elements)
        codecs = tuple(dict.fromkeys(wanted.codec or [STATED]))
        return [Asked(found, codecs, wanted.rounds, tuple(dict.fromkeys(wanted.against)))]
    return [
        Asked(sized(setup(job.setup, wanted.scale), wanted.elements), job.codecs, job.rounds, job.against)
        for job in AVERAGING[wanted.size]
    ]


def sized(found: Setup, elements: int | None) -> Setup:
    """The same with another vector, if so."""
    return found if elements is None else copy_of(found, elements=elements)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
