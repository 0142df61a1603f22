"""The table decides about every overdue item, and each of its rows can be reached."""

from itertools import chain, combinations

import pytest

from peer_agent.protocol.coordinator.acting import CARRIED_OUT_BY
from peer_agent.protocol.coordinator.decisions import ROWS, Action, Fact, Kind, Row, decide

BY_EVENT = {(Kind.REPLICA, Action.PROCEED)}  # carried out by the cut itself


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind.name}-{'-'.join(fact.name for fact in row.facts)}")
def test_each_row_decides_where_its_facts_and_no_others_hold(row: Row) -> None:
    assert decide(row.kind, set(row.facts).__contains__) is row


def test_every_kind_has_a_row_and_every_decision_is_carried_out() -> None:
    assert {row.kind for row in ROWS} == set(Kind)
    decisions = {(row.kind, row.action) for row in ROWS if row.action is not Action.WAIT}
    assert decisions == CARRIED_OUT_BY.keys() | BY_EVENT


def test_every_fact_and_every_action_is_in_a_row() -> None:
    assert {fact for row in ROWS for fact in row.facts} == set(Fact)
    assert {row.action for row in ROWS} == set(Action)


def test_one_members_word_against_another_penalises_nobody() -> None:
    """Whatever else holds, a disputed gradient leads to no failure of its sender, and voids no round."""
    facts = [fact for fact in Fact if fact is not Fact.DISPUTED]
    for among in chain.from_iterable(combinations(facts, count) for count in range(5)):
        row = decide(Kind.UPLOAD, {Fact.DISPUTED, *among}.__contains__)
        assert row is not None
        assert row.failure is None
        assert row.action in {Action.WAIT, Action.DROP, Action.REPLACE}


def test_nothing_is_decided_where_no_row_holds() -> None:
    assert decide(Kind.COPY, set().__contains__) is None
    assert decide(Kind.SPAN, {Fact.SILENT}.__contains__) is None
