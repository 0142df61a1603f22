"""Requests to join a run: made, withdrawn, accepted and declined, and their limits."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.utils import timezone

from accounts.models import Person
from notices import services as notices
from notices.models import Event, Notice, Way
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import PeerId
from runs import access
from runs.departure import delete_account
from runs.lifecycle import drafts, joining, membership, roles
from runs.lifecycle.joining import Stage
from runs.models import JoinRequest, Member, Run
from runs.timeline import activity_of, trail_of
from tests.coordination.engines import database, in_other_thread
from tests.runs.factories import Owned, committed, opened
from tests.web.requesters import given_role

__all__ = ["database"]


@pytest.fixture
def asked(organizer: Person) -> Run:
    return opened(organizer, slug="asked", visibility=Run.Visibility.REQUEST)


def later(request: JoinRequest, delay: timedelta) -> None:
    JoinRequest.objects.filter(pk=request.pk).update(declined_at=timezone.now() - delay)


def stage(run: Run, person: Person | None) -> Stage:
    return joining.standing_of(run, person).stage


class TestOnEachDatabase:
    @pytest.fixture
    def amina(self, data_folder: Any, any_database: str) -> Person:
        return Person.objects.create_user("Amina", None)

    @pytest.fixture
    def teo(self, amina: Person) -> Person:
        return Person.objects.create_user("Teo", None)

    def test_from_the_request_to_the_member(self, amina: Person, teo: Person) -> None:
        run = opened(amina, visibility=Run.Visibility.REQUEST)
        assert stage(run, teo) == Stage.FREE
        with pytest.raises(Problem, match="E410"):
            access.access_joinable_run(slug=run.slug, viewer=teo)
        request = joining.ask(run=run, person=teo, message="I have a fast machine")
        assert stage(run, teo) == Stage.WAITING
        assert list(joining.waiting_in(run)) == [request]
        joining.accept(request=request, by=amina)
        assert stage(run, teo) == Stage.PART
        assert access.access_joinable_run(slug=run.slug, viewer=teo) == run
        assert not JoinRequest.objects.exists()
        assert trail_of(run)[0].text == "Amina accepted Teo's request to join."

    def test_the_last_place_is_given_once(self, amina: Person, teo: Person, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(joining, "MOST_OF_RUN", 1)
        run = opened(amina, visibility=Run.Visibility.REQUEST)
        joining.ask(run=run, person=teo)
        with pytest.raises(Problem, match=r"E411.*1 requests are waiting"):
            joining.ask(run=run, person=Person.objects.create_user("Noor", None))
        assert joining.ask(run=run, person=teo, message="Please").message == "Please", "their own may change"


class TestAsking:
    def test_a_run_by_request_is_seen_by_all_and_listed(self, asked: Run, stranger: Person) -> None:
        for viewer in (None, stranger):
            assert asked in access.listed_runs(viewer)
            assert access.may_see(asked, viewer)
        assert asked not in access.helped_runs(stranger)
        assert asked in access.helped_runs(asked.organizer)
        Run.objects.update(state=Run.State.DRAFT)
        assert asked not in access.listed_runs(stranger)

    def test_machines_are_shut_out_until_their_owner_is_a_member(
        self, asked: Run, laptop: Owned, volunteer: Person
    ) -> None:
        peer = [PeerId(laptop.machine.peer_id)]
        assert access.shut_out(asked, peer).exists()
        joining.accept(request=joining.ask(run=asked, person=volunteer))
        assert not access.shut_out(asked, peer).exists()

    def test_the_same_person_waits_once(self, asked: Run, volunteer: Person) -> None:
        first = joining.ask(run=asked, person=volunteer, message="Hello")
        again = joining.ask(run=asked, person=volunteer, message="x" * 600)
        assert (again.pk, again.asked_at, len(again.message)) == (first.pk, first.asked_at, 500)

    def test_it_is_taken_back(self, asked: Run, volunteer: Person) -> None:
        joining.ask(run=asked, person=volunteer)
        for _ in range(2):
            joining.take_back(run=asked, person=volunteer)
        assert stage(asked, volunteer) == Stage.FREE

    @pytest.mark.parametrize("visibility", ["public", "unlisted", "private"])
    def test_elsewhere_nobody_asks(self, organizer: Person, volunteer: Person, visibility: str) -> None:
        run = opened(organizer, visibility=visibility)
        with pytest.raises(Problem, match="E411"):
            joining.ask(run=run, person=volunteer)

    @pytest.mark.parametrize("state", [Run.State.DRAFT, Run.State.FINISHING, Run.State.FINISHED])
    def test_what_is_not_under_way_takes_none(self, asked: Run, volunteer: Person, state: Run.State) -> None:
        joining.ask(run=asked, person=volunteer)
        Run.objects.update(state=state)
        asked.refresh_from_db()
        assert stage(asked, volunteer) == Stage.CLOSED
        assert not joining.waiting_in(asked).exists()
        assert not joining.waiting_of(volunteer).exists()
        with pytest.raises(Problem, match=r"E411.*takes no requests now"):
            joining.ask(run=asked, person=volunteer)

    def test_who_is_in_has_nothing_to_ask(self, asked: Run, volunteer: Person) -> None:
        membership.add_member(run=asked, name=volunteer.username)
        for person in (volunteer, asked.organizer):
            with pytest.raises(Problem, match=r"E411.*already"):
                joining.ask(run=asked, person=person)

    def test_who_was_removed_cannot_ask(self, asked: Run, volunteer: Person) -> None:
        joining.ask(run=asked, person=volunteer)
        membership.remove_person(run=asked, name=volunteer.username)
        assert stage(asked, volunteer) == Stage.REMOVED
        assert not JoinRequest.objects.exists()
        with pytest.raises(Problem, match=r"E411.*removed"):
            joining.ask(run=asked, person=volunteer)

    def test_a_person_has_so_many_that_wait(
        self, organizer: Person, asked: Run, volunteer: Person, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(joining, "MOST_OF_PERSON", 1)
        joining.ask(run=asked, person=volunteer)
        other = opened(organizer, slug="other", visibility=Run.Visibility.REQUEST)
        with pytest.raises(Problem, match=r"E411.*of yours"):
            joining.ask(run=other, person=volunteer)
        joining.take_back(run=asked, person=volunteer)
        joining.ask(run=other, person=volunteer)


class TestAnswering:
    def test_who_was_declined_asks_again_after_a_week(self, asked: Run, volunteer: Person) -> None:
        request = joining.ask(run=asked, person=volunteer, message="Please")
        joining.decline(request=request)
        request.refresh_from_db()
        assert request.message == "", "their words are forgotten"
        standing = joining.standing_of(asked, volunteer)
        assert standing.stage == Stage.DECLINED
        assert standing.again_at == request.declined_at + timedelta(days=7)  # type: ignore[operator]
        joining.take_back(run=asked, person=volunteer)
        with pytest.raises(Problem, match=r"E411.*you can ask again from"):
            joining.ask(run=asked, person=volunteer)
        later(request, timedelta(days=7))
        assert stage(asked, volunteer) == Stage.FREE
        assert joining.ask(run=asked, person=volunteer).declined_at is None

    def test_moderators_answer_and_others_do_not(self, asked: Run, volunteer: Person, stranger: Person) -> None:
        request = joining.ask(run=asked, person=volunteer)
        for action in (joining.accept, joining.decline):
            with pytest.raises(PermissionDenied):
                action(request=request, by=stranger)
        given_role(asked, stranger, Run.Role.MODERATOR)
        joining.accept(request=request, by=stranger)
        assert membership.members_of(asked).filter(person=volunteer).exists()
        assert trail_of(asked)[0].by == stranger

    def test_it_is_answered_once(self, asked: Run, volunteer: Person) -> None:
        request = joining.ask(run=asked, person=volunteer)
        joining.decline(request=request)
        joining.accept(request=request)
        joining.decline(request=request)
        assert not Member.objects.filter(person=volunteer).exists()
        told = [line.text for line in trail_of(asked) if line.on == volunteer]
        assert told == ["Amina declined Teo's request to join."]

    def test_of_two_at_once_one_answers(self, database: str, data_folder: Any) -> None:
        amina = Person.objects.create_user("Amina", None)
        run = opened(amina, visibility=Run.Visibility.REQUEST)
        request = joining.ask(run=run, person=Person.objects.create_user("Teo", None))
        start = threading.Barrier(2)

        def answer(action: Callable[..., None]) -> None:
            start.wait(10)
            action(request=request, by=amina)

        other = in_other_thread(lambda: answer(joining.decline))
        answer(joining.accept)
        other.outcome()
        is_member = Member.objects.filter(run=run).exists()
        assert JoinRequest.objects.filter(declined_at__isnull=False).exists() is not is_member
        assert trail_of(run).filter(text__contains="request to join").count() == 1

    def test_what_happened_names_guests_to_nobody_outside(self, asked: Run, volunteer: Person) -> None:
        joining.accept(request=joining.ask(run=asked, person=volunteer))
        assert not activity_of(asked).filter(text__contains=volunteer.username).exists()

    def test_whoever_is_let_in_otherwise_waits_no_more(self, asked: Run, volunteer: Person, stranger: Person) -> None:
        for person in (volunteer, stranger):
            joining.ask(run=asked, person=person)
        membership.add_member(run=asked, name=volunteer.username)
        roles.accept(offered=roles.invite(run=asked, name=stranger.username, role=Run.Role.MODERATOR))
        assert not JoinRequest.objects.exists()
        third = Person.objects.create_user("Mei", None)
        joining.ask(run=asked, person=third)
        secret = membership.create_invitation(run=asked).secret
        membership.accept_invitation(slug=asked.slug, secret=secret, person=third)
        assert not JoinRequest.objects.exists()


class TestWhatChangesAroundThem:
    def test_a_run_that_asks_no_more_forgets_them(self, asked: Run, volunteer: Person) -> None:
        joining.ask(run=asked, person=volunteer)
        drafts.change_visibility(run=asked, visibility=Run.Visibility.PUBLIC)
        assert not JoinRequest.objects.exists()

    def test_contributors_stay_when_a_public_run_starts_to_ask(
        self, run: Run, laptop: Owned, volunteer: Person
    ) -> None:
        committed(run, (laptop.machine, 4))
        drafts.change_visibility(run=run, visibility=Run.Visibility.REQUEST)
        assert access.takes_part(run, volunteer)
        assert set(access.participants(run)) == {run.organizer, volunteer}

    def test_with_an_account_its_requests_go_and_its_name(
        self, asked: Run, volunteer: Person, stranger: Person
    ) -> None:
        joining.decline(request=joining.ask(run=asked, person=volunteer))
        joining.ask(run=asked, person=stranger)
        for person in (volunteer, stranger):
            delete_account(person=person)
        assert not JoinRequest.objects.exists()
        assert not trail_of(asked).filter(Q(text__contains="Teo") | Q(text__contains="Noor")).exists()
        assert trail_of(asked)[0].text == "Amina declined a former volunteer's request to join."


class TestNotices:
    @pytest.fixture(autouse=True)
    def chosen(self, asked: Run, volunteer: Person, stranger: Person) -> None:
        notices.choose(person=asked.organizer, wanted=[(Event.REQUEST, Way.BROWSER)])
        for person in (volunteer, stranger):
            notices.choose(person=person, wanted=[(event, Way.BROWSER) for event in (Event.ACCEPTED, Event.DECLINED)])

    @staticmethod
    def told(person: Person) -> list[str]:
        return list(Notice.objects.filter(person=person).order_by("pk").values_list("event", flat=True))

    def test_those_who_manage_are_told_of_all_at_once(self, asked: Run, volunteer: Person, stranger: Person) -> None:
        for person in (volunteer, stranger):
            joining.ask(run=asked, person=person)
        notice = Notice.objects.get(person=asked.organizer)
        assert notice.path == "/runs/asked/manage/#requests"
        assert notice.due_at - notice.at == joining.GROUPED

    def test_what_was_taken_back_in_time_is_not_told(self, asked: Run, volunteer: Person, stranger: Person) -> None:
        for person in (volunteer, stranger):
            joining.ask(run=asked, person=person)
        joining.take_back(run=asked, person=volunteer)
        assert self.told(asked.organizer) == ["request"]
        joining.take_back(run=asked, person=stranger)
        assert self.told(asked.organizer) == []

    def test_who_asked_is_told_the_answer(self, asked: Run, volunteer: Person, stranger: Person) -> None:
        joining.accept(request=joining.ask(run=asked, person=volunteer))
        joining.decline(request=joining.ask(run=asked, person=stranger))
        assert (self.told(volunteer), self.told(stranger)) == (["accepted"], ["declined"])

    def test_moderators_are_told_too(self, asked: Run, volunteer: Person, stranger: Person) -> None:
        given_role(asked, stranger, Run.Role.MODERATOR)
        notices.choose(person=stranger, wanted=[(Event.REQUEST, Way.BROWSER)])
        joining.ask(run=asked, person=volunteer)
        assert self.told(stranger) == ["request"]
