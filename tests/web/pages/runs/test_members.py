"""Pages for roles and requests to join, and what a run tells people who may join."""

import re
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from accounts.models import Person
from coordination.presence import OnlinePeer
from runs.lifecycle import joining, membership
from runs.models import JoinRequest, Run, RunRole, Snapshot
from tests.runs.factories import Owned, committed, opened, owned
from tests.web.browsing import as_, page
from tests.web.requesters import given_role
from web.pages.runs.run import room_words

MANAGE, ROLE = "/runs/proverbs/manage/", "/runs/proverbs/role/"
MODERATOR = {"role-name": "teo", "role-role": "moderator"}
PATH = "/runs/asked/"


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
    def test_a_number_of_nobody(self, run: Run, organizer: Person, volunteer: Person, number: str) -> None:
        as_(organizer).post("/runs/proverbs/removed/", {"remove-name": "Teo"})
        for place in (MANAGE, self.BOARD):
            assert "was removed" in page(as_(organizer).get(place, {"undo": run.members.get().pk}))
            answer = as_(organizer).get(place, {"undo": number})
            assert answer.status_code == 200
            assert "was removed" not in page(answer)


@pytest.fixture
def asked(organizer: Person) -> Run:
    return opened(organizer, slug="asked", visibility=Run.Visibility.REQUEST)


def ask(person: Person, message: str = "") -> Any:
    return as_(person).post(f"{PATH}request/", {"message": message})


def answer(person: Person, request: JoinRequest, word: str) -> Any:
    return as_(person).post(f"{PATH}requests/{request.pk}/", {"answer": word})


def test_from_the_button_to_the_line_that_joins(asked: Run, volunteer: Person) -> None:
    shown = page(as_(volunteer).get(PATH))
    assert shown.count(">Ask to join</button>") == 1
    assert ">Ask to join</button>" in page(as_(volunteer).get(f"{PATH}own/")), "the form stays as the page is renewed"
    assert "manyhands join" not in shown, "a machine would be refused"
    assert ask(volunteer, "I have <b>two</b> machines").status_code == 302
    shown = page(as_(volunteer).get(PATH))
    request = JoinRequest.objects.get()
    assert f"You asked to join on {request.asked_at.day} {request.asked_at:%B}." in shown
    assert "Withdraw request" in shown
    managed = page(as_(asked.organizer).get(f"{PATH}manage/"))
    assert "I have &lt;b&gt;two&lt;/b&gt; machines" in managed
    assert 'aria-label="Accept Teo"' in managed
    assert "1 person asked to join this run." in page(as_(asked.organizer).get(PATH))
    assert answer(asked.organizer, request, "accept").status_code == 302
    assert "manyhands join" in page(as_(volunteer).get(PATH))
    managed = page(as_(asked.organizer).get(f"{PATH}manage/"))
    assert "No requests." in managed
    assert 'aria-label="Remove Teo"' in managed


def test_whoever_is_not_logged_in_is_led_there(asked: Run, client: Client) -> None:
    shown = page(client.get(PATH))
    assert f'href="/login/?next={PATH}%23join">Log in to ask</a>' in shown
    stage = shown[shown.index('id="part-stage"') : shown.index('id="part-result"')]
    assert len(re.findall('class="button', stage)) == 1
    assert shown.count(">Ask to join</h2>") == 1
    assert "manyhands join" not in shown
    assert 'action="/runs/asked/request/"' not in shown


def test_a_request_is_taken_back(asked: Run, volunteer: Person) -> None:
    ask(volunteer)
    assert as_(volunteer).post(f"{PATH}request/", {"take_back": "1"}).status_code == 302
    assert not JoinRequest.objects.exists()
    assert "You asked" not in page(as_(volunteer).get(PATH))


