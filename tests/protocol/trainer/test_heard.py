"""Messages on the control link become events of the core."""

from peer_agent.protocol.log.records import seal
from peer_agent.protocol.sealed import SealedCommit, planned_for, seal_plan
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer.advance import heard
from tests.protocol.identities import SITE_KEY, SITE_PUBLIC
from tests.protocol.trainer.stage import ME, cut, plan, record


def test_plans_and_commits_are_opened_and_nothing_else() -> None:
    planned = planned_for(seal_plan(SITE_KEY, plan()), ME)
    assert isinstance(heard(planned, SITE_PUBLIC, ME), e.PlanHeard)
    commit = SealedCommit(seal(SITE_KEY, record(1)), record(1)).to(ME, 1)
    assert isinstance(heard(commit, SITE_PUBLIC, ME), e.CommitHeard)
    assert heard(cut(), SITE_PUBLIC, ME) == e.Heard(cut())
