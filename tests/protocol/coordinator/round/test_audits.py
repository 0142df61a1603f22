"""Contributions are computed again by other people's machines, and one person's word decides nothing."""

from collections import Counter
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.events import Verdict
from peer_agent.protocol.coordinator.round.audits import (
    ALARM,
    CLEARED,
    DISMISSALS,
    JUDGES,
    LONGEST_DOUBT,
    NEWCOMERS_RATE,
    PROVEN,
    RATE,
    REST,
    TRUSTED_RATE,
    rule_of,
    verdict_of,
)
from peer_agent.protocol.coordinator.round.screening import MOST_INCOMPARABLE, newcomers_of
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.coordinator.workers.counts import is_asked, is_counted
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import ChunkRange, Included
from peer_agent.protocol.plan import QUORUM_PERCENT
from tests.protocol.coordinator.round.test_replicas import overlapped
from tests.protocol.coordinator.stage import RUN, SKETCH, TOKENS, UNIT, Stage, Trainer, audit_of, notes, peer_of, sent

NOBODY = frozenset[str]()
PEOPLE = ("ann", "bob", "cem", "dan", "eve")
SEVEN = ("ann", "bob", "cem", "dan", "eve", "fay", "gus")
FALSE = (-np.frombuffer(SKETCH, "<f4")).tobytes()


def opened(
    *, trusted: frozenset[str] | None = NOBODY, people: tuple[str, ...] = PEOPLE, staleness: Literal[0, 1] = 0
) -> tuple[Stage, list[Trainer]]:
    stage = Stage(batch=8 * len(people), trusted=trusted, staleness=staleness)
    stage.relay()
    return stage, [stage.trainer(name) for name in people]


def offered(stage: Stage, seed: int = 1) -> list[tuple[PeerId, m.Audit]]:
    """Bring a round to its plan, and return the audits that it asks for, with their auditors."""
    stage.seed, said = seed, len(stage.said)
    stage.accumulate()
    stage.offers(*stage.trainers.values())
    stage.close()
    assert stage.state.phase is Phase.REDUCE
    sends = [each for each in stage.said[said:] if isinstance(each, e.Send) and isinstance(each.message, m.Audit)]
    return [(each.peers[0], each.message) for each in sends if isinstance(each.message, m.Audit)]


def answer(stage: Stage, auditor: PeerId, asked: m.Audit, **said: Any) -> list[e.Command]:
    audit = stage.state.audits[asked.number]
    facts = {"sketch": SKETCH, "loss_sum": audit.loss_sum, "loss_tokens": audit.loss_tokens}
    return stage.say(auditor, m.Audited(run=RUN, number=asked.number, **{**facts, **said}))


def audited(stage: Stage, liar: Trainer, rounds: int = 1, *, honest: bool = True) -> list[e.Command]:
    """Drive rounds in which all of the liar's contributions are audited. Return the coordinator's commands.

    `honest`: auditors tell what they computed. Otherwise, they find every contribution false.
    """
    said = len(stage.said)
    for number in range(rounds):
        for auditor, asked in offered(stage, seed=number + 1):
            of_liar = stage.state.audits[asked.number].peer == liar.peer
            answer(stage, auditor, asked, sketch=SKETCH if honest or not of_liar else FALSE)
        stage.reduce()
        stage.persist()
    return stage.said[said:]


def doubted(stage: Stage, trainer: Trainer) -> Trainer:
    """Put a machine in doubt. The organizer vouches for all others, so that their word counts."""
    stage.state.trusted = frozenset(PEOPLE) - {trainer.person}
    stage.member(trainer).reliability.in_doubt = True
    return trainer


# --- which contributions are audited


def test_closed_run_has_no_audits_and_no_sketches() -> None:
    stage, trainers = opened(trusted=None)
    stage.member(trainers[0]).reliability.in_doubt = True
    assert offered(stage) == []
    assert stage.round.plan is not None
    assert stage.round.plan.seed == 0


