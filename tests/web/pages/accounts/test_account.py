"""A person's account: passwords, other sessions, the operator's reset link, and closing an account."""

import io
import time
from datetime import timedelta

import pytest
from django.contrib.auth.tokens import PasswordResetTokenGenerator
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from accounts.deactivation import close_account, open_account
from accounts.models import Person, Token
from accounts.services import create_token, relay_keeper
from peer_agent.protocol.errors import Problem
from runs.models import Run
from tests.runs.factories import PASSWORD, Owned
from tests.web.browsing import page

OTHER = "eight quiet herons"


def logged_in(person: Person, password: str = PASSWORD) -> Client:
    client = Client()
    assert client.login(username=person.username, password=password)
    return client


def is_in(client: Client) -> bool:
    return bool(client.get("/account/").status_code == 200)


class TestPassword:
    def test_a_new_one_logs_out_everywhere_else(self, volunteer: Person) -> None:
        here, there = logged_in(volunteer), logged_in(volunteer)
        answer = here.post("/account/password/", {"current": PASSWORD, "password": OTHER}, follow=True)
        assert "Your password was changed." in page(answer)
        assert (is_in(here), is_in(there)) == (True, False)
        assert not Client().login(username="Teo", password=PASSWORD)
        assert Client().login(username="Teo", password=OTHER)

    @pytest.mark.parametrize(
        ("current", "password", "words"),
        [("wrong", OTHER, "not your current password"), (PASSWORD, "short", "at least 10 characters"),
         (PASSWORD, "", "This field is required.")],
    )  # fmt: skip
    def test_error_stands_beside_its_field_and_nothing_changes(
        self, volunteer: Person, current: str, password: str, words: str
    ) -> None:
        here, there = logged_in(volunteer), logged_in(volunteer)
        answer = here.post("/account/password/", {"current": current, "password": password})
        assert answer.status_code == 400
        assert words in page(answer)
        assert is_in(here)
        assert is_in(there)

    def test_who_came_without_one_chooses_one(self, volunteer: Person) -> None:
        volunteer.set_unusable_password()
        volunteer.save()
        client = Client()
        client.force_login(volunteer)
        assert "Choose a password" in page(client.get("/account/"))
        client.post("/account/password/", {"password": OTHER})
        assert Client().login(username="Teo", password=OTHER)


class TestSessions:
    def test_all_others_end_and_this_one_stays(self, volunteer: Person, stranger: Person) -> None:
        here, there, somebody = logged_in(volunteer), logged_in(volunteer), logged_in(stranger)
        answer = here.post("/account/sessions/", follow=True)
        assert "logged in only here" in page(answer)
        assert (is_in(here), is_in(there), is_in(somebody)) == (True, False, True)

    def test_machines_and_tokens_go_on(self, volunteer: Person, laptop: Owned, run: Run) -> None:
        secret = create_token(person=volunteer, purpose=Token.Purpose.API).secret
        client = logged_in(volunteer)
        assert "1 machine and 1 personal token." in page(client.get("/account/"))
        client.post("/account/sessions/")
        shard = run.dataset.shards.get().digest
        header = laptop.credential(run, now=int(time.time()))
        assert Client().get(f"/api/v1/files/shards/{shard}", headers=header).status_code == 200
        assert Client().get("/api/v1/runs", headers={"Authorization": f"Bearer {secret}"}).status_code == 200


class TestResetByTheOperator:
    def link(self, name: str) -> str:
        out = io.StringIO()
        call_command("reset_password", name, stdout=out)
        return out.getvalue().split()[0].removeprefix("http://127.0.0.1:8000")

    def test_the_link_sets_a_new_password_once(self, volunteer: Person) -> None:
        there, visitor, link = logged_in(volunteer), Client(), self.link("teo")
        assert "A new password for Teo" in page(visitor.get(link))
        assert "at least 10 characters" in page(visitor.post(link, {"password": "short"}))
        answer = visitor.post(link, {"password": OTHER}, follow=True)
        assert "logged out everywhere else" in page(answer)
        assert (is_in(visitor), is_in(there)) == (True, False)
        assert Client().login(username="Teo", password=OTHER)
        again = Client().post(link, {"password": PASSWORD})
        assert (again.status_code, "E333" in page(again)) == (410, True)

    def test_it_is_over_after_a_day(self, volunteer: Person, monkeypatch: pytest.MonkeyPatch) -> None:
        link = self.link("Teo")
        for passed, status in ((timedelta(hours=23), 200), (timedelta(hours=25), 410)):
            later = timezone.now().replace(tzinfo=None) + passed
            monkeypatch.setattr(PasswordResetTokenGenerator, "_now", lambda _, later=later: later)
            assert Client().get(link).status_code == status

    @pytest.mark.parametrize("end", ["MQ/x-y/", "x/y/", "////", "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5/x-y/", "_/_/"])
    def test_a_link_that_is_none(self, db: None, end: str) -> None:
        assert Client().get(f"/password/{end}").status_code in (404, 410)

    def test_it_is_for_nobody_else(self, volunteer: Person, stranger: Person) -> None:
        token = self.link("Teo").split("/")[3]
        assert Client().get(f"/password/{self.link('Noor').split('/')[2]}/{token}/").status_code == 410

    def test_unknown_and_closed_accounts_have_none(self, volunteer: Person) -> None:
        relay_keeper()
        link = self.link("Teo")
        close_account(person=volunteer)
        for name, code in (("Nobody", "E331"), ("operator", "E331"), ("Teo", "E332")):
            with pytest.raises(Problem, match=code):
                call_command("reset_password", name)
        assert Client().get(link).status_code == 410


class TestClosing:
    def test_everything_that_spoke_for_the_person_is_over(self, volunteer: Person, laptop: Owned, run: Run) -> None:
        client = logged_in(volunteer)
        secret = create_token(person=volunteer, purpose=Token.Purpose.API).secret
        header = laptop.credential(run, now=int(time.time()))
        close_account(person=volunteer)
        open_account(person=volunteer)  # nothing from before comes back
        shard = run.dataset.shards.get().digest
        assert not is_in(client)
        assert Client().get(f"/api/v1/files/shards/{shard}", headers=header).json()["code"] == "E214"
        assert Client().get("/api/v1/runs", headers={"Authorization": f"Bearer {secret}"}).status_code == 401
        assert Client().login(username="Teo", password=PASSWORD)

    @pytest.mark.parametrize(("password", "is_told"), [(PASSWORD, True), ("guess", False)])
    def test_its_owner_alone_is_told_that_it_is_closed(
        self, volunteer: Person, password: str, *, is_told: bool
    ) -> None:
        close_account(person=volunteer)
        answer = Client().post("/login/", {"username": "Teo", "password": password})
        assert ("This account was closed by an operator" in page(answer)) == is_told
        assert ("Wrong name or password." in page(answer)) != is_told
