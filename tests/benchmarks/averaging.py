"""Rounds of real processes over emulated home links, beside the least time that anybody could take. See README.md."""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from msgspec import Struct

from peer_agent.protocol.bandwidth.learning import Capacity, Direction
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.recipe import Codec, Model, Recipe
from tests.benchmarks.rig.coordinator import Coordinator, Timed
from tests.benchmarks.rig.figures import Figures, median, publish, say
from tests.benchmarks.rig.processes import cpu_s, peak_mb
from tests.emulation.calibration import calibrated
from tests.emulation.counters import MOST_BUSY, Traffic, cpu_busy, processor_time, traffic
from tests.emulation.floor import floor_s
from tests.emulation.kernel.commands import reason_against
from tests.emulation.namespaces import emulated
from tests.emulation.network import Network
from tests.emulation.setups import SETUPS, Peer, Rates, Setup, setup

RIG = "tests.benchmarks.rig"
WARM_UP = 3  # rounds
SAMPLES = 4  # of each trainer in a round
UNIT_S = 2.5  # in which each computes them
PATIENCE_S = 600.0
AS_FAST = 0.95  # of it: no slower, but for what measuring leaves


class Made(Struct, frozen=True, eq=False):
    """The rounds that were made: over which links, by whom, and what the kernel counted before and after them."""

    setup: Setup
    codec: Codec
    rates: Rates
    coordinator: Coordinator
    peers: dict[str, PeerId]  # by name
    before: dict[str, Traffic]
    after: dict[str, Traffic]
    cpu_busy: float
    cpu_s: dict[str, float]  # that each process used meanwhile
    peak_mb: dict[str, float]  # memory since it began


def peer_of(number: int, peer: Peer) -> PeerId:
    """Relays after all others, so that ids tell them apart."""
    return PeerId(f"{number + (1 << 64 if peer.role == 'relay' else 1):032x}")


def program_of(peer: Peer, place: tuple[str, str, str], address: str, elements: int) -> tuple[str, ...]:
    """What runs there: whoever can be dialled listens. `place`: its folder, its id, where the coordinator is."""
    match peer.role:
        case "relay":
            return ("relay", *place, address)
        case "auxiliary":
            return ("relay", *place, address, "auxiliary")
    return ("contributor", *place, str(elements), str(UNIT_S), *([address] if peer.reachable else []))


def recipe_of(found: Setup, codec: Codec) -> Recipe:
    """A batch to which every trainer gives one unit."""
    trainers = sum(peer.role == "trainer" for peer in found.peers)
    return Recipe(
        model=Model(context=257),
        target_batch=SAMPLES * trainers,
        micro_batch=SAMPLES,
        minimum_trainers=trainers,
        snapshot_every=100_000,
        codec_up=codec,
        codec_down=codec,
    )


async def measure(found: Setup, codec: Codec, rounds: int) -> Figures:
    """Calibrate, warm up, and make so many rounds."""
    with emulated(found) as network, tempfile.TemporaryDirectory() as folder:
        rates = await asyncio.to_thread(calibrated, network)
        coordinator = Coordinator(recipe_of(found, codec), found.elements)
        control = await coordinator.listen(network.host_address)
        peers, pids = _start(network, Path(folder), control)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await coordinator.reach(WARM_UP)
                before, began = traffic(network), time.monotonic()
                busy, used = processor_time(), {name: cpu_s(pid) for name, pid in pids.items()}
                await coordinator.reach(WARM_UP + rounds)
                after, busy_part = traffic(network), cpu_busy(busy, processor_time())
            say(f"{rounds} rounds in {time.monotonic() - began:.1f} s")
            costs = {name: cpu_s(pid) - used[name] for name, pid in pids.items()}
            peaks = {name: peak_mb(pid) for name, pid in pids.items()}
            return _figures(Made(found, codec, rates, coordinator, peers, before, after, busy_part, costs, peaks))
        except TimeoutError:
            say(f"at step {coordinator.state.step}: " + "; ".join(coordinator.notes[-20:]))
            raise
        finally:
            for step, timed in sorted(coordinator.steps.items()):
                said = f"{timed.slots} slots, {len(timed.held_at)} hold it, exact {timed.exact}"
                say(f"step {step}: took {timed.round_s:.2f} s, planned {timed.planned_s:.2f}, {said}; {timed.told}")
            await coordinator.close()


def _start(network: Network, folder: Path, control: str) -> tuple[dict[str, PeerId], dict[str, int]]:
    """Every peer as a process in its place; their ids, and those of their processes, by name."""
    pids = {}
    found = network.setup
    peers = {peer.name: peer_of(number, peer) for number, peer in enumerate(found.peers)}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for peer in sorted(found.peers, key=lambda peer: (peer.role != "relay", peer.name != found.keeper)):
        place = (str(folder / peer.name), peers[peer.name], control)
        program = program_of(peer, place, network[peer.name].address, found.elements)
        module = f"{RIG}.{program[0]}"
        process = network[peer.name].python("-m", module, *program[1:], env=environment, stdin=subprocess.PIPE)
        pids[peer.name] = process.pid
    return peers, pids


def _figures(run: Made) -> Figures:
    found, codec, coordinator, peers = run.setup, run.codec, run.coordinator, run.peers
    grid = grid_of(found.elements)
    wire = sum(encoded_size(codec, grid.length(chunk)) for chunk in grid)
    steps = [timed for step, timed in sorted(coordinator.steps.items()) if step >= WARM_UP and timed.committed_at]
    round_s, floor = median(timed.round_s for timed in steps), floor_s(found, run.rates, wire, wire)
    moved = {name: run.after[name] - run.before[name] for name in peers}
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
        "cpu_busy": run.cpu_busy,
        "cpu_s_per_gb": sum(run.cpu_s.values()) / (sum(each.up.bytes for each in moved.values()) / 1e9),
        "cpu_s": run.cpu_s,
        "peak_mb": run.peak_mb,
        "is_valid": run.cpu_busy <= MOST_BUSY,
        "rounds_ok": sum(_is_ok(timed, found) for timed in steps),
        "rounds_void": coordinator.state.void_rounds,
        "per_peer_up_bytes": {name: each.up.bytes / len(steps) for name, each in moved.items()},
        "per_peer_down_bytes": {name: each.down.bytes / len(steps) for name, each in moved.items()},
        "relay_bytes": _relay_bytes(found, moved, len(steps)),
        "learned_bandwidth_error": _errors(coordinator, peers, run.rates),
        "not_measured": _not_measured(coordinator.state.capacities, peers),
        "notes": [note for note in coordinator.notes if not note.startswith("step")][-8:],
    }


def _is_ok(timed: Timed, found: Setup) -> bool:
    """Everybody was in it everywhere, and everybody has it."""
    trainers = sum(peer.role == "trainer" for peer in found.peers)
    return timed.exact and timed.slots == trainers == len(timed.held_at)


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


def _measured(found: Setup, codec: Codec, rounds: int) -> Figures:
    if reason := reason_against():
        return {"left_out": reason}
    return asyncio.run(measure(found, codec, rounds))


def main(arguments: Sequence[str]) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.averaging", description=__doc__)
    parser.add_argument("--setup", choices=sorted(SETUPS), default="homes")
    parser.add_argument("--scale", type=float, help="of all rates; default: the set-up's own")
    parser.add_argument("--codec", choices=get_args(Codec), default="fp16")
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args(arguments)
    found = setup(wanted.setup, wanted.scale)
    return publish("averaging", lambda: _measured(found, wanted.codec, wanted.rounds))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