@pytest.mark.parametrize(
    ("trusted", "updates", "passed", "largest", "rate"),
    [
        (NOBODY, 0, 0, 0, NEWCOMERS_RATE),
        (NOBODY, 100, 0, 0, NEWCOMERS_RATE),
        (NOBODY, 100, 1, 8, RATE),  # each contributes 8 samples
        (NOBODY, 100, 1, 4, (RATE + NEWCOMERS_RATE) / 2),
        (NOBODY, 100, 1, 0, NEWCOMERS_RATE),
        (frozenset(PEOPLE), 0, 0, 0, TRUSTED_RATE),
    ],
)
def test_share_of_audited_contributions(
    trusted: frozenset[str], updates: int, passed: int, largest: int, rate: float
) -> None:
    stage, trainers = opened(trusted=trusted)
    found = 0
    for seed in range(80):
        stage.state.contributed = Counter(dict.fromkeys(PEOPLE, updates))
        for trainer in trainers:
            record = stage.member(trainer).reliability
            record.audits_passed, record.checked_samples, record.audited_in = passed, largest, -REST
        found += len(offered(stage, seed))
        stage.reduce()
        stage.persist()
        stage.state.audits.clear()
    assert found / (80 * len(trainers)) == pytest.approx(rate, rel=0.5, abs=0.012)


def test_all_bits_of_the_seed_decide_what_is_audited() -> None:
    """The plan publishes a number drawn from the seed. If the seed were short, anyone could search for it."""
    secrets = set()
    for seed in (1, 1 + 2**64, 1 + 2**127):
        stage, _ = opened()
        offered(stage, seed)
        secrets.add(stage.round.secret)
        assert stage.round.secret != stage.round.seed
    assert len(secrets) == 3


def test_an_audit_states_units_parameters_codec_and_the_plans_seed() -> None:
    stage, (ann, *_) = opened()
    doubted(stage, ann)
    (auditor, asked), *_ = [
        (peer, each) for peer, each in offered(stage) if stage.state.audits[each.number].peer == ann.peer
    ]
    assert stage.state.members[auditor].person != "ann"
    assert (asked.step, asked.codec, asked.units) == (0, "fp16", tuple(sorted(ann.done)))
    assert stage.round.plan is not None
    assert asked.seed == stage.round.plan.seed > 0
    assert asked.parts == (ChunkRange(0, 8),)


def test_own_machines_never_audit_each_other() -> None:
    stage = Stage(batch=24, trusted=NOBODY)
    stage.relay()
    trainers = [stage.trainer(name, "eve") for name in ("one", "two", "three")]
    for trainer in trainers:
        doubted(stage, trainer)
    assert offered(stage) == []


def test_machine_rests_between_audits_unless_few_people_may_audit() -> None:
    stage, _ = opened()
    rounds: dict[PeerId, list[int]] = {}
    for number in range(40):
        for record in (member.reliability for member in stage.state.members.values()):
            record.audits_passed, record.in_doubt, record.accused_by, record.cleared_by = 1, False, {}, NOBODY
        for auditor, _ in rounds_audits(stage, number):
            rounds.setdefault(auditor, []).append(number)
    assert sum(map(len, rounds.values())) > 10
    assert all(later - before >= REST for own in rounds.values() for before, later in pairwise(own))


def rounds_audits(stage: Stage, seed: int) -> list[tuple[PeerId, m.Audit]]:
    asked = offered(stage, seed)
    for auditor, each in asked:
        answer(stage, auditor, each)
    stage.reduce()
    stage.persist()
    return asked


def test_stale_units_are_audited_on_the_parameters_of_the_step_before() -> None:
    stage, trainers = overlapped()
    ann = doubted(stage, trainers[0])
    step, stale = stage.state.step, ann.done.keys() - {done.unit for done in stage.round.offers[ann.peer].units}
    stage.gathers = True
    stage.gathered(next(iter(stage.trainers)))
    stage.persist()
    assert ann.done.keys() == stale, "computed while gradients were averaged"
    ((_, asked),) = [x for x in offered(stage) if stage.state.audits[x[1].number].peer == ann.peer]
    assert (asked.step, set(asked.stale)) == (step + 1, stale)
    assert set(asked.units) == ann.done.keys() - stale


def carrying(stage: Stage, trainer: Trainer) -> None:
    """Let an earlier update include only some chunks of a trainer's gradient, so that it carries the rest."""
    trainer.carried = stage.member(trainer).carried = 3 * TOKENS


