"""Roles on pages: the organizer invites, the person answers, and both see what came of it."""

import pytest
from django.test import Client

from accounts.models import Person
from runs.models import Run, RunRole
from tests.runs.factories import Owned, committed, opened
from tests.web.browsing import as_, page
from tests.web.requesters import given_role

MANAGE, ROLE = "/runs/proverbs/manage/", "/runs/proverbs/role/"
MODERATOR = {"role-name": "teo", "role-role": "moderator"}


@pytest.mark.parametrize("visibility", Run.Visibility.values)
def test_from_the_invitation_to_the_manage_page(organizer: Person, volunteer: Person, visibility: str) -> None:
    opened(organizer, visibility=visibility)
    mine, theirs = as_(organizer), as_(volunteer)
    assert mine.post("/runs/proverbs/roles/", MODERATOR)["Location"] == MANAGE
    assert "invited, not accepted yet" in page(mine.get(MANAGE))
    account = page(theirs.get("/account/"))
    assert "<b>Invitation:</b> moderator of <bdi>A model of proverbs</bdi>" in account
    assert ROLE in account
    text = page(theirs.get(ROLE))
    assert "<bdi>Amina</bdi></b> invited you to be a moderator" in text
    assert "remove people from the run" in text
    assert theirs.post(ROLE, {"answer": "accept"})["Location"] == MANAGE
    assert "You are a <a" in page(theirs.get(MANAGE))
    assert "Moderator of <bdi>A model of proverbs</bdi>" in page(theirs.get("/account/"))
    assert "invited, not accepted yet" not in page(mine.get(MANAGE))
    assert theirs.post(ROLE, {"answer": "give_up"})["Location"] == "/runs/proverbs/"
    assert theirs.get(MANAGE).status_code == 403


def test_whoever_is_invited_reads_of_it_on_the_runs_page(run: Run, organizer: Person, volunteer: Person) -> None:
    as_(organizer).post("/runs/proverbs/roles/", MODERATOR)
    assert "invited you to be a moderator of this run" in page(as_(volunteer).get("/runs/proverbs/"))
    for other in (as_(organizer), Client()):
        assert "invited you" not in page(other.get("/runs/proverbs/"))


def test_declining_a_run_that_one_does_not_see_leads_home(organizer: Person, volunteer: Person) -> None:
    opened(organizer, visibility=Run.Visibility.PRIVATE)
    as_(organizer).post("/runs/proverbs/roles/", MODERATOR)
    assert as_(volunteer).post(ROLE, {"answer": "give_up"})["Location"] == "/account/"
    assert not RunRole.objects.exists()


def test_what_is_no_answer_changes_nothing(run: Run, organizer: Person, volunteer: Person) -> None:
    as_(organizer).post("/runs/proverbs/roles/", MODERATOR)
    assert as_(volunteer).post(ROLE, {"answer": "perhaps"}).status_code == 404
    assert RunRole.objects.get().accepted_at is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"role-name": "Zoë", "role-role": "moderator"}, "(E314). There is no account named Zoë"),
        ({"role-name": "Amina", "role-role": "moderator"}, "(E359). Amina cannot become a moderator"),
        ({"role-name": "Teo", "role-role": "organizer"}, "Select a valid choice"),
        ({"role-name": "Teo", "role-role": "operator"}, "Select a valid choice"),
        ({"role-name": "x" * 31, "role-role": "moderator"}, "at most 30 characters"),
        ({}, "This field is required."),
    ],
)
@pytest.mark.usefixtures("run", "volunteer")
def test_what_does_not_do_stays_in_its_field(organizer: Person, fields: dict[str, str], words: str) -> None:
    answer = as_(organizer).post("/runs/proverbs/roles/", fields)
    assert answer.status_code == 400
    assert words in page(answer)
    assert not RunRole.objects.exists()


def test_a_co_organizer_gives_the_lesser_role_alone(
    run: Run, volunteer: Person, stranger: Person, operator: Person
) -> None:
    given_role(run, volunteer, Run.Role.CO_ORGANIZER)
    other = given_role(run, stranger, Run.Role.CO_ORGANIZER)
    client = as_(volunteer)
    fields = {"role-name": "Ines", "role-role": "co-organizer"}
    assert "Select a valid choice" in page(client.post("/runs/proverbs/roles/", fields))
    assert client.post(f"/runs/proverbs/roles/{other.pk}/").status_code == 403
    assert f"/runs/proverbs/roles/{other.pk}/" not in page(client.get(MANAGE))
    assert client.post("/runs/proverbs/roles/", {**fields, "role-role": "moderator"}).status_code == 302
    new = RunRole.objects.get(person=operator)
    assert client.post(f"/runs/proverbs/roles/{new.pk}/")["Location"] == MANAGE
    assert RunRole.objects.count() == 2


