"""Co-organizers and moderators: invited, accepted, resigned, removed."""

from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import transaction

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from runs import access
from runs.lifecycle import membership, roles
from runs.models import Member, Run, RunRole
from runs.timeline import activity_of, trail_of
from tests.coordination.engines import database, in_other_thread
from tests.runs.factories import opened
from tests.web.requesters import given_role

__all__ = ["database"]

CO, MODERATOR = Run.Role.CO_ORGANIZER, Run.Role.MODERATOR
AT_ONCE_S = 1.0  # seconds in which a thread that should wait for a lock could go wrong


def told(run: Run) -> list[str]:
    return [line.text for line in trail_of(run).reverse()]


class TestOnEachDatabase:
    @pytest.fixture
    def amina(self, data_folder: Any, any_database: str) -> Person:
        return Person.objects.create_user("Amina", None)

    @pytest.fixture
    def teo(self, amina: Person) -> Person:
        return Person.objects.create_user("Teo", None)

    def test_from_the_invitation_to_its_end(self, amina: Person, teo: Person) -> None:
        run = opened(amina, visibility=Run.Visibility.PRIVATE)
        offered = roles.invite(run=run, name=" teo ", role=CO)
        assert run.role_of(teo) is None
        assert not access.may_see(run, teo), "an invitation opens nothing"
        for _ in range(2):
            roles.accept(offered=offered)
        assert run.role_of(teo) == CO
        assert access.may_manage(run, teo)
        assert access.may_see(run, teo)
        roles.give_up(offered=offered)
        assert run.role_of(teo) is None
        assert access.may_see(run, teo), "they stay a member"
        assert told(run) == [
            "Amina invited Teo to be a co-organizer.",
            "Teo accepted to be a co-organizer.",
            "Teo gave up the role of co-organizer.",
        ]
        assert [(line.by, line.by_role, line.on) for line in trail_of(run)] == [
            (teo, "co-organizer", None),
            (teo, "co-organizer", None),
            (amina, "organizer", teo),
        ]
        assert not activity_of(run).exists(), "nobody else reads of it"

    def test_declined_withdrawn_taken_back(self, amina: Person, teo: Person) -> None:
        run = opened(amina)
        roles.give_up(offered=roles.invite(run=run, name="Teo", role=MODERATOR))
        roles.take_back(given=roles.invite(run=run, name="Teo", role=MODERATOR))
        roles.take_back(given=given_role(run, teo, MODERATOR))
        assert not RunRole.objects.exists()
        assert told(run)[1::2] == [
            "Teo declined the role of moderator.",
            "Amina withdrew Teo's invitation as moderator.",
            "Teo accepted to be a moderator.",
        ]
        assert told(run)[-1] == "Amina removed Teo as moderator."

    def test_what_was_taken_back_cannot_be_accepted(self, amina: Person, teo: Person) -> None:
        run = opened(amina)
        offered = roles.invite(run=run, name="Teo", role=MODERATOR)
        RunRole.objects.get().delete()
        with pytest.raises(Problem, match="E305"):
            roles.accept(offered=offered)
        assert not Member.objects.exists()

    def test_who_is_removed_loses_the_role(self, amina: Person, teo: Person) -> None:
        run = opened(amina)
        given_role(run, teo, CO)
        membership.remove_person(run=run, name="Teo")
        assert run.role_of(teo) is None
        assert told(run)[-2:] == ["Amina removed Teo.", "Amina removed Teo as co-organizer."]
        with pytest.raises(Problem, match=r"E359: Teo cannot become a moderator .* restore their access first"):
            roles.invite(run=run, name="Teo", role=MODERATOR)
        membership.let_back(member=membership.removed_from(run).get())
        roles.invite(run=run, name="Teo", role=MODERATOR)

    def test_there_are_so_many_and_no_more(self, amina: Person, teo: Person, monkeypatch: pytest.MonkeyPatch) -> None:
        run = opened(amina)
        Person.objects.create_user("Noor", None)
        monkeypatch.setattr(roles, "MOST", {CO: 1, MODERATOR: 1})
        roles.invite(run=run, name="Teo", role=CO)
        with pytest.raises(Problem, match=r"E359: Noor cannot become a co-organizer .* it has 1 of them"):
            roles.invite(run=run, name="Noor", role=CO)
        roles.invite(run=run, name="Noor", role=MODERATOR)

    def test_one_role_a_person_and_none_for_the_organizer(self, amina: Person, teo: Person) -> None:
        run = opened(amina)
        with pytest.raises(Problem, match=r"E359.*they organize it"):
            roles.invite(run=run, name="Amina", role=CO)
        with pytest.raises(Problem, match="E314"):
            roles.invite(run=run, name="Zoe", role=CO)
        roles.invite(run=run, name="Teo", role=CO)
        with pytest.raises(Problem, match=r"E359.*they were invited to be a co-organizer already"):
            roles.invite(run=run, name="Teo", role=MODERATOR)
        roles.accept(offered=RunRole.objects.get())
        with pytest.raises(Problem, match=r"E359.*they are a co-organizer already"):
            roles.invite(run=run, name="Teo", role=MODERATOR)


