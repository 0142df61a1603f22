"""Verify the plans and commits that the site sends to a relay. On a relay, only this module opens these messages."""

import msgspec
from msgspec import Struct

from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import PeerId, Run, RunId
from peer_agent.protocol.log.records import Entry, RecordHead, open_head
from peer_agent.protocol.sealed import open_whole_plan

LARGEST_COUNT = 2**16  # the most slots or spans that a frame's header can number


class Place(Struct, frozen=True, order=True):
    """The fence, step and number that identify an attempt. A later attempt compares as greater.

    Fences are compared first, because a new host plans the same step again (rule 2).
    """

    fence: int
    step: int
    attempt: int


class OpenPlan(Struct, frozen=True):
    """A verified plan with all its slots."""

    plan: m.Plan
    slots: tuple[m.Slot, ...]

    @property
    def run(self) -> RunId:
        return self.plan.run

    @property
    def place(self) -> Place:
        return Place(self.plan.fence, self.plan.step, self.plan.attempt)

    @property
    def grid(self) -> Grid:
        return Grid(self.plan.elements, self.plan.chunk_elements)

    def given_to(self, me: PeerId) -> dict[int, m.PlannedSpan]:
        """Return the spans that `me` has to average, by number, excluding those kept from earlier attempts."""
        return {span.span: span for span in self.plan.spans if span.reducer == me and not span.root}


class OpenCommit(Struct, frozen=True):
    """A commit with a verified head. `sealed`: the entry for the log, which verifies the contributions."""

    fence: int
    record: RecordHead
    sealed: Entry

    @property
    def run(self) -> RunId:
        return self.record.run


Opened = (
    m.Greeting
    | m.Listeners
    | m.Rehello
    | m.Lease
    | m.AccumulatorRevoked
    | m.Cut
    | m.SitOut
    | m.Probe
    | m.Uplink
    | m.Audit
    | OpenPlan
    | m.Drop
    | m.Void
    | OpenCommit
    | m.Snapshotted
    | m.Reload
    | m.State
    | m.Notice
)


def open_message(message: m.TO_PEER, site_key: bytes) -> Opened:
    """Verify a message for the state machine, and open plans and commits.

    Raises Problem E218 if the signature or contents do not verify, or E206 if a plan or commit is invalid.
    """
    if isinstance(message, m.Planned):
        return open_plan(message, site_key)
    if isinstance(message, m.Commit):
        head = open_head(message.record, site_key)
        if head.run != message.run:
            raise Problem.of("E206", reason="the record is another run's")
        return OpenCommit(message.fence, head, Entry(message.record, message.contributions))
    return message


def open_plan(message: m.Planned, site_key: bytes) -> OpenPlan:
    """Verify a plan with all its slots.

    Raises Problem E218 if the signature or the slots do not match, or E206 if the plan is invalid.
    """
    plan = open_whole_plan(message, site_key)
    opened = OpenPlan(plan, plan.slots)
    if reason := _misfit(opened):
        raise Problem.of("E206", reason=reason)
    return opened


def _misfit(opened: OpenPlan) -> str:
    """Return why a plan cannot be carried out, or an empty string."""
    plan = opened.plan
    if plan.elements < 1 or plan.chunk_elements < 1 or min(plan.step, plan.fence, plan.attempt) < 0:
        return "the plan has a number below its range"
    if max(len(plan.spans), len(opened.slots), 1 + max((s.span for s in plan.spans), default=0)) > LARGEST_COUNT:
        return "the plan has more parts than a frame can name"
    chunks, position = opened.grid.chunks, 0
    for span in sorted(plan.spans, key=lambda span: span.first):
        if span.first != position or span.stop <= span.first:
            return "the plan's spans do not follow one another"
        position = span.stop
    if position != chunks:
        return "the plan's spans are not the whole vector"
    weights = [weight for slot in opened.slots for weight in slot.weights]
    if any(not 0 <= weight.first < weight.stop <= chunks for weight in weights):
        return "a weight of the plan lies outside the vector"
    return ""


def run_of(message: m.TO_PEER) -> RunId:
    """Return the run that a message names, without checking a signature. Raises Problem E206 if a plan is malformed."""
    if not isinstance(message, m.Planned):
        return message.run
    try:
        return msgspec.msgpack.decode(message.plan.payload, type=_Named).run
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem.of("E206", reason=error) from error


class _Named(Struct):
    run: Run
