"""Rounds of a rival's processes in the namespaces of a set-up, and their results.

Every wait has a timeout. After a timeout all processes of the rival are killed; earlier measurements still count."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.benchmarks.rig.figures import Figures, median, say
from tests.benchmarks.rivals.costs import Cost, costs, spent_s
from tests.benchmarks.rivals.environment import Unavailable, clean_environment
from tests.emulation.counters import MOST_BUSY, Traffic, cpu_busy, processor_time, traffic
from tests.emulation.kernel import remains
from tests.emulation.network import ROOT, Network, end, hear, tell

START_S = 300.0  # seconds: sixteen processes load torch on two cores
GB, SETTINGS = 1e9, {"GLOO_SOCKET_IFNAME": "data"}  # bytes in a GB; gloo uses the namespace's shaped link, named data
LAST_WORDS = 400
Process = subprocess.Popen[str]
Said = dict[str, Any]


class Seat(Struct, frozen=True):
    """A peer of a rival: its namespace, its command and arguments, and whether it contributes values."""

    name: str
    command: tuple[str, ...]
    asked: Said
    contributes: bool = True


class Round(Struct, frozen=True):
    told_at: float
    said: dict[str, Said]
    right: dict[str, float]  # share of each contributor's values that equal the true mean
    sent_bytes: int = 0
    control_bytes: int = 0
    cpu_s: float = 0.0
    busy: float = 0.0

    @property
    def is_whole(self) -> bool:
        """True if all peers were in one group and reported success."""
        return all(said.get("group") == len(self.said) for said in self.said.values())

    @property
    def is_partial(self) -> bool:
        """True if a peer lacks part of the true mean, whatever the peer reports."""
        return any(part < 1.0 for part in self.right.values())

    @property
    def round_s(self) -> float:
        """Seconds from the first peer's start until the last peer has everything."""
        return float(self._ended() - min(each["began"] for each in self.said.values()))

    @property
    def step_s(self) -> float:
        """Seconds from the command until the last peer has everything."""
        return float(self._ended() - self.told_at)

    def _ended(self) -> float:
        return float(max(self.said[name]["ended"] for name in self.right))


def figures_of(rounds: Sequence[Round], peak_mb: float) -> Figures:
    """Return the figures of the rounds. Times cover only rounds with all peers in one group."""
    whole = [each for each in rounds if each.is_whole]
    sent = sum(each.sent_bytes for each in rounds)
    busy = max((each.busy for each in rounds), default=0.0)
    return {
        "round_s": median(each.round_s for each in whole) if whole else None,
        "step_s": median(each.step_s for each in whole) if whole else None,
        "rounds_s": [each.round_s for each in whole],
        "rounds": len(rounds),
        "rounds_failed": len(rounds) - len(whole),
        "rounds_partial": sum(each.is_partial for each in whole),
        "least_right": min((part for each in whole for part in each.right.values()), default=None),
        "cpu_s_per_gb": sum(each.cpu_s for each in rounds) / (sent / GB) if sent else None,
        "peak_mb": peak_mb,
        "sent_bytes": sent / len(rounds) if rounds else None,
        "control_bytes": sum(each.control_bytes for each in rounds),
        "cpu_busy": busy,
        "is_valid": busy <= MOST_BUSY,
    }


def measured(network: Network, seats: Sequence[Seat], folder: Path, rounds: tuple[int, int], most_s: float) -> Figures:
    """Warm up, then measure rounds of at most `most_s` seconds each. End all processes afterwards.

    Raise Unavailable if the rival does not start or no round ends."""
    made: list[Round] = []
    group = Group(network, folder)
    warm_up, counted = rounds
    trouble = ""
    try:
        group.start(seats)
        for number in range(warm_up + counted):
            made.append(group.round(number, most_s))
            say(f"round {number}: {made[-1].step_s:.1f} s" if made[-1].is_whole else f"round {number} failed")
    except (RuntimeError, OSError, ValueError) as error:
        trouble = f"{error}; {group.last_words()}"
    finally:
        peak = group.peak_mb()
        group.end()
    if not (figures := figures_of(made[warm_up:], peak))["rounds"]:
        raise Unavailable(trouble)
    return figures | ({"trouble": trouble} if trouble else {})


