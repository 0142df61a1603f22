"""A trainer's whole core: it answers every message, and the invariants hold for events in any order."""

from typing import Any, Literal, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from peer_agent.protocol import messages as m
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.sealed import own_part
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer.speaking import HEARTBEAT_S
from peer_agent.protocol.trainer.state import Phase
from peer_agent.protocol.trainer.transitions import BEHIND
from tests.protocol.identities import RUN
from tests.protocol.strategies import sample
from tests.protocol.trainer.stage import (
    CHUNKS,
    ME,
    RELAY,
    TOKENS,
    Stage,
    commit,
    cut,
    opening,
    plan,
    ready,
    unit,
    void,
)
from tests.tier import length


@pytest.mark.parametrize("kind", get_args(m.TO_PEER), ids=lambda kind: kind.__name__)
def test_everything_that_can_be_said_to_a_trainer_has_its_place(kind: type) -> None:
    stage = ready(0)
    if kind in (m.Planned, m.Commit):
        with pytest.raises(TypeError, match="opened"):
            stage.hears(sample(kind))
    else:
        stage.hears(sample(kind))


def test_people_are_told_what_is_for_them() -> None:
    stage = ready()
    stage.hears(m.State(run=RUN, state="waiting", reason="no relay"))
    assert stage.actions == [e.Show("waiting", "no relay")]
    stage.hears(m.State(run=RUN, state="finished", reason=""))
    assert stage.actions == [e.Show("finished", ""), e.Quit()]
    stage.hears(m.Notice(run=RUN, code="E219", text="words"))
    assert [type(action) for action in stage.actions] == [e.Warn]
    listeners = (m.Listener(RELAY, "ws://a"),)
    stage.hears(m.Listeners(run=RUN, listeners=listeners))
    assert stage.actions == [e.Dial(listeners)]
    stage.hears(m.Drop(run=RUN, step=0, fence=1, attempt=1, slot=0))
    assert stage.actions == []


def test_the_clock_never_runs_backwards() -> None:
    stage = ready()
    stage.now -= 50
    stage.handle(e.Ticked())
    assert stage.core.now == 100.0


def test_an_accumulator_is_named_after_the_seed() -> None:
    stage = ready()
    stage.seeds = 2**128 - 2
    stage.hears(m.AccumulatorRevoked(run=RUN, accumulator=stage.core.accumulator, reason=""))
    assert stage.core.accumulator == "f" * 32


SMALL = st.integers(0, 3)
ATTEMPT = st.fixed_dictionaries({"attempt": SMALL, "round": SMALL, "fence": st.integers(1, 3), "step": SMALL})