def test_gradients_carried_from_earlier_steps_are_not_audited() -> None:
    stage, (ann, *_) = opened()
    carrying(stage, ann)
    for seed in range(MOST_INCOMPARABLE):
        assert ann.peer not in {stage.state.audits[each.number].peer for _, each in offered(stage, seed)}
        assert ann.peer in {slot.peer for slot in stage.round.slots}
        stage.reduce()
        stage.persist()
        carrying(stage, ann)


@pytest.mark.parametrize("why", ["in doubt", "long unchecked", "vouched for"])
def test_machines_that_must_be_checked_may_not_carry_gradients(why: str) -> None:
    stage, (ann, *_) = opened()
    record = stage.member(ann).reliability
    record.in_doubt, record.incomparable = why == "in doubt", MOST_INCOMPARABLE * (why != "in doubt")
    stage.state.trusted = frozenset({"ann"}) if why == "vouched for" else NOBODY
    carrying(stage, ann)
    is_out = why != "vouched for"
    offered(stage)
    assert (ann.peer not in {slot.peer for slot in stage.round.slots}) == is_out
    assert bool(sent(stage.said, m.AccumulatorRevoked, ann.peer)) == is_out


def test_machine_that_the_batch_needs_may_carry_gradients_though_in_doubt() -> None:
    stage, (ann, bob) = opened(people=("ann", "bob"))
    stage.member(ann).reliability.in_doubt = True
    carrying(stage, ann)
    stage.accumulate()
    stage.offer(ann)
    tokens = UNIT * TOKENS
    stage.offer(
        bob,
        units=(m.DoneUnit(next(iter(bob.done)), 0),),
        weights=(m.Weight(0, 8, tokens),),
        loss_tokens=tokens,
        loss_sum=2.5 * tokens,
    )
    stage.close()
    assert ann.peer in {slot.peer for slot in stage.round.slots}


def test_gradients_are_returned_only_while_a_quorum_is_left() -> None:
    stage, trainers = opened()
    for trainer in trainers:
        stage.member(trainer).reliability.in_doubt = True
        carrying(stage, trainer)
    offered(stage)
    out = [trainer for trainer in trainers if sent(stage.said, m.AccumulatorRevoked, trainer.peer)]
    left = len(trainers) - len(out)
    assert out, "the others are a quorum without the first one"
    assert 100 * left >= QUORUM_PERCENT * len(trainers) > 100 * (left - 1)
    assert len(stage.round.slots) == left


def test_missing_a_chunk_also_makes_a_contribution_incomparable() -> None:
    """Otherwise, a machine could withhold a chunk of each false gradient."""
    stage, (ann, *_) = opened()
    record = stage.member(ann).reliability
    for seed in range(MOST_INCOMPARABLE + 1):
        offered(stage, seed)
        number = next(i for i, slot in enumerate(stage.round.slots) if slot.peer == ann.peer)
        (span,) = stage.spans()
        everyone = tuple(range(len(stage.round.slots)))
        rest = tuple(slot for slot in everyone if slot != number)
        stage.span_done(span, included=(Included(span.first, 7, everyone), Included(7, span.stop, rest)))
        stage.persist()
        assert record.incomparable == seed + 1
    asked = [x for x in offered(stage, 99) if stage.state.audits[x[1].number].peer == ann.peer]
    assert len(asked) == 1, "all its contributions are audited now"
    stage.state.contributed = Counter(dict.fromkeys(PEOPLE, 100))
    assert newcomers_of(stage.state, PEOPLE) == {"ann"}


def test_sketches_by_strangers_are_not_kept_for_the_site() -> None:
    stage, _ = opened()
    offered(stage)
    stage.reduce()
    stage.persist()
    assert len(stage.state.sketched) == 1
    offered(stage)
    stage.reduce()
    relay = next(member for member in stage.state.members.values() if not member.trains)
    relay.role, relay.person = Role.AUXILIARY, "zed"
    stage.state.sketched.clear()
    stage.persist()
    assert not stage.state.sketched


def test_one_person_with_half_the_weight_prevents_the_geometric_median() -> None:
    stage, _ = opened()
    stage.state.alarmed_until = 100
    offered(stage)
    assert stage.round.rule == "geometric median"
    first, *rest = stage.round.slots
    stage.round.slots = (replace(first, weights=(m.Weight(0, 8, 10**6),)), *rest)
    assert rule_of(stage.state, stage.round) == "mean"
    few, _ = opened(people=PEOPLE[:3])
    few.state.alarmed_until = 100
    offered(few)
    assert few.round.rule == "mean"


