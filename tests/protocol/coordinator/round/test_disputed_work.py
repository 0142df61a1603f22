"""The site computes disputed work again: it tells bad memory from lies, and accusers that were right from others."""

from collections import Counter

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.events import Recheck, Verdict
from peer_agent.protocol.coordinator.reliability import Quarantine
from peer_agent.protocol.coordinator.round.audits import SITE_AFTER, SITE_CHECKS, SITE_NEEDS, Work, work_of
from tests.protocol.coordinator.round.test_audits import (
    FALSE,
    NOBODY,
    PEOPLE,
    SEVEN,
    answer,
    audited,
    doubted,
    offered,
    opened,
)
from tests.protocol.coordinator.stage import Stage, Trainer, notes, sent

LETTERS = {"f": Verdict.FAILED, "p": Verdict.PASSED, "u": Verdict.UNCLEAR}


def test_site_decides_if_one_other_person_is_there() -> None:
    stage, (ann, eve) = opened(people=("ann", "eve"))
    doubted(stage, eve)
    stage.sketches[eve.peer] = FALSE
    asked = [each for each in audited(stage, eve, rounds=6) if isinstance(each, e.Recheck)]
    assert len(asked) == 1, "once"
    assert [list(seen.gradients) for seen in asked[0].sketched] == [[eve.peer]] * SITE_NEEDS
    assert {seen.gradients[eve.peer].sketch for seen in asked[0].sketched} == {FALSE}
    assert not stage.member(eve).reliability.is_proven_false
    commands = found(stage, eve, {4: "p", 5: "f", 6: "f"})
    (note,) = [each for each in commands if isinstance(each, e.Note) and each.kind == "refused"]
    assert note.text.startswith("eve (eve) contributed gradients other than those of its samples, as the site found")
    assert note.names == ("eve",)
    assert [(each.peer, each.index) for each in commands if isinstance(each, e.Reverse)] == [(eve.peer, 4)]
    record = stage.member(eve).reliability
    assert stage.state.in_quarantine(record)
    assert (record.in_doubt, record.site_asked) == (True, False), "its next work is checked as well"
    assert not found(stage, eve, {4: "p", 5: "f", 6: "f"}), "each finding counts once"
    assert ann.person == "ann"


def test_machine_that_the_site_clears_is_in_doubt_no_more_and_its_accuser_is() -> None:
    stage, (ann, eve) = opened(people=("ann", "eve"))
    doubted(stage, eve)
    audited(stage, eve, rounds=4, honest=False)
    assert stage.member(eve).reliability.accused_by.keys() == {"ann"}
    found(stage, eve, dict.fromkeys(stage.member(eve).reliability.evidence, "p"))
    assert not stage.member(eve).reliability.in_doubt
    assert stage.member(ann).reliability.in_doubt


def disputed(stage: Stage, ann: Trainer) -> Recheck:
    """Let the fourth of ann's contributions be found false by one auditor, and let the others clear her.

    Return what the site is asked.
    """
    audited_by_nobody(stage, rounds=3)
    doubted(stage, ann)
    audited(stage, ann, honest=False)
    (asked,) = [each for each in audited(stage, ann, rounds=3) if isinstance(each, e.Recheck)]
    return asked


def audited_by_nobody(stage: Stage, rounds: int) -> None:
    for _ in range(rounds):
        offered(stage)
        stage.state.audits.clear()
        stage.reduce()
        stage.persist()


def found(stage: Stage, ann: Trainer, verdicts: dict[int, str], number: int = 1) -> list[e.Command]:
    """Tell the coordinator the site's verdicts on ann's contributions: "p", "u" or "f" by log entry."""
    each = tuple(e.Finding(ann.peer, index, LETTERS[letter]) for index, letter in verdicts.items())
    event = e.Directed("running", trusted=stage.state.trusted, findings=frozenset({e.Findings(number, each)}))
    return [each for each in stage.handle(event) if isinstance(each, e.Send | e.Note | e.Reverse | e.Heeded)]


def test_site_computes_the_accused_contribution_and_those_before_it() -> None:
    stage, (ann, *_) = opened(people=SEVEN)
    asked = disputed(stage, ann)
    assert asked.about == ann.peer
    assert [list(seen.gradients) for seen in asked.sketched] == [[ann.peer]] * SITE_CHECKS
    assert [seen.index for seen in asked.sketched] == [1, 2, 3, 4, 7], "1 to 4: before ann could know"
    assert not stage.member(ann).reliability.in_doubt
    assert sum(stage.state.dismissed.values()) == 1


def test_machine_with_bad_memory_is_paused_and_only_its_owner_told() -> None:
    stage, (ann, *_) = opened(people=SEVEN)
    disputed(stage, ann)
    record = stage.member(ann).reliability
    for number, rounds in enumerate((1, 4, 16, 16), 1):
        record.refusals = Quarantine()
        sent, heeded = found(stage, ann, {2: "p", 3: "p", 3 + number: "f"}, number)
        assert isinstance(sent, e.Send)
        assert isinstance(sent.message, m.Notice)
        assert (sent.peers, sent.message.code) == ((ann.peer,), "E147")
        assert heeded == e.Heeded(number)
        assert record.refusals.until_round == stage.state.rounds + rounds, "longer each time"
        assert record.in_doubt, "its next work is audited"
    assert sum(stage.state.dismissed.values()) == 0, "the accuser was right"


def test_accuser_that_the_site_contradicts_stays_dismissed() -> None:
    stage, (ann, *_) = opened(people=SEVEN)
    disputed(stage, ann)
    assert found(stage, ann, {2: "p", 3: "p", 4: "p"}) == [e.Heeded(1)]
    assert sum(stage.state.dismissed.values()) == 1
    assert not stage.member(ann).reliability.overruled