class AnyOrder(RuleBasedStateMachine):
    """The site's messages in any order, repeated or lost, with job results at any time.

    Leases and commits come from one consistent site. Everything else is arbitrary.
    """

    staleness: Literal[0, 1] = 0

    @initialize()
    def begin(self) -> None:
        self.stage = Stage(self.staleness)
        # units of each job, and the step of the parameters when it began
        self.begun: dict[int, tuple[tuple[Unit, ...], int]] = {}
        # units in the accumulator's sums: those never offered, and the others
        self.sums: tuple[set[Unit], set[Unit]] = (set(), set())
        self.leased: set[Unit] = set()
        self.frozen: tuple[Any, ...] | None = None
        self.own: dict[int, dict[str, Any] | None] = {}  # this trainer's contribution in each log entry
        self.open: list[e.Action] = []
        self.numbers = 0

    @property
    def core(self) -> Any:
        return self.stage.core

    def handle(self, event: e.Event) -> None:
        done_before, accumulator = self.core.done, self.core.accumulator
        actions = self.stage.handle(event)
        self.open += [a for a in actions if isinstance(a, e.Load | e.Compute | e.Freeze | e.Apply)]
        self._watch_what_is_frozen(actions)
        for action in actions:
            self._carry(action)
        if self.core.accumulator != accumulator:
            self.leased.clear()
            assert not self.core.done
        assert done_before is not None

    def _carry(self, action: e.Action) -> None:
        fresh, held = self.sums
        match action:
            case e.Compute():
                self.begun[action.job] = action.units, self.core.step
            case e.Keep():
                fresh.update(self.begun[action.job][0])
            case e.Freeze():
                self.sums = set(), held | fresh
            case e.Discard():
                fresh.clear()
            case e.DiscardHeld() | e.Settle(included=((_, _), *_)):
                held.clear()
            case e.Renew():
                self.sums = set(), set()

    def _watch_what_is_frozen(self, actions: list[e.Action]) -> None:
        """Check that a frozen offer does not change until it is released or settled."""
        if any(isinstance(a, e.Release | e.Settle | e.DiscardHeld | e.Renew) for a in actions):
            self.frozen = None
        if any(isinstance(a, e.Freeze) for a in actions):
            self.frozen = (self.core.accumulator, dict(self.core.kept), self.core.held)
        if self.frozen is not None:
            assert self.frozen == (self.core.accumulator, self.core.kept, self.core.held)
            assert self.staleness or not any(isinstance(a, e.Keep) for a in actions)

    # --- the site

    @rule(fence=st.integers(1, 3))
    def asked(self, fence: int) -> None:
        self.handle(e.Heard(m.Rehello(run=RUN, fence=fence)))

    @rule(fence=st.integers(1, 3), index=SMALL, reconciled=st.booleans())
    def greeted(self, fence: int, index: int, reconciled: bool) -> None:
        self.handle(e.Heard(self.stage.greeting(fence=fence, index=index, step=index, reconciled=reconciled)))

    @rule(count=st.integers(1, 4), quota=st.integers(0, 40), again=st.booleans())
    def leases(self, count: int, quota: int, again: bool) -> None:
        units = [unit(self.numbers + number) for number in range(count)]
        self.numbers += 0 if again else count
        before = {*self.core.undone, *self.core.kept, *self.core.fresh}
        self.handle(e.Heard(m.Lease(run=RUN, fence=3, units=tuple(units), quota=quota)))
        self.leased |= {*self.core.undone, *self.core.kept, *self.core.fresh} - before

    @rule(change=ATTEMPT)
    def cuts(self, change: dict[str, int]) -> None:
        self.handle(e.Heard(cut(**change)))

    @rule()
    def cuts_here(self) -> None:
        attempt = self.core.round.attempt + 1 if self.core.round else 1
        self.handle(e.Heard(cut(step=max(self.core.step, 0), fence=3, attempt=attempt, round=attempt)))

    @rule(change=ATTEMPT)
    def plans(self, change: dict[str, Any]) -> None:
        self.handle(e.PlanHeard(own_part(plan(**change), ME)))

    @precondition(lambda self: self.core.round is not None)
    @rule(more=st.integers(0, 1))
    def plans_here(self, more: int) -> None:
        round_ = self.core.round
        place: dict[str, Any] = {"step": round_.cut.step, "fence": round_.cut.fence, "round": round_.cut.round}
        self.handle(e.PlanHeard(own_part(plan(attempt=round_.attempt + more, **place), ME)))

    @rule(change=ATTEMPT)
    def opens(self, change: dict[str, int]) -> None:
        self.handle(e.OpenHeard(RELAY, opening(**{k: v for k, v in change.items() if k != "round"})))

    @rule(change=ATTEMPT)
    def voids(self, change: dict[str, int]) -> None:
        self.handle(e.Heard(void(**change)))

    @rule(index=st.integers(1, 4), ranges=st.lists(st.tuples(SMALL, st.integers(4, CHUNKS)), max_size=2))
    def commits(self, index: int, ranges: list[tuple[int, int]]) -> None:
        if index not in self.own:
            round_ = self.core.round
            is_ours = round_ is not None and round_.offer is not None and round_.cut.step == index - 1
            ours = self.stage.contribution(*ranges) if is_ours and self.core.phase is not Phase.APPLYING else None
            self.own[index] = ours
        self.handle(e.CommitHeard(commit(index, self.own[index], fence=3)))

    @rule()
    def revokes(self) -> None:
        self.handle(e.Heard(m.AccumulatorRevoked(run=RUN, accumulator=self.core.accumulator, reason="")))

    @rule(step=SMALL)
    def reloads(self, step: int) -> None:
        self.handle(e.Heard(m.Reload(run=RUN, step=step)))

    @rule(index=SMALL)
    def stores(self, index: int) -> None:
        snapshot = m.Snapshot(index=index, step=index, digest="", state_digest="", file="", size=0)
        self.handle(e.Heard(m.Snapshotted(run=RUN, snapshot=snapshot, keep_after=0)))

    # --- the machine

    @precondition(lambda self: self.open)
    @rule(data=st.data(), goes_well=st.booleans(), twice=st.booleans(), next_pass=st.integers(1, 4))
    def a_job_ends(self, data: Any, goes_well: bool, twice: bool, next_pass: int) -> None:
        job = data.draw(st.sampled_from(self.open))
        if not twice:
            self.open.remove(job)
        match job:
            case e.Load():
                self.handle(e.Loaded(job.job, "a" * 16) if goes_well else e.LoadFailed(job.job))
            case e.Compute():
                units, base = self.begun[job.job]
                computed = e.Computed(job.job, 1.0, (32,) * len(units), base, next_pass)
                self.handle(computed if goes_well else e.NotFinite(job.job))
            case e.Freeze():
                self.handle(e.Frozen(job.job, b"r" * 32, 1.0) if goes_well else e.Overflowed(job.job))
            case e.Apply():
                self.handle(e.Applied(job.job, "b" * 16) if goes_well else e.BytesMissing(job.job))

    @rule(seconds=st.sampled_from([0.1, 2.0, 12.0, 90_000.0]))
    def waits(self, seconds: float) -> None:
        self.stage.now += seconds
        self.handle(e.Ticked())
        assert self.core.now - self.core.spoke_at < HEARTBEAT_S

    @rule()
    def is_linked_anew(self) -> None:
        self.handle(e.Linked())

    @rule()
    def gives_back(self) -> None:
        self.handle(e.GaveBack())

    # --- what must hold

    @invariant()
    def a_unit_is_in_one_place(self) -> None:
        places = [*self.core.undone, *self.core.fresh, *self.core.kept]
        assert len(set(places)) == len(places)

    @invariant()
    def nothing_is_done_that_was_not_leased(self) -> None:
        assert {*self.core.fresh, *self.core.kept} <= self.leased

    @invariant()
    def the_sums_are_what_the_books_say(self) -> None:
        assert self.sums == (set(self.core.fresh), set(self.core.kept))

    @invariant()
    def nothing_is_too_old_to_be_offered(self) -> None:
        assert all(self.core.step - 1 <= done.base <= self.core.step for done in self.core.done)

    @invariant()
    def tokens_are_those_of_samples_and_of_what_was_left_out(self) -> None:
        core = self.core
        new = core.samples * TOKENS
        assert core.loss_tokens == new
        for part in core.weights:
            assert new <= part.tokens <= new + core.carried
        if core.weights:
            assert (core.weights[0].first, core.weights[-1].stop) == (0, CHUNKS)
            assert max(part.tokens for part in core.weights) == new + core.carried

    @invariant()
    def phases_agree_with_the_rest(self) -> None:
        core = self.core
        assert (core.step >= 0) == (core.phase not in (Phase.ABSENT, Phase.LOADING))
        if self.staleness == 0:
            assert core.phase is Phase.ACCUMULATE or core.in_hand is None
            assert core.phase is Phase.ACCUMULATE or not core.fresh or core.phase in BEHIND
        assert core.phase not in (Phase.ABSENT, Phase.LOADING) or core.in_hand is None
        assert core.phase is not Phase.ACCUMULATE or core.index >= core.head
        assert (core.phase in (Phase.FREEZE, Phase.OFFER, Phase.REDUCE)) <= (core.round is not None)
        assert core.round is None or core.round.cut.step == core.step


class AnyOrderOverlapping(AnyOrder):
    """The AnyOrder state machine, with work that overlaps the round."""

    staleness = 1


ANY_ORDER = settings(max_examples=length(150, 30), stateful_step_count=40)
TestAnyOrderOverlapping = AnyOrderOverlapping.TestCase
TestAnyOrderOverlapping.settings = ANY_ORDER
TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = ANY_ORDER