def test_a_role_of_another_run_is_not_reached_through_ones_own(run: Run, volunteer: Person, stranger: Person) -> None:
    opened(stranger, slug="own")
    given = given_role(run, volunteer, Run.Role.MODERATOR)
    assert as_(stranger).post(f"/runs/own/roles/{given.pk}/").status_code == 404
    assert run.role_of(volunteer) == Run.Role.MODERATOR


class TestRemoving:
    """One click, and a message that takes it back."""

    BOARD = "/runs/proverbs/leaderboard/"

    @pytest.mark.usefixtures("organizer")
    @pytest.mark.parametrize("role", [None, Run.Role.CO_ORGANIZER, Run.Role.MODERATOR])
    @pytest.mark.parametrize("back", ["", "leaderboard"])
    def test_from_where_they_stand_and_undone_there(
        self, run: Run, laptop: Owned, stranger: Person, role: Run.Role | None, back: str
    ) -> None:
        committed(run, (laptop.machine, 4))
        if role is not None:
            given_role(run, stranger, role)
        client, place = as_(stranger if role else "Amina"), self.BOARD if back else MANAGE
        answer = client.post("/runs/proverbs/removed/", {"remove-name": "Teo", "back": back}, follow=True)
        member = run.members.exclude(removed_at=None).get()
        assert answer.redirect_chain == [(f"{place}?undo={member.pk}", 302)]
        text = page(answer)
        undo = f"/runs/proverbs/removed/{member.pk}/"
        assert "<bdi>Teo</bdi> was removed." in text
        assert f'action="{undo}"' in text
        assert f'name="back" value="{back}"' in text
        assert 'value="Teo"' not in page(client.get(self.BOARD)), "once is enough"
        answer = client.post(undo, {"back": back})
        assert answer["Location"] == place
        assert not run.members.exclude(removed_at=None).exists()
        assert "was removed." not in page(client.get(f"{place}?undo={member.pk}")), "it is over"

    def test_a_member_by_number(self, run: Run, organizer: Person, volunteer: Person) -> None:
        Run.objects.update(visibility=Run.Visibility.PRIVATE)
        as_(organizer).post("/runs/proverbs/members/", {"name": "Teo"})
        member = run.members.get()
        answer = as_(organizer).post(f"/runs/proverbs/members/{member.pk}/")
        assert answer["Location"] == f"{MANAGE}?undo={member.pk}"

    def test_whom_one_may_not_remove_has_no_button_and_is_refused(
        self, run: Run, laptop: Owned, organizer: Person, stranger: Person, operator: Person
    ) -> None:
        Run.objects.update(visibility=Run.Visibility.PRIVATE)
        run.refresh_from_db()
        committed(run, (laptop.machine, 4))
        given_role(run, laptop.machine.person, Run.Role.CO_ORGANIZER)
        given_role(run, stranger, Run.Role.MODERATOR)
        client, member = as_(stranger), run.members.get(person=laptop.machine.person)
        remove = f"/runs/proverbs/members/{member.pk}/"
        assert 'value="Teo"' not in page(client.get(self.BOARD))
        assert 'value="Teo"' in page(as_(organizer).get(self.BOARD))
        assert remove not in page(client.get(MANAGE))
        assert remove in page(as_(organizer).get(MANAGE))
        answer = client.post(remove)
        assert answer.status_code == 400
        assert "(E325). Teo is a co-organizer of the run" in page(answer)
        assert "(E325)" in page(client.post("/runs/proverbs/removed/", {"remove-name": "Teo"}))
        assert run.role_of(laptop.machine.person) == Run.Role.CO_ORGANIZER

    def test_nobody_else_reads_who_was_removed(self, run: Run, organizer: Person, volunteer: Person) -> None:
        as_(organizer).post("/runs/proverbs/removed/", {"remove-name": "Teo"})
        place = f"{self.BOARD}?undo={run.members.get().pk}"
        for client in (Client(), as_(volunteer)):
            assert "was removed" not in page(client.get(place))

    @pytest.mark.parametrize("number", ["", "x", "²", "9" * 30, "0", "-1"])
    def test_a_number_of_nobody(self, run: Run, organizer: Person, number: str) -> None:
        for place in (MANAGE, self.BOARD):
            answer = as_(organizer).get(place, {"removed": number})
            assert answer.status_code == 200
            assert "was removed" not in page(answer)
