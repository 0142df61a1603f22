"""Members and invitations of a run."""

from datetime import timedelta

import pytest
from django.db.models import Q
from django.utils import timezone

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from runs.access import access_joinable_run, access_peer_run, access_run, helped_runs, listed_runs, shut_out
from runs.ledger.standings import leaderboard
from runs.lifecycle import membership
from runs.lifecycle.drafts import change_visibility
from runs.models import Invitation, Member, Run
from tests.runs.factories import Owned, committed, owned

PUBLIC, UNLISTED, PRIVATE = Run.Visibility.PUBLIC, Run.Visibility.UNLISTED, Run.Visibility.PRIVATE


@pytest.fixture
def run(run: Run) -> Run:
    Run.objects.update(visibility=PRIVATE)
    run.refresh_from_db()
    return run


def is_let_in(run: Run, person: Person) -> bool:
    try:
        return access_run(slug=run.slug, viewer=person) == access_joinable_run(slug=run.slug, viewer=person)
    except Problem as problem:
        if problem.fault.code != "E305":
            raise
        return False


class TestByLink:
    def test_whoever_has_the_link_becomes_a_member(self, run: Run, volunteer: Person, stranger: Person) -> None:
        secret = membership.create_invitation(run=run).secret
        assert not is_let_in(run, volunteer)
        assert membership.accept_invitation(slug=run.slug, secret=secret, person=volunteer) == run
        assert is_let_in(run, volunteer)
        assert not is_let_in(run, stranger)
        assert list(listed_runs(volunteer)) == [run]
        assert list(listed_runs(stranger)) == []

    def test_the_secret_is_kept_nowhere(self, run: Run) -> None:
        secret = membership.create_invitation(run=run).secret
        stored = Invitation.objects.values().get()
        assert secret not in str(stored)
        assert len(stored["digest"]) == 64

    def test_a_link_is_good_for_so_many_people(self, run: Run, volunteer: Person, stranger: Person) -> None:
        secret = membership.create_invitation(run=run, most_uses=1).secret
        membership.accept_invitation(slug=run.slug, secret=secret, person=volunteer)
        with pytest.raises(Problem, match="E313"):
            membership.accept_invitation(slug=run.slug, secret=secret, person=stranger)
        assert not is_let_in(run, stranger)

    def test_accepting_twice_uses_one(self, run: Run, volunteer: Person) -> None:
        secret = membership.create_invitation(run=run, most_uses=2).secret
        for _ in range(2):
            membership.accept_invitation(slug=run.slug, secret=secret, person=volunteer)
        assert Invitation.objects.get().uses == Member.objects.count() == 1

    def test_a_link_ends_with_its_time(self, run: Run, volunteer: Person) -> None:
        secret = membership.create_invitation(run=run, lifetime=timedelta(days=1)).secret
        Invitation.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
        with pytest.raises(Problem, match="E313"):
            membership.accept_invitation(slug=run.slug, secret=secret, person=volunteer)

    def test_revoked_link_admits_no_newcomer_and_removes_no_member(
        self, run: Run, volunteer: Person, stranger: Person
    ) -> None:
        issued = membership.create_invitation(run=run)
        membership.accept_invitation(slug=run.slug, secret=issued.secret, person=volunteer)
        membership.revoke_invitation(invitation=issued.invitation)
        with pytest.raises(Problem, match="E313"):
            membership.accept_invitation(slug=run.slug, secret=issued.secret, person=stranger)
        assert is_let_in(run, volunteer)

    @pytest.mark.parametrize(("slug", "secret"), [("proverbs", "guess"), ("none", "")])
    def test_a_wrong_link_and_a_run_that_is_not_there_look_alike(
        self, run: Run, volunteer: Person, slug: str, secret: str
    ) -> None:
        secret = secret or membership.create_invitation(run=run).secret
        with pytest.raises(Problem, match="E313"):
            membership.accept_invitation(slug=slug, secret=secret, person=volunteer)

    def test_who_was_removed_does_not_come_back_by_the_link(self, run: Run, volunteer: Person) -> None:
        secret = membership.create_invitation(run=run).secret
        membership.accept_invitation(slug=run.slug, secret=secret, person=volunteer)
        membership.remove_member(member=Member.objects.get())
        with pytest.raises(Problem, match="E313"):
            membership.accept_invitation(slug=run.slug, secret=secret, person=volunteer)
        assert not is_let_in(run, volunteer)
        membership.add_member(run=run, name="teo")
        assert is_let_in(run, volunteer)

    def test_the_organizer_needs_no_link(self, run: Run, organizer: Person) -> None:
        secret = membership.create_invitation(run=run).secret
        membership.accept_invitation(slug=run.slug, secret=secret, person=organizer)
        assert not Member.objects.exists()