def test_count_of_incomparable_contributions_begins_again_with_a_comparable_one() -> None:
    stage, (ann, *_) = opened()
    carrying(stage, ann)
    found = []
    for seed in range(3):
        offered(stage, seed)
        stage.reduce()
        stage.persist()
        found.append(stage.member(ann).reliability.incomparable)
        ann.carried = 0
    assert found == [1, 0, 0]


# --- answers


@pytest.mark.parametrize(
    ("cosine", "norm", "loss", "tokens", "verdict"),
    [
        (1.0, 1.0, 1.0, 0, Verdict.PASSED),
        (0.985, 1.02, 0.98, 0, Verdict.PASSED),
        (0.97, 1.0, 1.0, 0, Verdict.UNCLEAR),
        (1.0, 1.06, 1.0, 0, Verdict.UNCLEAR),
        (1.0, 1.0, 1.06, 0, Verdict.UNCLEAR),
        (0.94, 1.0, 1.0, 0, Verdict.FAILED),
        (-1.0, 1.0, 1.0, 0, Verdict.FAILED),
        (1.0, 3.0, 1.0, 0, Verdict.FAILED),
        (1.0, 0.5, 1.0, 0, Verdict.FAILED),
        (1.0, 1.0, 0.2, 0, Verdict.FAILED),
        (1.0, 1.0, 1.0, 1, Verdict.FAILED),
        (0.0, 0.0, 1.0, 0, Verdict.FAILED),
    ],
)
def test_verdict_follows_from_direction_norm_loss_and_tokens(
    cosine: float, norm: float, loss: float, tokens: int, verdict: Verdict
) -> None:
    one, other = np.zeros((2, 256))
    one[0], other[0], other[1] = 1.0, cosine, np.sqrt(1 - cosine**2) * bool(norm)
    answer = m.Audited(run=RUN, number=1, sketch=one.astype("<f4").tobytes(), loss_sum=100.0, loss_tokens=40)
    sketch = (norm * other).astype("<f4").tobytes()
    assert verdict_of(audit_of(sketch, answer, loss_sum=loss * 100.0, loss_tokens=40 + tokens)) is verdict


@pytest.mark.parametrize("is_late", [False, True], ids=["before the commit", "after it"])
def test_answer_counts_before_and_after_the_commit(*, is_late: bool) -> None:
    stage, (ann, *_) = opened()
    doubted(stage, ann)
    ((auditor, asked),) = [x for x in offered(stage) if stage.state.audits[x[1].number].peer == ann.peer]
    if not is_late:
        answer(stage, auditor, asked)
    assert stage.member(ann).reliability.audits_passed == 0
    stage.reduce()
    stage.persist()
    if is_late:
        answer(stage, auditor, asked)
    assert stage.member(ann).reliability.audits_passed == 1
    assert asked.number not in stage.state.audits


def test_only_the_auditor_may_answer() -> None:
    stage, (ann, *others) = opened()
    doubted(stage, ann)
    ((auditor, asked),) = [x for x in offered(stage) if stage.state.audits[x[1].number].peer == ann.peer]
    for other in others:
        if other.peer != auditor:
            answer(stage, other.peer, asked, sketch=FALSE)
    assert stage.state.audits[asked.number].answer is None


def test_audit_that_cannot_be_computed_has_no_verdict() -> None:
    stage, (ann, *_) = opened()
    doubted(stage, ann)
    for auditor, asked in offered(stage):
        answer(stage, auditor, asked, sketch=b"")
    stage.reduce()
    stage.persist()
    assert stage.state.audits == {}
    assert not stage.member(ann).reliability.accused_by


def test_work_that_is_not_in_all_chunks_gets_no_verdict() -> None:
    stage, (ann, *_) = opened()
    doubted(stage, ann)
    for auditor, asked in offered(stage):
        answer(stage, auditor, asked, sketch=FALSE)
    number = next(i for i, slot in enumerate(stage.round.slots) if slot.peer == ann.peer)
    (span,) = stage.spans()
    rest = tuple(slot for slot in range(5) if slot != number)
    parts = (Included(span.first, 4, rest), Included(4, span.stop, tuple(range(5))))
    stage.span_done(span, included=parts)
    stage.persist()
    assert not stage.member(ann).reliability.accused_by