class TestRanks:
    @pytest.fixture
    def helpers(self, run: Run, volunteer: Person, stranger: Person) -> tuple[Person, Person]:
        given_role(run, volunteer, CO)
        given_role(run, stranger, MODERATOR)
        return volunteer, stranger

    def test_nobody_gives_a_role_like_their_own_or_a_higher_one(
        self, run: Run, helpers: tuple[Person, Person], operator: Person
    ) -> None:
        co, moderator = helpers
        for who, role in ((co, CO), (moderator, MODERATOR), (moderator, CO), (operator, MODERATOR)):
            with pytest.raises(PermissionDenied):
                roles.invite(run=run, name="Ines", role=role, by=who)
        with pytest.raises(PermissionDenied):
            roles.invite(run=run, name="Ines", role=Run.Role.ORGANIZER)
        roles.invite(run=run, name="Ines", role=MODERATOR, by=co)

    def test_nor_takes_one_back(self, run: Run, helpers: tuple[Person, Person]) -> None:
        co, moderator = helpers
        own = {each.role: each for each in run.roles.all()}
        for who, role in ((co, CO), (moderator, MODERATOR), (moderator, CO)):
            with pytest.raises(PermissionDenied):
                roles.take_back(given=own[role], by=who)
        roles.take_back(given=own[MODERATOR], by=co)
        assert run.role_of(moderator) is None

    def test_nor_removes_who_has_one(self, run: Run, helpers: tuple[Person, Person], operator: Person) -> None:
        co, moderator = helpers
        for who, whom in ((co, "Amina"), (co, co.username), (moderator, co.username), (moderator, "Amina")):
            with pytest.raises(Problem, match="E325"):
                membership.remove_person(run=run, name=whom, by=who)
        with pytest.raises(PermissionDenied):
            membership.remove_person(run=run, name="Teo", by=operator)
        membership.remove_person(run=run, name="Ines", by=moderator)
        membership.remove_person(run=run, name=moderator.username, by=co)
        assert [line.by for line in trail_of(run).filter(text__contains=" removed Ines")] == [moderator]
        assert run.role_of(moderator) is None

    def test_whose_account_is_closed_has_none(self, run: Run, helpers: tuple[Person, Person]) -> None:
        co, _ = helpers
        co.is_active = False
        assert not access.may_manage(run, co)


class TestAtOnce:
    """Two concurrent requests on separate connections. A lock must make one wait for the other."""

    @pytest.fixture
    def open_run(self, data_folder: Any, database: str) -> Run:
        for name in ("Teo", "Noor"):
            Person.objects.create_user(name, None)
        return opened(Person.objects.create_user("Amina", None))

    def test_the_last_place_is_given_once(self, open_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(roles, "MOST", {CO: 1, MODERATOR: 1})
        with transaction.atomic():
            roles.invite(run=open_run, name="Teo", role=CO)
            other = in_other_thread(lambda: roles.invite(run=open_run, name="Noor", role=CO))
            other.join(AT_ONCE_S)
        with pytest.raises(Problem, match=r"E359"):
            other.outcome()
        assert RunRole.objects.get().person.username == "Teo"

    def test_who_is_being_removed_does_not_accept(self, open_run: Run) -> None:
        offered = roles.invite(run=open_run, name="Teo", role=MODERATOR)
        with transaction.atomic():
            membership.remove_person(run=open_run, name="Teo")
            other = in_other_thread(lambda: roles.accept(offered=offered))
            other.join(AT_ONCE_S)
        with pytest.raises(Problem, match="E305"):
            other.outcome()
        assert not RunRole.objects.exists()
