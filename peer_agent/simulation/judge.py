"""Judges a simulated run by messages, database rows and the peers' true state.

It relies on the coordinator's own state only for returned and lost leases.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Literal

from msgspec import Struct

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Included, Record, Unit
from peer_agent.protocol.messages import Plan
from peer_agent.simulation.database import LedgerRow
from peer_agent.simulation.site import Host, Surroundings
from peer_agent.simulation.trainer import Trainer
from peer_agent.simulation.world import World

Attempt = tuple[int, int, int]  # step, fence, attempt


class Planned(Struct):
    """A plan with its offers. `included`: for each span, the slots that its reducer reported as averaged."""

    plan: Plan
    offers: dict[PeerId, m.Offer]
    included: dict[int, tuple[Included, ...]]


class Judge:
    """Counts faults in one simulation. `cpu` returns this process's CPU seconds."""

    def __init__(self, cpu: Callable[[], float] = lambda: 0.0) -> None:
        self.cpu, self._began = cpu, 0.0
        self.advance_cpu_s = 0.0
        self.events = 0
        self.rounds: set[tuple[int, int]] = set()  # (fence, round number) of each cut
        self.leased: set[Unit] = set()  # units that were leased but are in no update
        self.reports: dict[PeerId, m.Report] = {}  # each trainer's last report
        self.uncredited_samples = self.doubled_samples = 0
        self.faults: list[str] = []  # one sentence per fault found
        self._offers: dict[bytes, m.Offer] = {}  # offers since the last commit, by root
        self._planned: dict[Attempt, Planned] = {}  # plans since the last commit
        self._ratio: dict[PeerId, Fraction] = {}  # samples per loss token in each trainer's last offer with units
        # By (epoch, shard): 1 for each position that an update contains
        self._used: dict[tuple[int, int], bytearray] = {}
        self._rows = 0  # how many ledger rows have been checked

    # --- observer

    def before(self, host: Host, event: e.Event, now: float) -> None:
        """Record a peer's message, and start measuring CPU time."""
        del host, now
        if isinstance(event, e.Received):
            self._said(event)
        self._began = self.cpu()

    def after(self, host: Host, event: e.Event, commands: Sequence[e.Command], now: float) -> None:
        """Stop measuring CPU time, and record the coordinator's messages."""
        self.advance_cpu_s += self.cpu() - self._began
        del event, now
        self.events += 1
        for command in commands:
            if isinstance(command, e.Announce):
                self._announced(command.plan)
            elif isinstance(command, e.Send) and isinstance(command.message, m.Lease):
                self.leased.update(command.message.units)
            elif isinstance(command, e.Send) and isinstance(command.message, m.Cut):
                self.rounds.add((host.state.fence, command.message.round))

    def persisted(self, host: Host, command: e.Persist, outcome: Literal["committed", "stale", "failed"]) -> None:
        """Check that a committed update credited each contributor exactly once."""
        database = host.world.database
        if outcome != "committed" or not database.records or database.records[-1].index != command.record.index:
            return
        rows, self._rows = database.ledger[self._rows :], len(database.ledger)
        self._commit(host.world, command.record, rows)

    # --- messages

    def _said(self, event: e.Received) -> None:
        match event.message:
            case m.Offer() as offer:
                self._offers[offer.root] = offer
            case m.Report() as report:
                self.reports[event.peer] = report
            case m.SpanDone() as done:
                planned = self._planned.get((done.step, done.fence, done.attempt))
                spans = planned.plan.spans if planned is not None else ()
                for span in spans:
                    if planned is not None and (span.span, span.reducer) == (done.span, event.peer):
                        planned.included.setdefault(span.span, done.included)

    def _announced(self, plan: Plan) -> None:
        """Record a plan if it is new.

        For spans that the plan takes over from earlier attempts, copy their reducers' reports.
        """
        place = plan.step, plan.fence, plan.attempt
        if place in self._planned:
            return
        offers = {slot.peer: self._offers[slot.root] for slot in plan.slots if slot.root in self._offers}
        held = {}
        for span in plan.spans:
            before = self._planned.get((plan.step, plan.fence, span.attempt))
            if before is not None and span.span in before.included:
                held[span.span] = before.included[span.span]
        self._planned[place] = Planned(plan, offers, held)

    # --- credit

    def _commit(self, world: Surroundings, record: Record, rows: Iterable[LedgerRow]) -> None:
        self._count_positions(world, record)
        planned = self._planned.get((record.step - 1, record.fence, record.attempt))
        if planned is None:
            self._blame("uncredited", record.samples, f"step {record.step} follows no plan that was announced")
        else:
            self._count_credit(world.grid, record, planned, list(rows))
        self.leased.difference_update(unit for entry in record.contributions for unit in entry.units)
        self._offers.clear()
        self._planned.clear()

    def _count_positions(self, world: Surroundings, record: Record) -> None:
        for unit in (unit for entry in record.contributions for unit in entry.units):
            used = self._used.setdefault((unit.epoch, unit.shard), bytearray(world.shards[unit.shard]))
            twice = sum(map(bool, used[unit.start : unit.stop]))
            used[unit.start : unit.stop] = b"\1" * unit.samples
            self._blame("doubled", twice, f"{unit} is in two updates, the second at step {record.step}")

    def _count_credit(self, grid: Grid, record: Record, planned: Planned, rows: list[LedgerRow]) -> None:
        """Compare the averaged samples with the ledger, allowing a rounding error of one sample per contributor."""
        entries = Counter(row.machine for row in rows)
        credited: Counter[str] = Counter()
        for row in rows:
            credited[row.machine] += row.samples
        for peer, samples in self._averaged(grid, planned).items():
            off = credited.pop(peer, 0) - samples
            where = f"{peer[:6]} at step {record.step}"
            if not entries[peer]:
                self._blame("uncredited", round(samples), f"{where} has no entry for {float(samples):.1f} samples")
            elif abs(off) >= 1:
                kind: Literal["uncredited", "doubled"] = "doubled" if off > 0 else "uncredited"
                self._blame(kind, round(abs(off)), f"{where} is credited {float(off):+.1f} samples")
            elif entries[peer] > 1:
                self._blame("doubled", round(samples), f"{where} has {entries[peer]} entries")
        for machine, unearned in credited.items():
            self._blame("doubled", unearned, f"{machine[:6]} is credited for nothing at step {record.step}")

    def _averaged(self, grid: Grid, planned: Planned) -> dict[PeerId, Fraction]:
        """Return each contributor's number of samples in the average.

        It is computed from the offers and the reducers' reports.
        """
        elements = self._included_elements(grid, planned)
        averaged = {}
        for number, slot in enumerate(planned.plan.slots):
            offer = planned.offers.get(slot.peer)
            samples = sum(done.unit.samples for done in offer.units) if offer is not None else 0
            if offer is not None and samples:
                self._ratio[slot.peer] = Fraction(samples, offer.loss_tokens)
            token_elements = elements.get(number, 0)
            if token_elements:
                averaged[slot.peer] = Fraction(token_elements, grid.elements) * self._ratio.get(slot.peer, Fraction(0))
        return averaged

    def _included_elements(self, grid: Grid, planned: Planned) -> dict[int, int]:
        """Return, for each slot, the sum of offered loss tokens times elements over the slot's averaged chunks."""
        sums: dict[int, int] = {}
        for first, stop, slots in _joined(planned.included):
            for number in slots:
                offer = planned.offers.get(planned.plan.slots[number].peer)
                for weight in offer.weights if offer is not None else ():
                    begin, end = max(first, weight.first), min(stop, weight.stop)
                    if begin < end:
                        sums[number] = sums.get(number, 0) + weight.tokens * _elements(grid, begin, end)
        return sums

    def _blame(self, kind: Literal["uncredited", "doubled"], samples: int, text: str) -> None:
        if not samples:
            return
        if kind == "uncredited":
            self.uncredited_samples += samples
        else:
            self.doubled_samples += samples
        self.faults.append(f"{kind}: {text}")

    # --- after draining

    def divergent(self, world: World) -> list[PeerId]:
        """Return living trainers whose replica is corrupt or behind the log, or whose last digest differs from the most
        common one.
        """
        last = {peer: report for peer, report in self.reports.items() if world.trainers[peer].alive}
        at_head = [report.digest for report in last.values() if report.index == world.database.index]
        right = world.database.index, Counter(at_head).most_common(1)[0][0] if at_head else ""
        said = {peer: (report.index, report.digest) for peer, report in last.items()}
        living = [(peer, trainer) for peer, trainer in world.trainers.items() if trainer.alive]
        found = [peer for peer, trainer in living if trainer.corrupt or said.get(peer) != right]
        self.faults += [f"divergent: {peer[:6]} says {said.get(peer)}" for peer in found]
        return found

    def unsettled(self, world: World) -> list[Unit]:
        """Return leased units that are neither in an update nor free to be leased again.

        Call this after every peer has left. Samples that the host recorded as lost are subtracted. Units that the host
        still considers leased are included.
        """
        assert world.host is not None
        book = world.host.state.leases
        free: dict[tuple[int, int], set[int]] = {}
        for unit in book.returned:
            free.setdefault((unit.epoch, unit.shard), set()).update(range(unit.start, unit.stop))
        found, lost = [], book.lost_samples
        for unit in sorted(self.leased):
            used = self._used.get((unit.epoch, unit.shard), b"")
            gone = {place for place in range(unit.start, unit.stop) if not (used and used[place])}
            missing = len(gone - free.get((unit.epoch, unit.shard), set()))
            if missing > lost:
                found.append(unit)
                self.faults.append(f"unsettled: {unit}")
            else:
                lost -= missing
        return found


