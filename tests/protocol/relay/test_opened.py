"""One module opens the site's signed messages for a relay. An invalid message becomes a numbered problem."""

from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import PLAN, RECORD, Signed, sign
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.relay.opened import OpenCommit, Opened, OpenPlan, open_message, run_of
from peer_agent.protocol.sealed import head_of
from tests.protocol.identities import SITE_KEY, SITE_PUBLIC, STRANGERS_KEY
from tests.protocol.relay.stage import ME, OTHER, RUN, commit_of, plan_of, planned


def test_everything_that_the_site_says_can_be_opened() -> None:
    signed, opened = {m.Planned, m.Commit}, {OpenPlan, OpenCommit}
    assert set(get_args(Opened)) == set(get_args(m.TO_PEER)) - signed | opened


def test_a_plan_and_a_commit_come_out_as_they_went_in() -> None:
    plan, commit = plan_of(), commit_of(4)
    assert open_message(planned(plan.plan), SITE_PUBLIC) == plan
    message = said(commit)
    assert open_message(message, SITE_PUBLIC) == commit
    assert (plan.run, commit.run, run_of(planned(plan.plan)), run_of(message)) == (RUN, RUN, RUN, RUN)
    rehello = m.Rehello(run=RUN, fence=3)
    assert open_message(rehello, SITE_PUBLIC) is rehello


def test_spans_kept_from_an_earlier_attempt_are_nobodys_work() -> None:
    plan = plan_of().plan
    kept = replace(plan.spans[0], root=b"k" * 32)
    opened = OpenPlan(replace(plan, spans=(kept, plan.spans[1])), plan.slots)
    assert list(opened.given_to(ME)) == [1]
    assert opened.given_to(OTHER) == {}


def said(commit: OpenCommit) -> m.Commit:
    return m.Commit(run=RUN, fence=3, record=commit.sealed.head, contributions=commit.sealed.contributions)


def number_of(message: m.TO_PEER) -> str:
    with pytest.raises(Problem) as caught:
        open_message(message, SITE_PUBLIC)
    return caught.value.fault.code


def test_what_others_signed_is_refused() -> None:
    payload = msgspec.msgpack.encode(head_of(plan_of().plan))
    assert number_of(m.Planned(plan=sign(STRANGERS_KEY, PLAN, payload))) == "E218"
    assert number_of(m.Planned(plan=sign(SITE_KEY, RECORD, payload))) == "E218"
    forged = sign(STRANGERS_KEY, RECORD, commit_of(1).sealed.head.payload)
    assert number_of(m.Commit(run=RUN, fence=3, record=forged)) == "E218"


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x80", b"\x91" * 2000])
def test_what_cannot_be_decoded_is_a_numbered_problem(payload: bytes) -> None:
    assert number_of(m.Planned(plan=sign(SITE_KEY, PLAN, payload))) == "E206"
    assert number_of(m.Commit(run=RUN, fence=3, record=sign(SITE_KEY, RECORD, payload))) == "E218"
    with pytest.raises(Problem, match="E206"):
        run_of(m.Planned(plan=Signed(payload, bytes(64))))


def test_a_record_without_a_loss_is_a_numbered_problem() -> None:
    """In JSON, a loss that is not a number is encoded as null."""
    payload = commit_of(1).sealed.head.payload.replace(b'"loss":1.0', b'"loss":null')
    assert b"null" in payload
    assert number_of(m.Commit(run=RUN, fence=3, record=sign(SITE_KEY, RECORD, payload))) == "E218"


def test_another_runs_record_is_refused() -> None:
    assert number_of(replace(said(commit_of(1)), run=RunId("cd" * 16))) == "E206"


SPAN = plan_of().plan.spans[0]
SLOT = plan_of().plan.slots[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"elements": 0},
        {"chunk_elements": 0},
        {"spans": ()},
        {"spans": (SPAN,)},
        {"spans": (SPAN, SPAN)},
        {"spans": (replace(SPAN, stop=4), replace(SPAN, first=4, stop=4))},
        {"spans": (replace(SPAN, stop=5),)},
        {"slots": (replace(SLOT, weights=(m.Weight(0, 5, 1),)),)},
        {"slots": (replace(SLOT, weights=(m.Weight(2, 2, 1),)),)},
    ],
)
def test_a_plan_that_nobody_can_work_by_is_refused(changes: dict[str, Any]) -> None:
    assert number_of(planned(plan_of(**changes).plan)) == "E206"


@pytest.mark.parametrize("changes", [{"step": -1}, {"spans": (replace(SPAN, span=2**16, stop=4),)}])
def test_a_number_that_no_plan_has_is_not_decoded(changes: dict[str, Any]) -> None:
    payload = msgspec.msgpack.encode(replace(head_of(plan_of().plan), **changes))
    assert number_of(m.Planned(plan=sign(SITE_KEY, PLAN, payload), slots=plan_of().plan.slots)) == "E206"