def test_audits_of_a_void_round_end() -> None:
    stage, (ann, *_) = opened()
    doubted(stage, ann)
    assert offered(stage)
    stage.handle(e.Lost(stage.spans()[0].reducer))
    stage.wait(2000.0)
    assert stage.state.round is None or stage.state.round.number > 1
    assert stage.state.audits == {}


def test_a_report_without_sketches_ends_the_audits() -> None:
    """The first report was lost. Its repetitions have no sketches."""
    stage, (ann, *_) = opened()
    doubted(stage, ann)
    for auditor, asked in offered(stage):
        answer(stage, auditor, asked, sketch=FALSE)
    (span,) = stage.spans()
    stage.span_done(span, sketches=())
    stage.persist()
    assert stage.state.audits == {}
    assert not stage.member(ann).reliability.accused_by


@pytest.mark.parametrize("sketch", [b"\0\0\0", SKETCH[:-1], b"\0" * 8])
def test_an_answer_of_another_length_changes_nothing(sketch: bytes) -> None:
    stage, (ann, *_) = opened()
    doubted(stage, ann)
    ((auditor, asked),) = [x for x in offered(stage) if stage.state.audits[x[1].number].peer == ann.peer]
    answer(stage, auditor, asked, sketch=sketch)
    stage.reduce()
    stage.persist()
    assert stage.state.audits[asked.number].answer is None


def test_doubt_without_a_verdict_ends() -> None:
    stage, (ann, *_) = opened(people=("ann", "eve"))
    record = stage.member(doubted(stage, ann)).reliability
    audited(stage, ann, rounds=3, honest=False)
    assert (record.in_doubt, set(record.accused_by)) == (True, {"eve"})
    record.doubted_in = stage.state.rounds - LONGEST_DOUBT - 1
    offered(stage)
    assert (record.in_doubt, record.accused_by) == (False, {})


@pytest.mark.parametrize("sketches", [(SKETCH,), (SKETCH,) * 4 + (b"",), (SKETCH,) * 4 + (SKETCH[:-4],)])
def test_reducer_must_make_a_sketch_of_each_gradient(sketches: tuple[bytes, ...]) -> None:
    stage, _ = opened()
    offered(stage)
    (span,) = stage.spans()
    stage.span_done(span, sketches=sketches)
    assert span.span not in stage.round.done if stage.state.round else True
    assert stage.records == []


def test_sketches_of_strangers_machines_accuse_nobody() -> None:
    """A stranger's auxiliary says that ann's gradient was another one than she offered."""
    stage, (ann, *others) = opened()
    auxiliary = stage.relay("mallory", Role.AUXILIARY, "mallory")
    for peer in (peer_of("relay"), *(trainer.peer for trainer in (ann, *others))):
        stage.say(peer, m.Reaches(run=RUN, listeners=(auxiliary, peer_of("relay"))))
    doubted(stage, ann)
    asked = offered(stage)
    assert auxiliary in {span.reducer for span in stage.spans()}
    theirs = [span for span in stage.spans() if span.reducer == auxiliary]
    for _, each in asked:
        assert all(part.stop <= theirs[0].first or part.first >= theirs[-1].stop for part in each.parts)


# --- consequences


def test_one_persons_word_decides_nothing() -> None:
    stage, (ann, *_) = opened(people=("ann", "eve"))
    doubted(stage, ann)
    commands = audited(stage, ann, rounds=12, honest=False)
    assert "refused" not in notes(commands)
    assert stage.member(ann).reliability.accused_by.keys() == {"eve"}
    assert not stage.state.in_quarantine(stage.member(ann).reliability)


def test_liar_is_named_and_loses_credit_once_enough_people_accuse_it() -> None:
    stage, trainers = opened()
    eve = doubted(stage, trainers[-1])
    stage.sketches[eve.peer] = FALSE
    record = stage.member(eve).reliability
    record.checked_index = 0
    commands = audited(stage, eve, rounds=PROVEN - 1)
    assert "refused" not in notes(commands)
    assert len(record.accused_by) == PROVEN - 1
    commands = audited(stage, eve)
    (note,) = [each for each in commands if isinstance(each, e.Note) and each.kind == "refused"]
    assert note.names[0] == "eve"
    assert len(set(note.names)) == 1 + PROVEN
    assert note.text.startswith("eve (eve) contributed gradients other than those of its samples")
    assert [each.code for each in sent(commands, m.Notice, eve.peer) if isinstance(each, m.Notice)] == ["E143"]
    (reverse,) = [each for each in commands if isinstance(each, e.Reverse)]
    assert (reverse.peer, reverse.index) == (eve.peer, 0)
    assert stage.state.in_quarantine(record)
    assert (record.in_doubt, record.accused_by, record.audits_passed) == (True, {}, 0)


