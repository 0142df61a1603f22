"""Plans and records are verified once, and reduced to this trainer's part."""

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import PLAN, Signed, sign
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import digest_of, seal
from peer_agent.protocol.sealed import SealedCommit, own_part, planned_for, planned_whole, seal_plan
from peer_agent.protocol.trainer.opened import open_commit, open_plan, opened_plan
from tests.protocol.identities import SITE_KEY, SITE_PUBLIC, STRANGERS_KEY
from tests.protocol.trainer.stage import ME, OTHER, plan, record, unit

OWN = {"accumulator": "e" * 32, "units": (unit(1),), "ranges": ((1, 3), (5, 6))}


def test_a_plan_names_our_slot_and_its_number() -> None:
    sealed = seal_plan(SITE_KEY, plan(attempt=4, round=3))
    opened = open_plan(planned_for(sealed, ME), SITE_PUBLIC, ME)
    assert (opened.step, opened.fence, opened.attempt, opened.round, opened.number) == (0, 1, 4, 3, 1)
    assert opened.own is not None
    assert opened.own.peer == ME
    assert opened_plan(own_part(plan(peer=OTHER), ME)).own is None


def test_of_a_whole_plan_our_slot_is_one_of_them() -> None:
    whole = planned_whole(seal_plan(SITE_KEY, plan()))
    mine = open_plan(planned_for(seal_plan(SITE_KEY, plan()), ME), SITE_PUBLIC, ME)
    opened = open_plan(whole, SITE_PUBLIC, ME)
    assert (opened.own, opened.number, opened.attempt) == (mine.own, mine.number, mine.attempt)
    assert open_plan(planned_whole(seal_plan(SITE_KEY, plan(peer=OTHER))), SITE_PUBLIC, ME).own is None
    with pytest.raises(Problem, match="E218"):
        open_plan(m.Planned(plan=whole.plan, slots=whole.slots[:-1]), SITE_PUBLIC, ME)


def test_a_record_says_where_our_part_was_included() -> None:
    entry = seal(SITE_KEY, record(7, OWN))
    sealed = SealedCommit(entry, record(7, OWN))
    opened = open_commit(sealed.to(ME, 2, hash_state=True), SITE_PUBLIC, ME)
    assert opened.own is not None
    assert (opened.own.accumulator, opened.own.units) == (OWN["accumulator"], OWN["units"])
    assert opened.own.included == ((1, 3), (5, 6))
    assert (opened.index, opened.step, opened.fence, opened.digest) == (7, 7, 2, digest_of(entry))
    assert (opened.snapshot, opened.hash_state) == (False, True)
    assert open_commit(sealed.to(OTHER, 2), SITE_PUBLIC, OTHER).own is None


def test_of_a_whole_record_our_part_is_one_of_them() -> None:
    sealed = SealedCommit(seal(SITE_KEY, record(7, OWN)), record(7, OWN))
    whole = sealed.whole(2, snapshot=True, hash_state=True)
    opened, mine = (open_commit(each, SITE_PUBLIC, ME) for each in (whole, sealed.to(ME, 2)))
    assert opened.own is not None
    assert (opened.own, opened.contribution, opened.digest) == (mine.own, mine.contribution, mine.digest)
    assert (opened.snapshot, opened.hash_state) == (True, True)
    with pytest.raises(Problem, match="E218"):
        open_commit(replace(whole, contributions=b"[]"), SITE_PUBLIC, ME)


def test_what_the_site_has_not_signed_is_not_opened() -> None:
    for signed in (seal_plan(STRANGERS_KEY, plan()).signed, Signed(b"{}", bytes(64))):
        with pytest.raises(Problem, match="E218"):
            open_plan(m.Planned(plan=signed), SITE_PUBLIC, ME)
    with pytest.raises(Problem, match="E206"):
        open_plan(m.Planned(plan=sign(SITE_KEY, PLAN, b"nonsense")), SITE_PUBLIC, ME)
    with pytest.raises(Problem, match="E218"):
        open_commit(SealedCommit(seal(STRANGERS_KEY, record(1)), record(1)).to(ME, 1), SITE_PUBLIC, ME)