def _elements(grid: Grid, first: int, stop: int) -> int:
    """Return the number of elements in chunks [first, stop). Only the last chunk may be shorter."""
    return min(stop * grid.chunk_elements, grid.elements) - first * grid.chunk_elements


def _joined(included: dict[int, tuple[Included, ...]]) -> list[tuple[int, int, tuple[int, ...]]]:
    parts = sorted((part.first, part.stop, part.slots) for span in included.values() for part in span)
    runs: list[tuple[int, int, tuple[int, ...]]] = []
    for first, stop, slots in parts:
        if runs and runs[-1][1:] == (first, slots):
            runs[-1] = runs[-1][0], stop, slots
        else:
            runs.append((first, stop, slots))
    return runs


# A standstill: a run makes no progress although it could. The simulator can see which peers are alive, compute, and
# reach the site and every relay. From their speeds, it computes the usual time of a round. Time without a commit is
# measured in usual round times, and only counts while the trainers could fill the batch.

LOOK_S = 1.0
OVERHEAD_S = 4.0  # seconds in a usual round besides computing: offers, chunks, database, and unfinished units
REDUCE_S = 1.5  # seconds for a trainer's chunks at a relay's usual speed; more on slow links
PATIENCE = 10.0  # usual round times without a commit


class Standstill(Struct, frozen=True):
    step: int
    at_s: float  # virtual seconds from the start
    why: str  # the host's explanation, for debugging