def test_rounds_after_a_proof_use_a_rule_that_withstands_more() -> None:
    stage, trainers = opened()
    eve = doubted(stage, trainers[-1])
    stage.sketches[eve.peer] = FALSE
    assert "refused" in notes(audited(stage, eve, rounds=PROVEN))
    proven, rules = stage.state.rounds, dict[int, str]()
    while stage.state.rounds < proven + ALARM + 1:
        stage.sketches.clear()
        offered(stage)
        rules[stage.state.rounds] = stage.round.rule
        stage.reduce()
        stage.persist()
    assert set(rules.values()) == {"geometric median", "mean"}
    assert [number for number, rule in rules.items() if rule == "mean"] == [proven + ALARM + 1]


def test_false_accusation_is_dismissed_and_the_accuser_audited() -> None:
    stage, trainers = opened()
    ann, record = doubted(stage, trainers[0]), stage.member(trainers[0]).reliability
    record.accused_by = {"eve": 1}
    audited(stage, ann, rounds=3)
    assert (record.in_doubt, record.accused_by, record.cleared_by) == (False, {}, frozenset())
    assert stage.member(trainers[-1]).reliability.in_doubt
    assert stage.state.dismissed["eve"] == 1
    assert not stage.state.in_quarantine(record)


@pytest.mark.parametrize(("people", "proof"), [(3, 2), (4, 2), (5, 3)])
def test_proof_takes_two_people_or_three_if_four_others_may_audit(people: int, proof: int) -> None:
    stage, trainers = opened(people=PEOPLE[:people])
    eve = doubted(stage, trainers[-1])
    stage.sketches[eve.peer] = FALSE
    rounds = 0
    while "refused" not in notes(audited(stage, eve)) and rounds < 20:
        rounds += 1
    assert stage.state.in_quarantine(stage.member(eve).reliability)
    (note,) = [each for each in stage.said if isinstance(each, e.Note) and each.kind == "refused"]
    assert len(note.names) == 1 + proof


def test_machine_whose_accusations_were_dismissed_twice_audits_no_more() -> None:
    stage, (ann, bob, *_) = opened()
    doubted(stage, ann)
    stage.state.dismissed = Counter(dict.fromkeys(set(PEOPLE) - {bob.person}, DISMISSALS))
    assert {auditor for auditor, _ in offered(stage)} == {bob.peer}


def test_two_liars_among_five_prove_nothing() -> None:
    """Dan and eve accuse ann in turn. Each of the other two clears her first, so accusers never lead by two."""
    stage, (ann, *others) = opened()
    record = stage.member(doubted(stage, ann)).reliability
    record.accused_by, record.cleared_by = {"eve": 1}, frozenset({"bob"})
    for _ in range(6):
        for auditor, asked in offered(stage):
            lies = stage.state.members[auditor].person in ("dan", "eve")
            answer(stage, auditor, asked, sketch=FALSE if lies else SKETCH)
        stage.reduce()
        stage.persist()
    assert not stage.state.in_quarantine(record)
    assert others


@pytest.mark.parametrize(
    ("accusers", "clearers", "is_proven"),
    [
        (("bob", "cem", "dan"), (), False),  # they may have been asked first
        (("bob", "cem", "dan"), ("eve", "fay"), False),
        (("bob", "cem", "dan", "eve"), (), True),  # most of six
        (("bob", "cem", "dan", "eve"), ("fay", "gus"), True),
        (("bob", "cem"), (), False),
    ],
)
def test_proof_against_seven_takes_the_majority(
    accusers: tuple[str, ...], clearers: tuple[str, ...], *, is_proven: bool
) -> None:
    stage, trainers = opened(people=SEVEN, trusted=frozenset(SEVEN) - {"ann"})
    for person in (*clearers, *accusers):
        (auditor,) = [trainer for trainer in trainers if trainer.person == person]
        judged_by(stage, trainers[0], auditor, SKETCH if person in clearers else FALSE)
    assert stage.member(trainers[0]).reliability.is_proven_false == is_proven


