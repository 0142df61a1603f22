"""The invariants detect each fault planted here."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import advance as advancing
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator import membership
from peer_agent.protocol.coordinator.leases import LeaseBook
from peer_agent.protocol.coordinator.phases import Why
from peer_agent.protocol.coordinator.round import attempt, committing, offers, planning, recording, reducing, voiding
from peer_agent.protocol.coordinator.state import Phase, Round, RunState
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import AccumulatorId
from peer_agent.protocol.log.records import Contribution, Included, Record, Unit, seal
from peer_agent.protocol.plan import spans_of
from peer_agent.simulation.relay import Relay
from peer_agent.simulation.world import World
from tests.simulation.checked_world import checked_world, run_to, trainers
from tests.simulation.invariants import Broken

Plant = Callable[[pytest.MonkeyPatch, World], None]


def _unweighted_credit(patch: pytest.MonkeyPatch, world: World) -> None:
    def credit_of(slots: Sequence[m.Slot], included: Iterable[Included], grid: Grid) -> dict[int, int]:
        return dict.fromkeys(range(len(slots)), grid.elements)

    patch.setattr(recording, "credit_of", credit_of)


def _dropped_ledger_row(patch: pytest.MonkeyPatch, world: World) -> None:
    honest = recording._contributions

    def contributions(state: RunState, round_: Round, included: Sequence[Included]) -> tuple[Contribution, ...]:
        return honest(state, round_, included)[:-1]

    patch.setattr(recording, "_contributions", contributions)


def _swapped_spans(patch: pytest.MonkeyPatch, world: World) -> None:
    honest = recording.record_of

    def record_of(state: RunState, round_: Round) -> Record:
        record = honest(state, round_)
        first, second, *rest = record.spans
        spans = (
            replace(first, first=second.first, stop=second.stop),
            replace(second, first=first.first, stop=first.stop),
        )
        return replace(record, spans=(*spans, *rest))

    patch.setattr(committing, "record_of", record_of)


def _stale_fence_accepted(patch: pytest.MonkeyPatch, world: World) -> None:
    honest = Relay.say

    def say(self: Relay, message: m.TO_SITE) -> None:
        if isinstance(message, m.SpanDone):
            honest(self, replace(message, fence=message.fence - 1, root=bytes(32)))
        honest(self, message)

    patch.setattr(Relay, "say", say)
    patch.setattr(attempt, "is_current", lambda state, message: True)


def _commit_before_persisted(patch: pytest.MonkeyPatch, world: World) -> None:
    honest = committing.commit

    def commit(state: RunState) -> list[e.Command]:
        commands = honest(state)
        assert isinstance(commands[0], e.Persist)
        sealed = seal(world.database.key, commands[0].record)
        message = m.Commit(run=state.run, fence=state.fence, record=sealed.head)
        return [*commands, e.Send(state.everyone(), message)]

    patch.setattr(reducing, "commit", commit)


def _unit_given_out_twice(patch: pytest.MonkeyPatch, world: World) -> None:
    honest = LeaseBook.grant

    def grant(self: LeaseBook, accumulator: AccumulatorId, samples: int) -> tuple[Unit, ...]:
        units = honest(self, accumulator, samples)
        if units:
            self.returned.append(units[0])
        return units

    patch.setattr(LeaseBook, "grant", grant)


def _leases_above_the_mark(patch: pytest.MonkeyPatch, world: World) -> None:
    patch.setattr(LeaseBook, "wanted_marks", lambda self, ahead: ())
    world.host.state.leases.reserved.update({(0, 0): 4000, (0, 1): 1001, (0, 2): 90})  # type: ignore[union-attr]


def _a_span_forgotten(patch: pytest.MonkeyPatch, world: World) -> None:
    honest = spans_of

    def all_but_one(*args: Any, **kwargs: Any) -> list[m.PlannedSpan]:
        return honest(*args, **kwargs)[:-1]

    patch.setattr(planning, "spans_of", all_but_one)


def _old_fence_sent(patch: pytest.MonkeyPatch, world: World) -> None:
    honest = offers.cut

    def cut(state: RunState) -> list[e.Command]:
        (command,) = honest(state)
        assert isinstance(command, e.Send)
        return [e.Send(command.peers, replace(command.message, fence=state.fence - 1))]

    patch.setattr(advancing, "cut", cut)


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (_unweighted_credit, "credit is not what was averaged"),
        (_dropped_ledger_row, "credit is not what was averaged"),
        (_swapped_spans, "spans are not the plan's"),
        (_stale_fence_accepted, "not what the reducer said|is not held"),
        (_commit_before_persisted, "not committed yet"),
        (_unit_given_out_twice, "lost or doubled"),
        (_leases_above_the_mark, "above the mark"),
        (_a_span_forgotten, "do not tile the grid"),
        (_old_fence_sent, "for an older fence"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_planted_fault_is_found(plant: Plant, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        world, _ = checked_world(trainers=3, relays=2, steps=9)
        if planted:
            plant(monkeypatch, world)
        world.run_steps(5, 100)

    planted = False
    run()
    planted = True
    with pytest.raises(Broken, match=found):
        run()


def test_leases_that_end_in_mid_round_at_once_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a lease does not last until the round ends, a leaving peer's unit is both averaged and leased again."""

    def end_leases(state: RunState, accumulator: AccumulatorId, *args: Any, **kwargs: Any) -> int:
        return state.leases.take_back(accumulator, *args)

    monkeypatch.setattr(membership, "end_leases", end_leases)
    world, _ = checked_world(trainers=5, relays=2, steps=14, elements=40 * 16 * 1024)
    run_to(world, Phase.COMMIT)
    leaver = trainers(world)[0]
    leaver.latency_s = 0.001
    leaver.leave()
    with pytest.raises(Broken, match=r"in two places|lost or doubled|in two commits"):
        world.run_steps(5, 100)


def test_a_void_round_that_takes_leases_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = voiding.void

    def void(state: RunState, why: Why, text: str) -> list[e.Command]:
        for member in state.trainers():
            state.leases.take_back(member.accumulator)
        return honest(state, why, text)

    monkeypatch.setattr(offers, "void", void)
    world, _ = checked_world(trainers=3, steps=14, even=True)
    run_to(world, Phase.OFFER)
    for trainer in trainers(world):
        trainer.freeze()
    with pytest.raises(Broken, match="void took leases"):
        world.wait(60)
