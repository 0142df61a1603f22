"""From a round's last span to the next round, with a database that refuses writes or answers twice."""

from itertools import pairwise

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.round.committing import PERSIST_PAUSE_S, PERSIST_PAUSES_S
from tests.protocol.coordinator.scenes import reducing
from tests.protocol.coordinator.stage import sent


def test_refusing_database_is_retried_after_doubling_pauses() -> None:
    """A regression: each refusal triggered the next write at once, until Python's stack overflowed."""
    stage, *_ = reducing()
    stage.reduce()
    asked = []
    for _ in range(2000):
        answer = stage.handle(e.Persisted("failed"))
        assert not any(isinstance(command, e.Persist) for command in answer)
        while not any(isinstance(command, e.Persist) for command in stage.wait(0.25)):
            assert stage.now < 10**6
        asked.append(stage.now)
        if len(asked) > 12:
            break
    gaps = [late - early for early, late in pairwise(asked)]
    assert gaps[0] == pytest.approx(2 * PERSIST_PAUSE_S, abs=0.3)
    assert gaps[-1] == pytest.approx(PERSIST_PAUSES_S, abs=0.3)
    assert all(late >= early - 0.3 for early, late in pairwise(gaps))
    assert stage.persist().step == 1


def test_nobody_is_told_of_a_step_before_the_database_has_it() -> None:
    stage, trainers, *_ = reducing()
    stage.reduce()
    stage.handle(e.Persisted("failed"))
    stage.wait(30)
    assert sent(stage.said, m.Commit) == []
    stage.persist()
    assert all(len(sent(stage.said, m.Commit, trainer.peer)) == 1 for trainer in trainers)


def test_whoever_lost_the_claim_stands_back() -> None:
    stage, *_ = reducing()
    stage.reduce()
    assert stage.handle(e.Persisted("stale")) == [e.Abdicate()]


def test_a_second_answer_of_the_database_changes_nothing() -> None:
    stage, *_ = reducing()
    stage.reduce()
    stage.persist()
    assert stage.handle(e.Persisted("committed", stage.state.sealed)) == []
    assert stage.state.step == 1