def test_who_was_declined_reads_when_they_may_ask_again(asked: Run, volunteer: Person) -> None:
    ask(volunteer, "Please")
    answer(asked.organizer, JoinRequest.objects.get(), "decline")
    shown = page(as_(volunteer).get(PATH))
    assert "The request was declined on" in shown
    assert "You can ask again from" in shown
    assert 'action="/runs/asked/request/"' not in shown
    refused = ask(volunteer)
    assert refused.status_code == 409
    assert "(E411)" in page(refused)


def test_who_was_removed_is_told_so(asked: Run, volunteer: Person) -> None:
    membership.remove_person(run=asked, name=volunteer.username)
    shown = page(as_(volunteer).get(PATH))
    assert "You were removed from this run" in shown
    assert 'action="/runs/asked/request/"' not in shown
    assert ask(volunteer).status_code == 409


@pytest.mark.parametrize("message", ["x" * 501, "a\0b"])
def test_a_message_has_its_bounds(asked: Run, volunteer: Person, message: str) -> None:
    refused = ask(volunteer, message)
    assert refused.status_code == 400
    assert 'aria-invalid="true"' in page(refused)
    assert not JoinRequest.objects.exists()


def test_an_answer_to_what_is_no_more_does_nothing(asked: Run, volunteer: Person) -> None:
    ask(volunteer)
    request = JoinRequest.objects.get()
    assert answer(asked.organizer, request, "perhaps").status_code == 404
    joining.take_back(run=asked, person=volunteer)
    assert answer(asked.organizer, request, "accept").status_code == 302
    assert not membership.members_of(asked).exists()


def test_requests_are_counted(asked: Run, volunteer: Person, settings: Any) -> None:
    settings.RATES = settings.RATES | {"requests to join": (1, 60)}
    cache.clear()
    assert [ask(volunteer).status_code for _ in range(2)] == [302, 429]


def test_who_asks_on_a_list_finds_the_run(asked: Run, client: Client) -> None:
    assert "by request" in page(client.get("/"))
    Run.objects.update(visibility="private")
    assert asked.title not in page(client.get("/"))


def test_a_page_shows_what_snapshots_write(run: Run, client: Client) -> None:
    """A model can write markup, which must be escaped."""
    committed(run, (owned(run.organizer).machine, 4))
    assert 'aria-labelledby="written" hidden>' in page(client.get(f"/runs/{run.slug}/"))
    facts = {"digest": "2" * 64, "state_digest": "1" * 16, "file": "3" * 64, "size": 5}
    Snapshot.objects.create(run=run, index=20, step=20, written=[["Many", " <b>hands</b>"], ["", "alone"]], **facts)
    shown = page(client.get(f"/runs/{run.slug}/"))
    assert "<strong>Many</strong> &lt;b&gt;hands&lt;/b&gt;" in shown
    assert "Step 20" in shown
    assert "The model started without a prompt." in shown
    part = client.get(f"/runs/{run.slug}/feed.json").json()["parts"]["written"]
    assert " ".join(part.split()) in shown, "an open page gets what a new one has"


@pytest.mark.parametrize(
    ("state", "here", "words"),
    [
        ("open", 0, "Room for 2 more machines."),
        ("open", 1, "Room for 1 more machine."),
        ("open", 2, "another machine would often be idle."),
        ("open", 9, "another machine would often be idle."),
        ("paused", 0, "The run is paused; machines that join wait until it resumes."),
    ],
)
def test_who_may_join_reads_whether_there_is_work(run: Run, state: str, here: int, words: str) -> None:
    run.state = state
    peers = [OnlinePeer(f"{place:032x}", "Teo", "trainer", "ready", 0, 1.0) for place in range(here)]
    relay = OnlinePeer("f" * 32, "operator", "relay", "ready", 0, 0.0)
    assert words in room_words(run, [*peers, relay])


def test_who_may_join_reads_what_a_machine_needs(run: Run, client: Client) -> None:
    shown = page(client.get(f"/runs/{run.slug}/"))
    assert re.search(r"You need about [\d.,]+ .B of memory, a [\d.,]+ .B first download", shown)