class Progress:
    """Counts standstills: ten usual round times without a commit although the trainers could have filled the batch."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.began_at = world.clock.now
        self.stuck: list[Standstill] = []
        self.passed = 0.0  # usual round times since the last commit
        self._step = world.database.step
        world.clock.after(LOOK_S, self._look)

    def _look(self) -> None:
        world = self.world
        if world.database.step != self._step:
            self._step, self.passed = world.database.step, 0.0
        usual_s = usual_round_s(world)
        if usual_s is not None:
            self.passed += LOOK_S / usual_s
        if self.passed >= PATIENCE:
            self.passed = 0.0
            self.stuck.append(Standstill(self._step, round(world.clock.now - self.began_at, 1), explanation(world)))
        world.clock.after(LOOK_S, self._look)


def usual_round_s(world: World) -> float | None:
    """Return the usual round time in seconds with the trainers that can work now, or None if no round can be
    committed.
    """
    host, now = world.host, world.clock.now
    if host is None or host.frozen or now < world.layer_back_at or not world.database.answers(now):
        return None
    if world.goal != "running" or world.database.step >= world.recipe.target_steps:
        return None
    relays = [r for r in world.relays.values() if r.alive and not r.frozen and not r.disk_full and r.session]
    able = [trainer for trainer in world.trainers.values() if _is_able(world, trainer)]
    if not relays or len(able) < world.recipe.minimum_trainers:
        return None
    slowest_s = max(REDUCE_S, world.grid.chunks / min(trainer.chunks_per_s for trainer in able))
    reduce_s = slowest_s / min(relay.pace for relay in relays)
    return world.recipe.target_batch / sum(t.samples_per_s for t in able) + reduce_s + OVERHEAD_S


def _is_able(world: World, trainer: Trainer) -> bool:
    """Return True if a trainer computes sound gradients, reaches every relay and has a link to the site."""
    is_well = trainer.alive and not (trainer.frozen or trainer.hung or trainer.damaged or trainer.corrupt)
    return is_well and trainer.session is not None and not _is_far(world, trainer)


def _is_far(world: World, trainer: Trainer) -> bool:
    return bool(world.unreachable) and any((trainer.peer, relay) in world.unreachable for relay in world.relays)


def explanation(world: World) -> str:
    state = world.host.state if world.host is not None else None
    return f"{state.phase}, waiting for: {state.waiting or 'nothing'}" if state is not None else "no host"
