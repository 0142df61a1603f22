"""The operators' admin pages: who is admitted, what can be changed there, and what cannot."""

import re
from collections.abc import Iterator

import pytest
from django.contrib import admin
from django.test import Client

from accounts.models import Machine, Person
from accounts.services import relay_keeper
from runs.access import access_run
from runs.models import LedgerEntry, LogEntry, Run
from tests.runs.factories import PASSWORD, Owned, committed, opened
from tests.web.browsing import as_, page
from tests.web.requesters import World, make_world


@pytest.fixture
def world(organizer: Person, volunteer: Person) -> World:
    return make_world(organizer, volunteer, "private")


def admin_pages() -> Iterator[str]:
    """Yield the address of every admin page. Pages about a row are shown for the first row."""
    yield from ("/admin/", "/admin/password_change/", "/admin/jsi18n/")
    for model in admin.site._registry:
        place = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        first = model._default_manager.order_by("pk").first()
        assert first is not None, model
        yield from (place, f"{place}{first.pk}/change/", f"{place}{first.pk}/history/")


def test_operators_see_every_page_and_nobody_else_sees_one(world: World, operator: Person, organizer: Person) -> None:
    pages = list(admin_pages())
    keeper = relay_keeper()  # a staff account that is not an operator
    assert len(pages) > 20
    for path in pages:
        assert as_(operator).get(path).status_code == 200, path
        for method in ("get", "post"):
            assert getattr(as_(organizer), method)(path).status_code == 403, path
            assert getattr(as_(keeper), method)(path).status_code == 403, path
            assert getattr(Client(), method)(path)["Location"].startswith("/login/?next=%2Fadmin%2F"), path


def test_nothing_is_added_or_deleted_and_records_are_not_changed(world: World, operator: Person) -> None:
    client, runs = as_(operator), Run.objects.count()
    for model in admin.site._registry:
        place = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        first = model._default_manager.order_by("pk").first()
        assert first is not None
        assert client.post(f"{place}add/").status_code == 403
        assert client.post(f"{place}{first.pk}/delete/", {"post": "yes"}).status_code == 403
        answer = client.post(place, {"action": "delete_selected", "_selected_action": [str(first.pk)], "post": "yes"})
        assert answer.status_code in (200, 302)
        if model in (LedgerEntry, LogEntry):
            assert client.post(f"{place}{first.pk}/change/", {"samples": 9}).status_code == 403
    assert LedgerEntry.objects.get().samples == 4
    assert Run.objects.count() == runs > 0


def test_the_login_page_leads_back(operator: Person) -> None:
    client = Client()
    where = client.get("/admin/")["Location"]
    assert client.post(where, {"username": "Ines", "password": PASSWORD})["Location"] == "/admin/"


class TestPeople:
    def do(self, operator: Person, action: str, *people: Person) -> str:
        data = {"action": action, "_selected_action": [str(person.pk) for person in people]}
        return page(as_(operator).post("/admin/accounts/person/", data, follow=True))

    def test_an_account_is_closed_and_opened(self, operator: Person, volunteer: Person, laptop: Owned) -> None:
        client = as_(volunteer)
        assert "The account of Teo is closed." in self.do(operator, "close", volunteer, operator)
        assert client.get("/account/").status_code == 302
        assert Machine.objects.get().revoked_at is not None
        assert "The account of Teo is open." in self.do(operator, "open", volunteer)
        assert Client().login(username="Teo", password=PASSWORD)
        assert as_(operator).get("/admin/").status_code == 200

    def test_a_link_for_a_new_password(self, operator: Person, volunteer: Person) -> None:
        link = re.search(r"http://testserver(/password/[\w/-]+/)", self.do(operator, "password_link", volunteer))
        assert link is not None
        assert "A new password for Teo" in page(Client().get(link[1]))

    def test_somebody_is_made_an_operator(self, operator: Person, volunteer: Person) -> None:
        as_(operator).post(f"/admin/accounts/person/{volunteer.pk}/change/", {"is_superuser": "on", "is_active": ""})
        volunteer.refresh_from_db()
        assert (volunteer.is_superuser, volunteer.is_staff, volunteer.is_active) == (True, True, True)


class TestRuns:
    def test_a_run_is_taken_off_the_list(self, world: World, operator: Person) -> None:
        data = {"title": "A model", "purpose": "", "visibility": "unlisted", "state": "finished"}
        as_(operator).post(f"/admin/runs/run/{world.run.pk}/change/", data)
        world.run.refresh_from_db()
        assert (world.run.title, world.run.visibility, world.run.state) == ("A model", "unlisted", "open")

    def test_contributor_stays_in_a_run_that_an_operator_closes(
        self, organizer: Person, volunteer: Person, laptop: Owned, operator: Person
    ) -> None:
        run = opened(organizer)
        committed(run, (laptop.machine, 4))
        data = {"title": "A model", "purpose": "", "visibility": "private"}
        as_(operator).post(f"/admin/runs/run/{run.pk}/change/", data)
        assert access_run(slug=run.slug, viewer=volunteer).title == "A model"
        told = [line.text for line in run.activity.all()]
        assert told[0] == "The run is by invitation now."
        assert told[1].startswith("An operator of this site changed the description.")

    def test_logs_are_as_long_as_their_rows_are_many(self, world: World, operator: Person) -> None:
        committed(world.run, (world.laptop, 4))
        committed(world.other, (world.laptop, 4), (Machine.objects.create(person=operator, public_key=b"1"), 4))
        client = as_(operator)
        for name, words, sought in (
            ("logentry", "3 log entries", "2 results"),
            ("ledgerentry", "4 ledger entries", "2 results"),
        ):
            assert words in page(client.get(f"/admin/runs/{name}/"))
            assert sought in page(client.get(f"/admin/runs/{name}/?q=proverbs"))

    def test_a_machine_is_revoked(self, world: World, operator: Person) -> None:
        data = {"action": "revoke", "_selected_action": [str(world.laptop.pk)]}
        as_(operator).post("/admin/accounts/machine/", data)
        world.laptop.refresh_from_db()
        assert world.laptop.revoked_at is not None
