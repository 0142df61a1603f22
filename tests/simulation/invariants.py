"""The invariants after every event, stated independently of the coordinator's own arithmetic."""

import re
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Literal

import msgspec

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import RunState
from peer_agent.protocol.log.records import GENESIS, Record, Unit, digest_of
from peer_agent.protocol.messages import Plan
from peer_agent.simulation.site import Host
from peer_agent.simulation.world import World

Position = tuple[int, int, int]  # epoch, shard, place in the shard's order
PERSON = re.compile("person [0-9a-f]{6}")  # as the world names people


class Broken(AssertionError):
    """Raised when an invariant does not hold."""


def require(holds: bool, text: str) -> None:
    if not holds:
        raise Broken(text)


def positions(units: Iterable[Unit]) -> Iterator[Position]:
    return ((u.epoch, u.shard, place) for u in units for place in range(u.start, u.stop))


class Invariants:
    """An observer that checks a world's invariants. `thorough`: check every lease after every event.

    Only small worlds can afford `thorough`. Otherwise leases are checked once a round, at almost no cost per event.
    """

    def __init__(self, *, thorough: bool = False) -> None:
        self.world: World | None = None
        self.thorough = thorough
        self.committed: set[Position] = set()
        self.payloads: set[bytes] = set()  # encoded entries of the log
        self.committed_at: dict[int, int] = {}  # log index -> samples in units up to that index
        self.digest, self.index, self.step = GENESIS, 0, 0
        self.plans: dict[tuple[int, int, int], Plan] = {}  # by (step, fence, attempt)
        self.done: dict[tuple[int, int, int, int], m.SpanDone] = {}  # by (step, fence, attempt, span)
        self.offers: dict[bytes, m.Offer] = {}
        self.highest_fence = 0
        self.held_before: dict[str, frozenset[Unit]] = {}

    def watch(self, world: World) -> World:
        self.world = world
        world.observers.append(self)
        return world

    # --- hooks of the world

    def before(self, host: Host, event: e.Event, now: float) -> None:
        if self.thorough:
            ended = host.state.round.ended if host.state.round else {}  # leases of returned units end with the round
            held = host.state.leases.held
            self.held_before = {str(name): frozenset(units - ended.get(name, set())) for name, units in held.items()}
        if isinstance(event, e.Received) and isinstance(event.message, m.Offer):
            self.offers[event.message.root] = event.message
        if isinstance(event, e.Received) and isinstance(event.message, m.SpanDone):
            self._span_done(host.state, event)

    def _span_done(self, state: RunState, event: e.Received) -> None:
        done = event.message
        assert isinstance(done, m.SpanDone)
        plan = self.plans.get((done.step, done.fence, done.attempt))
        if plan is None or event.peer not in state.members:
            return
        for span in plan.spans:
            if span.span == done.span and span.reducer == event.peer:
                self.done.setdefault((done.step, done.fence, done.attempt, done.span), done)

    def after(self, host: Host, event: e.Event, commands: Sequence[e.Command], now: float) -> None:
        state = host.state
        require(state.fence >= self.highest_fence or host is not self._world.host, "a fence went back")
        self.highest_fence = max(self.highest_fence, state.fence)
        for command in commands:
            self._command(state, event, command)
        is_void = any(isinstance(c, e.Note) and c.kind == "void" for c in commands)
        if self.thorough or is_void or isinstance(event, e.Persisted):
            self._counts(state)
            self._leases(state)
        if self.thorough and is_void:
            self._void_loses_nothing(state, event)

    def persisted(self, host: Host, command: e.Persist, outcome: Literal["committed", "stale", "failed"]) -> None:
        if outcome != "committed":
            return
        record, sealed = command.record, self._world.database.log[-1]
        require(record.index == self.index + 1, "an index was skipped")
        if record.kind == "update":
            require(record.step == self._world.database.step == self.step + 1, "steps are not strictly +1")
        else:
            require(record.step == self._world.database.step <= self.step, "a rollback does not go back")
        require(record.previous == self.digest, "the chain of digests is broken")
        self.digest, self.index, self.step = digest_of(sealed), record.index, record.step
        self.payloads.add(sealed.head.payload)
        units = [unit for entry in record.contributions for unit in entry.units]
        for position in positions(units):
            require(position not in self.committed, f"{position} is in two commits")
            self.committed.add(position)
        self.committed_at[record.index] = len(self.committed)

    # --- commands

    @property
    def _world(self) -> World:
        assert self.world is not None
        return self.world

    def _command(self, state: RunState, event: e.Event, command: e.Command) -> None:
        match command:
            case e.Send():
                fence = getattr(command.message, "fence", state.fence)
                require(fence == state.fence, f"{command.message} is for an older fence")
                if isinstance(command.message, m.Commit):
                    require(command.message.record.payload in self.payloads, "not committed yet")
            case e.Announce():
                self._plan(state, command.plan)
            case e.Persist():
                self._record(state, command.record)
            case e.Note():
                require(set(PERSON.findall(command.text)) <= set(command.names), f"a name is hidden in {command}")
            case _:
                pass

    def _plan(self, state: RunState, plan: Plan) -> None:
        place = plan.step, plan.fence, plan.attempt
        require(plan.fence == state.fence and plan.step == state.step, "a plan of another time")
        require(self.plans.get(place, plan) == plan, "two plans for one attempt")
        msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan)
        self.plans[place] = plan
        covers = sorted((span.first, span.stop) for span in plan.spans)
        require(tiles(covers, self._world.grid.chunks), f"{covers} do not tile the grid")
        require(len({span.span for span in plan.spans}) == len(plan.spans), "a span number twice")
        for slot in plan.slots:
            offered = self.offers[slot.root].weights
            is_same, is_open = slot.weights == offered, self._world.trusted is not None
            require(is_same or is_open, "a weight is not the offered one")
            pairs = zip(slot.weights, offered, strict=True)
            require(
                all(bool(w.tokens) == bool(o.tokens) and w.tokens <= o.tokens for w, o in pairs), "a weight is wrong"
            )

    def _record(self, state: RunState, record: Record) -> None:
        require(record.previous == state.digest, "the record does not follow the head")
        if record.kind == "rollback":
            require(not record.contributions and not record.spans, "a rollback credits nobody")
            return
        require((record.index, record.step) == (state.index + 1, state.step + 1), "not the next step")
        plan = self.plans[state.step, record.fence, record.attempt]
        self._spans(plan, record)
        self._credit(plan, record)

    def _spans(self, plan: Plan, record: Record) -> None:
        planned = {(span.first, span.stop, span.reducer, span.attempt) for span in plan.spans}
        stated = {(span.first, span.stop, span.reducer, span.attempt) for span in record.spans}
        require(stated == planned, "the record's spans are not the plan's")
        covers = sorted((span.first, span.stop) for span in record.spans)
        require(tiles(covers, self._world.grid.chunks), "not every chunk is covered once")
        for span in record.spans:
            done = self.done.get((plan.step, plan.fence, span.attempt, span.span))
            require(done is not None, f"span {span.span} is not held")
            assert done is not None
            first_plan = self.plans[plan.step, plan.fence, span.attempt]
            own = next(p for p in first_plan.spans if p.span == span.span)
            require((own.first, own.stop, own.reducer) == (span.first, span.stop, span.reducer), "a span was swapped")
            require(done.root.hex() == span.root, "not what the reducer said")
            parts = sorted((part.first, part.stop) for part in done.included)
            require(tiles([(a - span.first, b - span.first) for a, b in parts], span.stop - span.first), "a hole")

    def _credit(self, plan: Plan, record: Record) -> None:
        grid = self._world.grid
        expected: dict[int, int] = {}
        inclusion: dict[int, set[int]] = {}
        for span in record.spans:
            for part in self.done[plan.step, plan.fence, span.attempt, span.span].included:
                for chunk in range(part.first, part.stop):
                    for slot in part.slots:
                        offered = self.offers[plan.slots[slot].root].weights
                        weight = next(w for w in offered if w.first <= chunk < w.stop)
                        expected[slot] = expected.get(slot, 0) + grid.length(chunk) * weight.tokens
                        inclusion.setdefault(slot, set()).add(chunk)
        stated = {entry.slot: entry.credit for entry in record.contributions}
        require(
            stated == {slot: credit for slot, credit in expected.items() if credit}, "credit is not what was averaged"
        )
        for entry in record.contributions:
            require(entry.peer == plan.slots[entry.slot].peer, "credit for somebody else")
            offer = self.offers[plan.slots[entry.slot].root]
            require(set(entry.units) == {done.unit for done in offer.units}, "units that were not offered")
            require(entry.accumulator == offer.accumulator, "another accumulator")
            chunks = [chunk for part in entry.included for chunk in range(part.first, part.stop)]
            require(len(chunks) == len(set(chunks)), "a chunk is included twice")
            require(set(chunks) == inclusion[entry.slot], "not what the reducers averaged")
        require(record.samples == sum(entry.samples for entry in record.contributions), "samples do not sum")
        require(record.tokens == sum(entry.tokens for entry in record.contributions), "tokens do not sum")
        require(record.tokens == round(Fraction(sum(expected.values()), grid.elements)), "tokens are not the credit's")
        whole = all(len(inclusion.get(slot, ())) == grid.chunks for slot in range(len(plan.slots)))
        if whole and all(len(slot.weights) == 1 for slot in plan.slots):
            samples = sum(unit.samples for entry in record.contributions for unit in entry.units)
            require(record.samples == samples, f"{record.samples} samples are credited for {samples}")
        require(not record.exact or whole, "called exact without full coverage")
        as_offered = all(slot.weights == self.offers[slot.root].weights for slot in plan.slots)
        require(not record.exact or as_offered, "called exact with other weights than offered")

    # --- leases

    def _counts(self, state: RunState) -> None:
        """Check that no sample is lost or invented, and that marks are never below the granted samples."""
        book = state.leases
        for place, granted in book.granted.items():
            require(
                granted <= book.reserved.get(place, 0) <= self._world.database.marks.get(place, 0), "above the mark"
            )
        granted = sum(book.granted.values())
        held = sum(unit.samples for units in book.held.values() for unit in units)
        loose = sum(unit.samples for unit in (*book.returned, *book.orphans))
        settled = self.committed_at.get(state.index, 0)
        require(granted == held + loose + settled + book.lost_samples, "samples were lost or doubled")

    def _leases(self, state: RunState) -> None:
        """Check that each position is in exactly one state: leased to one accumulator, returned, orphaned or
        settled."""
        book = state.leases
        units = sorted(unit for some in (*book.held.values(), book.returned, book.orphans) for unit in some)
        for one, other in pairwise(units):
            apart = (one.epoch, one.shard) != (other.epoch, other.shard) or one.stop <= other.start
            require(apart, f"a unit is in two places: {one} and {other}")
        knows_all = self.committed_at.get(state.index, 0) == len(self.committed)
        for unit in units:
            require(unit.stop <= book.granted.get((unit.epoch, unit.shard), 0), f"{unit} is fresh and in use")
            is_used = knows_all and not self.committed.isdisjoint(positions([unit]))
            require(not is_used, f"a unit is in two places: {unit} is in an update")
        accumulators = [member.accumulator for member in state.trainers() if member.accumulator]
        require(len(set(accumulators)) == len(accumulators), "two peers with one accumulator")

    def _void_loses_nothing(self, state: RunState, event: e.Event) -> None:
        if isinstance(event, e.Lost | e.Joined) or (isinstance(event, e.Received) and not _is_plain(event.message)):
            return  # these events may end leases
        after = state.leases.held
        for name, units in self.held_before.items():
            ended = isinstance(event, e.Received) and isinstance(event.message, m.Offer)
            here = next((held for other, held in after.items() if other == name), set())
            require(ended or units <= here or not self._lives(state, name), f"void took leases of {name}")

    def _lives(self, state: RunState, name: str) -> bool:
        return any(member.accumulator == name for member in state.members.values())


def _is_plain(message: m.TO_SITE) -> bool:
    return not isinstance(message, m.Hello | m.Leave | m.UnitsReturned | m.SlotRefused | m.Report)


def tiles(ranges: Sequence[tuple[int, int]], total: int) -> bool:
    """Return True if sorted ranges cover [0, total) exactly once."""
    position = 0
    for first, stop in ranges:
        if first != position or stop <= first:
            return False
        position = stop
    return position == total
