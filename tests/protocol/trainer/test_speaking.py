"""The messages that a trainer sends unprompted, and when."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer.speaking import HEARTBEAT_S, HELLO_S, LONGEST_HELLO_S, REPORT_S
from tests.protocol.identities import RUN
from tests.protocol.trainer.stage import Stage, greeting, ready, unit, void

RELAY = PeerId("e" * 32)


def test_a_hello_says_everything_that_is_held() -> None:
    stage = ready(0)
    stage.offers()
    stage.plans()
    stage.commits(1, own=stage.contribution((0, 3)))
    stage.lease(1, 2, 3)
    stage.computes()
    stage.hears(m.Rehello(run=RUN, fence=4))
    hello = stage.heard(m.Hello)[-1]
    assert (hello.done, hello.undone) == ((m.DoneUnit(unit(1), 1),), (unit(2), unit(3)))
    assert (hello.step, hello.log_index, hello.fence, hello.digest) == (1, 1, 4, "b" * 16)
    assert hello.carried == stage.core.carried > 0
    assert hello.in_doubt == ()


def test_it_says_where_it_can_be_dialled() -> None:
    stage = Stage()
    stage.core.url, stage.core.fingerprint = "wss://192.0.2.1:4000/", "f" * 64
    stage.hears(m.Rehello(run=RUN, fence=1))
    hello = stage.heard(m.Hello)[-1]
    assert (hello.url, hello.fingerprint, hello.reduces) == ("wss://192.0.2.1:4000/", "f" * 64, True)


def test_reach_is_sent_on_change_with_a_hello_and_regularly() -> None:
    stage = ready(0)
    stage.handle(e.Reached((RELAY,)))
    stage.handle(e.Reached((RELAY,)))
    stage.hears(m.Rehello(run=RUN, fence=1), greeting())
    here = m.Reaches(run=RUN, listeners=(RELAY,))
    assert stage.heard(m.Reaches) == [here, here]
    said = [message for _ in range(40) for message in stage.waits(1.0)]
    assert [message for message in said if isinstance(message, m.Reaches)] == [here]
    stage.handle(e.Reached(()))
    assert stage.heard(m.Reaches)[-1] == m.Reaches(run=RUN, listeners=())
    assert m.Reaches not in {type(message) for _ in range(40) for message in stage.waits(1.0)}


def test_a_hello_names_the_attempt_whose_outcome_is_not_known() -> None:
    stage = ready(0)
    stage.offers()
    stage.plans()
    stage.plans(attempt=2)
    stage.hears(m.Rehello(run=RUN, fence=1))
    assert stage.heard(m.Hello)[-1].in_doubt == (m.InDoubt(0, 1, 2),)
    stage.hears_commit(1, own=stage.contribution())
    stage.hears(m.Rehello(run=RUN, fence=1))
    assert stage.heard(m.Hello)[-1].in_doubt == (), "it is being applied"


def test_reports_say_how_far_the_trainer_has_heard_of_a_round() -> None:
    stage = ready(0)

    def heard() -> m.Heard | None:
        (said,) = stage.waits(HEARTBEAT_S)
        assert isinstance(said, m.Report | m.Heartbeat)
        return said.heard

    assert heard() is None
    stage.offers()
    assert heard() == m.Heard(0, 1, 1, has_plan=False)
    stage.plans()
    stage.plans(attempt=2)
    assert heard() == m.Heard(0, 1, 2, has_plan=True)
    assert stage.core.round is not None
    stage.hears(m.Drop(run=RUN, step=0, fence=1, attempt=2, slot=stage.core.round.slot or 0))
    assert heard() == m.Heard(0, 1, 2, has_plan=True, dropped=1)
    stage.hears_commit(1, own=stage.contribution())
    assert heard() is None, "it is being applied"


def test_a_host_that_knows_less_learns_the_fence_from_the_answer() -> None:
    stage = ready()
    stage.hears(m.Rehello(run=RUN, fence=5), m.Rehello(run=RUN, fence=2))
    assert [hello.fence for hello in stage.heard(m.Hello)] == [5, 5]


def test_trainer_is_never_silent_for_over_two_seconds() -> None:
    stage = Stage()
    assert stage.waits(HEARTBEAT_S - 0.1) == []
    assert stage.waits(0.1) == [m.Heartbeat(run=RUN, index=-1)]
    stage.hears(m.Rehello(run=RUN, fence=1), greeting(reconciled=False))
    assert [type(said) for _ in range(4) for said in stage.waits(HEARTBEAT_S)] == [m.Heartbeat] * 4


def test_at_the_head_it_says_by_a_report_that_it_is_there() -> None:
    """The trainer repeats its report, in case the first one was lost."""
    stage = ready(0)
    (report,) = stage.waits(HEARTBEAT_S)
    assert isinstance(report, m.Report)
    assert (report.done, report.step, report.index, report.digest) == ((m.DoneUnit(unit(0), 0),), 0, 0, "a" * 16)
    assert stage.waits(HEARTBEAT_S - 0.1) == []


def test_reports_are_rate_limited_unless_one_fills_the_quota() -> None:
    stage = ready()
    stage.now += 1
    stage.lease(*range(9), quota=36)
    for _ in range(4):
        stage.computes()
    assert [len(report.done) for report in stage.heard(m.Report)] == [1]
    stage.now += 2 * REPORT_S
    stage.computes()
    assert [report.undone for report in stage.heard(m.Report)] == [8, 4]
    stage.computes(4)
    assert [len(report.done) for report in stage.heard(m.Report)] == [1, 5, 9]


def test_host_that_does_not_know_the_leases_gets_no_report() -> None:
    """The heartbeat still tells the host where this log ends, so the host sends the missing entries."""
    stage = ready(0)
    stage.hears(m.Rehello(run=RUN, fence=2), greeting(fence=2, index=1, step=1, reconciled=False))
    stage.hush()
    assert stage.waits(HEARTBEAT_S) == [m.Heartbeat(run=RUN, index=0)]
    stage.commits(1, fence=2)
    assert [hello.step for hello in stage.heard(m.Hello)] == [1]
    assert stage.heard(m.Report) == []


def test_unanswered_hello_is_repeated_with_growing_pauses() -> None:
    stage = ready()
    stage.hears(m.Rehello(run=RUN, fence=1))
    pauses = []
    for _ in range(6):
        began = stage.now
        while not any(isinstance(said, m.Hello) for said in stage.waits(1.0)):
            assert stage.now - began <= LONGEST_HELLO_S
        pauses.append(stage.now - began)
    assert pauses == [HELLO_S, 10, 20, 40, 60, 60]
    stage.hears(greeting())
    stage.lease(0)
    assert stage.core.undone == (unit(0),), "one answer is enough"
    assert not any(isinstance(said, m.Hello) for _ in range(100) for said in stage.waits(1.0))


def test_greeting_of_a_new_host_answers_its_own_rehello() -> None:
    stage = ready()
    stage.hears(m.Rehello(run=RUN, fence=1), m.Rehello(run=RUN, fence=2), greeting(fence=2))
    stage.lease(0, fence=2)
    assert stage.core.undone == (unit(0),)


def test_on_a_new_link_nothing_is_waited_for_any_more() -> None:
    stage = ready()
    stage.hears(m.Rehello(run=RUN, fence=1))
    stage.handle(e.Linked())
    stage.lease(0)
    assert stage.core.undone == (unit(0),)


def test_offer_is_repeated_after_a_greeting_in_its_round() -> None:
    stage = ready(0)
    offer = stage.offers()
    stage.hush()
    stage.hears(m.Rehello(run=RUN, fence=1), greeting())
    assert stage.heard(m.Offer) == [offer]
    stage.hears(void())
    stage.hush()
    stage.hears(greeting())
    assert stage.heard(m.Offer) == []


def test_after_goodbye_it_says_nothing() -> None:
    stage = ready(0)
    stage.handle(e.Left())
    assert stage.said == [m.Leave(run=RUN)]
    stage.hears(m.Rehello(run=RUN, fence=1))
    assert stage.waits(100) == []
    assert stage.said == [m.Leave(run=RUN)]


@pytest.mark.parametrize("seconds", [0.0, 86_400.0])
def test_a_day_of_sleep_is_one_sentence(seconds: float) -> None:
    stage = ready(0)
    stage.waits(seconds)
    assert len(stage.waits(HEARTBEAT_S)) == 1