class TestByName:
    def test_a_name_in_any_case(self, run: Run, volunteer: Person) -> None:
        assert membership.add_member(run=run, name=" TEO ") == membership.add_member(run=run, name="Teo")
        assert is_let_in(run, volunteer)
        assert run.activity.filter(text="Amina added Teo.").count() == 1

    def test_somebody_who_is_not_here(self, run: Run) -> None:
        with pytest.raises(Problem, match="E314: There is no account named Zoë"):
            membership.add_member(run=run, name="Zoë")


class TestRemovedFromAPublicRun:
    @pytest.fixture(autouse=True)
    def is_public(self, run: Run, volunteer: Person) -> None:
        Run.objects.update(visibility=PUBLIC)
        run.refresh_from_db()

    def test_they_see_it_and_have_no_part_in_it(self, run: Run, volunteer: Person) -> None:
        membership.remove_person(run=run, name="Teo")
        assert access_run(slug=run.slug, viewer=volunteer) == run
        with pytest.raises(Problem, match="E324"):
            access_joinable_run(slug=run.slug, viewer=volunteer)
        with pytest.raises(Problem, match="E324"):
            access_peer_run(Q(pk=run.pk), person=volunteer, address=run.slug)
        assert not helped_runs(volunteer).exists()

    def test_nobody_else_notices(self, run: Run, stranger: Person) -> None:
        membership.remove_person(run=run, name="Teo")
        assert access_joinable_run(slug=run.slug, viewer=stranger) == run
        assert helped_runs(stranger).get() == run

    def test_what_they_gave_stays(self, run: Run, laptop: Owned) -> None:
        committed(run, (laptop.machine, 4))
        membership.remove_person(run=run, name="Teo")
        assert leaderboard(run)[0].name == "Teo"

    def test_it_can_be_undone(self, run: Run, volunteer: Person) -> None:
        membership.remove_person(run=run, name="Teo")
        membership.let_back(member=membership.removed_from(run).get())
        assert access_joinable_run(slug=run.slug, viewer=volunteer) == run

    def test_a_link_does_not_undo_it(self, run: Run, volunteer: Person) -> None:
        secret = membership.create_invitation(run=run).secret
        membership.remove_person(run=run, name="Teo")
        with pytest.raises(Problem, match="E313"):
            membership.accept_invitation(slug=run.slug, secret=secret, person=volunteer)

    def test_not_the_organizer_and_nobody_who_is_not_here(self, run: Run) -> None:
        with pytest.raises(Problem, match="E325: Amina"):
            membership.remove_person(run=run, name="amina")
        with pytest.raises(Problem, match="E314") as refused:
            membership.remove_person(run=run, name="Zoë")
        assert "invitation" not in refused.value.fault.text, "it would advise to invite whom they remove"
        assert not Member.objects.exists()


class TestDoors:
    def test_machines_of_those_outside_are_shut_out(
        self, run: Run, organizer: Person, laptop: Owned, stranger: Person
    ) -> None:
        mine, theirs = owned(organizer, "desk"), owned(stranger, "attic")
        membership.add_member(run=run, name="Teo")
        peers = [each.machine.peer_id for each in (mine, laptop, theirs)]
        assert list(shut_out(run, peers)) == [theirs.machine]
        membership.remove_member(member=Member.objects.get())
        assert set(shut_out(run, peers)) == {laptop.machine, theirs.machine}
        Run.objects.update(visibility=UNLISTED)
        assert list(shut_out(run, peers)) == [laptop.machine], "who was removed stays out when the doors open"

    def test_whoever_has_helped_stays_when_the_doors_close(
        self, run: Run, laptop: Owned, organizer: Person, stranger: Person
    ) -> None:
        change_visibility(run=run, visibility=PUBLIC)
        committed(run, (laptop.machine, 4), (owned(organizer).machine, 4))
        change_visibility(run=run, visibility=PRIVATE)
        assert is_let_in(run, laptop.machine.person)
        assert not is_let_in(run, stranger)
        assert Member.objects.count() == 1

    def test_who_was_removed_and_had_helped_is_not_let_in_by_that(self, run: Run, laptop: Owned) -> None:
        committed(run, (laptop.machine, 4))
        membership.remove_member(member=membership.add_member(run=run, name="Teo"))
        change_visibility(run=run, visibility=PUBLIC)
        change_visibility(run=run, visibility=PRIVATE)
        assert not is_let_in(run, laptop.machine.person)