def test_each_accuser_is_judged_by_the_contribution_that_it_accused() -> None:
    stage, (ann, *_) = opened(people=SEVEN)
    disputed(stage, ann)
    stage.member(ann).reliability.overruled = frozenset({("bob", 4), ("bob", 7), ("eve", 5), ("fay", 6)})
    stage.state.dismissed = Counter(bob=2, eve=1, fay=1)
    found(stage, ann, {3: "p", 4: "f", 5: "p", 6: "u"})
    assert stage.state.dismissed == Counter(bob=1, eve=1, fay=1)
    assert stage.member(ann).reliability.overruled == {("fay", 6), ("bob", 7)}


def test_findings_during_a_doubt_settle_its_accusations() -> None:
    stage, (ann, *_) = opened(people=SEVEN)
    record = stage.member(doubted(stage, ann)).reliability
    record.accused_by, record.site_asked = {"bob": 4, "eve": 5, "fay": 9}, True
    found(stage, ann, {3: "p", 4: "f", 5: "p"})
    assert +stage.state.dismissed == Counter(eve=1)
    assert (record.in_doubt, record.accused_by, record.site_asked) == (True, {"fay": 9}, False)


def test_liar_that_is_honest_while_in_doubt_is_proven_false_by_its_earlier_work() -> None:
    stage, (ann, *_) = opened(people=SEVEN)
    disputed(stage, ann)
    commands = found(stage, ann, {2: "f", 3: "f", 4: "f"})
    assert [(each.peer, each.index) for each in commands if isinstance(each, e.Reverse)] == [(ann.peer, 1)]
    assert "refused" in notes(commands)


def test_known_false_contribution_counts_once() -> None:
    stage, (ann, *_) = opened(people=SEVEN)
    disputed(stage, ann)
    found(stage, ann, {3: "p", 4: "f"})
    assert found(stage, ann, {3: "p", 4: "f"}, number=2) == [e.Heeded(2)]
    commands = found(stage, ann, {3: "p", 4: "f", 5: "f"}, number=3)
    assert "refused" not in notes(commands), "5 is another single one"
    assert stage.member(ann).reliability.faults == 2


def test_answer_about_an_earlier_doubt_does_not_end_a_new_one() -> None:
    stage, (ann, *_) = opened(people=SEVEN)
    disputed(stage, ann)
    doubted(stage, ann)
    record = stage.member(ann).reliability
    record.site_asked, record.evidence, record.accused_by = False, {}, {"bob": 7}
    found(stage, ann, {2: "p", 3: "p", 4: "p"})
    assert (record.in_doubt, record.accused_by) == (True, {"bob": 7})


def test_machine_that_is_away_is_told_when_it_is_back() -> None:
    stage, (ann, *_) = opened(people=SEVEN)
    disputed(stage, ann)
    stage.handle(e.Lost(ann.peer))
    assert found(stage, ann, {2: "p", 3: "p", 4: "f"}) == [e.Heeded(1)]
    said = len(stage.said)
    for _ in range(2):
        stage.hello(ann)
    told = sent(stage.said[said:], m.Notice, ann.peer)
    assert [each.code for each in told if isinstance(each, m.Notice)] == ["E147"], "once"


@pytest.mark.parametrize(
    ("verdicts", "work"),
    [
        ("", None),
        ("fpp", Work.FAULTY),
        ("ppf", Work.FAULTY),
        ("ffp", Work.FALSE),
        ("fp", Work.FAULTY),
        ("f", Work.FALSE),
        ("fu", None),
        ("fuu", None),
        ("ffu", Work.FALSE),
        ("ff", Work.FALSE),
        ("ffpp", Work.FAULTY),
        ("fffpp", Work.FALSE),
        ("fffuuu", Work.FALSE),
        ("uuu", None),
        ("ppu", None),
        ("ppp", Work.TRUE),
        ("pp", None),
    ],
)
def test_one_false_contribution_among_true_ones_is_bad_memory(verdicts: str, work: Work | None) -> None:
    assert work_of([LETTERS[letter] for letter in verdicts]) is work


def test_findings_wait_for_the_host_after_a_rollback() -> None:
    stage, (ann, eve) = opened(people=("ann", "eve"))
    back = e.Directed(
        "running",
        back_to=e.Target(0, 0, "f" * 64),
        trusted=NOBODY,
        findings=frozenset({e.Findings(1, (e.Finding(eve.peer, 5, Verdict.FAILED),))}),
    )
    assert not [each for each in stage.handle(back) if isinstance(each, e.Reverse)]
    assert stage.state.heeded == frozenset()
    assert ann.person == "ann"


def test_site_decides_about_a_doubt_that_lasts() -> None:
    stage, trainers = opened()
    eve = doubted(stage, trainers[-1])
    for number in range(SITE_AFTER + 2):
        for auditor, asked in offered(stage, seed=number):
            answer(stage, auditor, asked, sketch=b"")  # nobody can tell
        stage.reduce()
        stage.persist()
        asked_in = [each for each in stage.said if isinstance(each, e.Recheck)]
        assert bool(asked_in) == (stage.state.rounds >= SITE_AFTER)
    assert len(asked_in) == 1
    assert [list(seen.gradients) for seen in asked_in[0].sketched] == [[eve.peer]] * len(asked_in[0].sketched)


def test_site_is_not_asked_if_people_can_decide() -> None:
    stage, trainers = opened(people=PEOPLE[:3])
    eve = doubted(stage, trainers[-1])
    stage.sketches[eve.peer] = FALSE
    assert not [each for each in audited(stage, eve, rounds=6) if isinstance(each, e.Recheck)]