def judged_by(stage: Stage, audited: Trainer, auditor: Trainer, sketch: bytes) -> None:
    """Drive a round in which only this auditor is free, and answers with this sketch."""
    stage.member(audited).reliability.in_doubt = True
    for trainer in stage.trainers.values():
        stage.member(trainer).reliability.audited_in = -REST if trainer is auditor else stage.state.rounds + 9
    for peer, asked in offered(stage):
        assert peer == auditor.peer
        answer(stage, peer, asked, sketch=sketch if stage.state.audits[asked.number].peer == audited.peer else SKETCH)
    stage.reduce()
    stage.persist()


def test_of_nine_people_five_must_have_judged() -> None:
    people = (*SEVEN, "hal", "ida")
    stage, (ann, *others) = opened(people=people, trusted=frozenset(people) - {"ann"})
    record = stage.member(ann).reliability
    for number, auditor in enumerate(others[:5], start=1):
        judged_by(stage, ann, auditor, SKETCH if number == 1 else FALSE)
        assert record.is_proven_false == (number == JUDGES), "four accuse, one clears"


def test_strangers_who_cleared_each_other_prove_nothing_against_the_rest() -> None:
    """In the beginning, no one is trusted and few have passed an audit, perhaps by an accomplice."""
    stage, (ann, bob, cem, *_) = opened(people=SEVEN)
    for trainer in (bob, cem):
        stage.member(trainer).reliability.audits_passed = 1
        judged_by(stage, ann, trainer, FALSE)
    assert stage.member(ann).reliability.accused_by.keys() == {"bob", "cem"}
    assert not stage.member(ann).reliability.is_proven_false


def test_no_shortage_readmits_a_machine_whose_work_was_proven_false() -> None:
    stage, trainers = opened()
    eve = doubted(stage, trainers[-1])
    stage.sketches[eve.peer] = FALSE
    audited(stage, eve, rounds=PROVEN)
    record = stage.member(eve).reliability
    assert record.is_proven_false
    stage.state.override.is_on = True
    assert not is_asked(stage.state, record)
    assert not is_counted(stage.state, record)
    record.included(8)
    assert is_asked(stage.state, record)


def test_passed_audit_is_stored_with_the_entry_up_to_which_work_counts_as_checked() -> None:
    stage, (ann, *_) = opened()
    doubted(stage, ann)
    commands = audited(stage, ann, rounds=2)
    checked = [each for each in commands if isinstance(each, e.Checked) and each.peer == ann.peer]
    assert [(each.index, each.passed) for each in checked] == [(1, 1), (2, 2)]
    commands = audited(stage, ann, honest=False)
    assert stage.member(ann).reliability.checked_index == 2


def test_an_unclear_result_accuses_nobody_but_is_looked_into() -> None:
    stage, trainers = opened()
    ann = doubted(stage, trainers[0])
    for auditor, asked in offered(stage):
        answer(stage, auditor, asked, loss_sum=stage.state.audits[asked.number].loss_sum * 1.06)
    stage.reduce()
    stage.persist()
    assert stage.member(ann).reliability.in_doubt
    assert not stage.member(ann).reliability.accused_by
    audited(stage, ann, rounds=CLEARED)
    assert not stage.member(ann).reliability.in_doubt


def test_only_audited_people_audit_once_there_are_any() -> None:
    stage, trainers = opened()
    ann, bob, *_ = trainers
    stage.member(bob).reliability.audits_passed = 1
    stage.member(ann).reliability.in_doubt = True
    assert {auditor for auditor, _ in offered(stage)} == {bob.peer}
    assert bob.peer not in {audit.peer for audit in stage.state.audits.values()}, "nobody's word on bob counts yet"


def test_people_for_whom_the_organizer_vouches_audit_from_the_first_step() -> None:
    stage, (ann, bob, *_) = opened(trusted=frozenset({"bob"}))
    stage.member(ann).reliability.in_doubt = True
    assert {auditor for auditor, _ in offered(stage)} == {bob.peer}
