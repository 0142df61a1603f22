"""All peers of a set-up as processes in their namespaces, with the shipped coordinator in this process."""

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Coroutine
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.recipe import Codec, Recipe
from peer_agent.recipes.causal_lm import CausalLM, Model
from tests.benchmarks.agents.trainer import Pace
from tests.benchmarks.rig.coordinator import Coordinator
from tests.benchmarks.rig.figures import say
from tests.benchmarks.rig.tally import Counts, counted
from tests.benchmarks.rivals.environment import Unavailable
from tests.benchmarks.rivals.place import Place, end_all
from tests.benchmarks.suite.sizes import Wire
from tests.emulation.network import Network
from tests.emulation.setups import Peer, Setup

HERE = "tests.benchmarks"
SAMPLES = 4  # samples of each trainer in a round
UNIT_S = 2.5  # seconds in which a trainer computes the samples of a round
EARLY_S = 20.0  # seconds added during the warm-up, so that idle links can be probed
FURTHER = 6.0  # a trainer's second unit comes after this many times UNIT_S, when all trainers have given their first
STATED: Codec = "fp16"  # the default codec, and the most precise one that the plan may use


class Way(Struct, frozen=True, eq=False):
    recipe: Recipe
    pace: Pace
    reserve: int = 0  # percent of a trainer's uplink that its household keeps
    stays: int = 0  # rounds made after a round that left a trainer out
    sketched: bool = False  # True if reducers make sketches of the gradients in every other round


class Swarm(Struct, frozen=True, eq=False):
    network: Network
    setup: Setup
    folder: Path
    coordinator: Coordinator
    peers: dict[str, PeerId]  # by the peer's name in the set-up
    gone: set[str]  # peers that the benchmark ended on purpose

    def counted(self) -> dict[str, Counts]:
        return {name: counted(self.folder / name) for name in self.peers}

    def named(self, peer: PeerId) -> str:
        return next(name for name, each in self.peers.items() if each == peer)

    def signal(self, name: str, number: signal.Signals) -> None:
        self.network[name].started[-1].send_signal(number)


@asynccontextmanager
async def swarm(place: Place, setup: Setup, way: Way) -> AsyncIterator[Swarm]:
    network = place.network
    coordinator = Coordinator(way.recipe, setup.elements)
    control = await coordinator.listen(network.host_address)
    with tempfile.TemporaryDirectory(dir=place.folder) as folder:
        peers = start(network, setup, Path(folder), control, way)
        try:
            yield Swarm(network, setup, Path(folder), coordinator, peers, set())
        finally:
            tell_steps(coordinator)
            say("last of all: " + "; ".join(coordinator.notes[-20:]))
            await coordinator.close()
            end_all(network)


def peer_of(number: int, peer: Peer) -> PeerId:
    """Return the id of a peer. Relays have the highest ids, which makes them recognizable."""
    return PeerId(f"{number + (1 << 64 if peer.role == 'relay' else 1):032x}")


def ids_of(found: Setup) -> dict[str, PeerId]:
    return {peer.name: peer_of(number, peer) for number, peer in enumerate(found.peers)}


def program_of(peer: Peer, place: tuple[str, str, str], address: str, way: Way) -> tuple[str, ...]:
    """Return the command that starts a peer. Reachable peers listen. `place`: the peer's folder, its id, the
    coordinator's address.
    """
    match peer.role:
        case "relay":
            return ("rig.relay", *place, address)
        case "auxiliary":
            return ("rig.relay", *place, address, "auxiliary")
    pace = ("--sample-s", way.pace.sample_s, "--early-s", way.pace.early_s, "--late-s", way.pace.late_s)
    told = (*pace, "--reserve", way.reserve, *(("--address", address) if peer.reachable else ()))
    return ("agents.trainer", *place, "--torch", *map(str, told))


def trainers_of(found: Setup) -> list[str]:
    return [peer.name for peer in found.peers if peer.role == "trainer"]


def way_of(found: Setup, codec: Wire, unit_s: float = UNIT_S, early_s: float = 0.0, reserve: int = 0) -> Way:
    """Return settings with a batch of one unit per trainer. `early_s`: extra seconds per unit in the first steps.

    If the plan chooses codecs, a unit is one sample, because the trainers' shares are uneven."""
    trainers, stated = len(trainers_of(found)), STATED if codec == "plan" else codec
    recipe = CausalLM(
        model=Model(context=257),
        target_batch=SAMPLES * trainers,
        micro_batch=SAMPLES,
        minimum_trainers=trainers,
        snapshot_every=100_000,
        codec_up=stated,
        codec_down=stated,
    )
    if codec != "plan":
        return Way(recipe, Pace(unit_s / SAMPLES, early_s / SAMPLES, (FURTHER - 1) * unit_s + early_s), reserve)
    freedom = replace(recipe, micro_batch=1, contributors="fast", codecs="plan")
    return Way(freedom, Pace(unit_s / SAMPLES, early_s / SAMPLES), reserve)


def start(network: Network, found: Setup, folder: Path, control: str, way: Way) -> dict[str, PeerId]:
    """Start every peer of a set-up as a process in its namespace. Return the ids of the peers by name."""
    peers = ids_of(found)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for peer in sorted(found.peers, key=lambda peer: (peer.role != "relay", peer.name != found.keeper)):
        place = (str(folder / peer.name), peers[peer.name], control)
        program = program_of(peer, place, network[peer.name].address, way)
        network[peer.name].python("-m", f"{HERE}.{program[0]}", *program[1:], env=environment, stdin=subprocess.PIPE)
    return peers


def tell_steps(coordinator: Coordinator) -> None:
    for step, timed in sorted(coordinator.steps.items()):
        said = f"{timed.slots} slots, {len(timed.held_at)} hold it, exact {timed.exact}"
        said += f", {len(timed.dropped)} dropped" if timed.dropped else ""
        said += f", {timed.attempts} attempts" if timed.attempts > 1 else ""
        say(f"step {step}: took {timed.round_s:.2f} s, planned {timed.planned_s:.2f}, {said}; {timed.told}")


async def end_of_any(network: Network, setup: Setup, gone: AbstractSet[str] = frozenset()) -> NoReturn:
    """Wait until a process ends unexpectedly, then raise Unavailable. Ignore peers in `gone`, which the benchmark
    ended.
    """
    while True:
        await asyncio.sleep(1.0)
        names = [peer.name for peer in setup.peers if peer.name not in gone]
        if ended := [name for name in names if network[name].started[-1].poll() is not None]:
            raise Unavailable(f"ended too early: {', '.join(ended)}")


async def unless(watching: "asyncio.Task[NoReturn]", work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end. If `watching` fails first, raise its error."""
    working = asyncio.create_task(work)
    try:
        await asyncio.wait({watching, working}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            watching.result()
        working.result()
    finally:
        working.cancel()