class Group:
    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.contributors: list[str] = []
        self.processes: dict[str, Process] = {}

    def start(self, seats: Sequence[Seat]) -> None:
        """Start the processes. If the others dial the first one, start it alone and give them its addresses. Raise
        RuntimeError if a process does not start.
        """
        self.contributors = [seat.name for seat in seats if seat.contributes]
        first, *others = seats
        with self._within(START_S):
            if first.asked.get("is_dialled"):
                self._seat(first)
                known = json.loads(hear(self.processes[first.name]))
                self._hear([self._seat(seat, initial=known["addresses"]) for seat in others])
            else:
                self._hear([self._seat(seat) for seat in seats])

    def _seat(self, seat: Seat, **more: Any) -> Process:
        with (self.folder / f"{seat.name}.log").open("w") as log:
            self.processes[seat.name] = process = self.network[seat.name].start(
                *seat.command,
                json.dumps(seat.asked | more),
                cwd=ROOT,
                env=clean_environment() | SETTINGS,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        return process

    def round(self, number: int, most_s: float) -> Round:
        """Run one round and check the result. The time to write and check the values is not counted."""
        with self._within(START_S):
            self._ask(f"fill {number}")
        before, busy, told_at = self._counters(), processor_time(), time.monotonic()
        with self._within(most_s):
            said = self._ask("average")
        busy_part, after = cpu_busy(busy, processor_time()), self._counters()
        with self._within(START_S):
            right = self._ask(f"check {number}")
        up, control = moved(before[0].values(), after[0].values())
        return Round(
            told_at=told_at,
            said=said,
            right={name: right[name]["right"] for name in self.contributors},
            sent_bytes=up,
            control_bytes=control,
            cpu_s=spent_s(before[1], after[1]),
            busy=busy_part,
        )

    def _counters(self) -> tuple[dict[str, Traffic], dict[str, Cost]]:
        return traffic(self.network), costs(self.network)

    def _ask(self, line: str) -> dict[str, Said]:
        for process in self.processes.values():
            tell(process, line)
        return dict(zip(self.processes, self._hear(self.processes.values()), strict=True))

    def _hear(self, processes: Iterable[Process]) -> list[Said]:
        return [json.loads(hear(process)) for process in processes]

    @contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """Kill all processes by their ids if the block takes too long, so that nothing is left waiting on them.

        Their child processes are killed too, because they inherit the pipe on which the benchmark waits.
        """
        clock = threading.Timer(seconds, self._give_up)
        clock.daemon = True
        clock.start()
        try:
            yield
        finally:
            clock.cancel()

    def peak_mb(self) -> float:
        spent = costs(self.network)
        return max((spent[name].peak_mb for name in self.contributors), default=0.0)

    def last_words(self) -> str:
        logs = [path.read_text(errors="replace").strip() for path in sorted(self.folder.glob("*.log"))]
        return next((log[-LAST_WORDS:] for log in logs if log), "")

    def end(self) -> None:
        end(self.processes.values())
        self._end_children()

    def _give_up(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:  # not yet reaped, so no other process can have its id
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        self._end_children()

    def _end_children(self) -> None:
        remains.end_inside(node.namespace for node in self.network.nodes.values())


def moved(before: Iterable[Traffic], after: Iterable[Traffic]) -> tuple[int, int]:
    """Return how many bytes all peers sent between the two counts: over their shaped links, and over the control
    links.
    """
    grown = [late - early for early, late in zip(before, after, strict=True)]
    return sum(each.up.bytes for each in grown), sum(each.control_up.bytes + each.control_down.bytes for each in grown)
