"""The organizer's pages: invitations, members, drafts, length, announcements, alerts and rollbacks."""

import re
import time
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import Person
from coordination.models import Presence
from runs import storage
from runs.datasets.uploads import begin_upload, take_piece
from runs.lifecycle import membership
from runs.lifecycle.services import ask_rollback
from runs.models import Dataset, Invitation, Member, Release, Run, Upload
from tests.runs.factories import PASSWORD, Owned, committed, draft
from tests.runs.lifecycle.test_services import kept
from tests.web.browsing import as_, page
from tests.web.pages.runs.test_run import TEXT, filled
from tests.web.requesters import given_role

MANAGE = "/runs/proverbs/manage/"
LINK = re.compile(r"http://testserver(/runs/proverbs/join/[\w-]+/)")
ALERTS = "/runs/proverbs/alerts/"
ROLLED, ASK = "/runs/proverbs/manage/", "/runs/proverbs/rollback/2/"


@pytest.fixture
def closed(run: Run) -> Run:
    Run.objects.update(visibility=Run.Visibility.PRIVATE)
    run.refresh_from_db()
    return run


def link_of(organizer: Person, **fields: str) -> str:
    answer = as_(organizer).post("/runs/proverbs/invitations/", {"most_uses": "", "lifetime": "", **fields})
    found = LINK.search(page(answer))
    assert found is not None
    return found[1]


class TestInvitations:
    def test_a_link_leads_past_the_sign_up_into_the_run(self, closed: Run, organizer: Person) -> None:
        link, client = link_of(organizer, most_uses="1"), Client()
        assert client.get("/runs/proverbs/").status_code == 404
        text = page(client.get(link))
        assert "Amina</b> invited you" in text
        assert "A model of proverbs" in text
        sign_up = re.search(r'href="(/signup/[^"]+)"', text)
        assert sign_up is not None
        answer = client.post(sign_up[1], {"username": "Zoe", "password": PASSWORD})
        assert answer["Location"] == link
        assert "Accept as Zoe" in page(client.get(link))
        assert client.post(link)["Location"] == "/runs/proverbs/"
        assert client.get("/runs/proverbs/").status_code == 200
        assert "A model of proverbs" in page(client.get("/"))

    def test_and_past_the_log_in(self, closed: Run, organizer: Person, volunteer: Person) -> None:
        link, client = link_of(organizer), Client()
        log_in = re.search(r'href="(/login/\?next=[^"]+join[^"]+)"', page(client.get(link)))
        assert log_in is not None
        assert client.post(log_in[1], {"username": "Teo", "password": PASSWORD})["Location"] == link

    def test_looking_is_not_accepting(self, closed: Run, organizer: Person, volunteer: Person) -> None:
        as_(volunteer).get(link_of(organizer))
        Client().post(link_of(organizer))
        assert not Member.objects.exists()

    def test_a_link_that_does_not_work_says_so_with_its_number(self, closed: Run, organizer: Person) -> None:
        link = link_of(organizer)
        as_(organizer).post(f"/runs/proverbs/invitations/{Invitation.objects.get().pk}/")
        for path in (link, "/runs/proverbs/join/guess/", "/runs/none/join/guess/"):
            answer = Client().get(path)
            assert answer.status_code == 404
            assert "E313" in page(answer)
            assert "A model of proverbs" not in page(answer)

    def test_a_link_is_shown_once(self, closed: Run, organizer: Person) -> None:
        secret = link_of(organizer).rstrip("/").rsplit("/", 1)[-1]
        text = page(as_(organizer).get(MANAGE))
        assert secret not in text
        assert "Revoke" in text

    def test_a_member_who_follows_the_link_again_is_in(self, closed: Run, organizer: Person, volunteer: Person) -> None:
        link, client = link_of(organizer, most_uses="1"), as_(volunteer)
        client.post(link)
        assert client.get(link)["Location"] == "/runs/proverbs/"
        assert Client().get(link).status_code == 404


class TestMembers:
    def test_added_listed_removed(self, closed: Run, organizer: Person, volunteer: Person) -> None:
        client = as_(organizer)
        client.post("/runs/proverbs/members/", {"name": "teo"})
        assert "<tr><td>Teo" in page(client.get(MANAGE))
        assert as_(volunteer).get("/runs/proverbs/").status_code == 200
        client.post(f"/runs/proverbs/members/{Member.objects.get().pk}/")
        assert "<tr><td>Teo" not in page(client.get(MANAGE))
        answer = as_(volunteer).get("/runs/proverbs/")
        assert answer.status_code == 404
        assert "E305" in page(answer)

    def test_a_name_that_nobody_has_stays_in_its_field(self, closed: Run, organizer: Person) -> None:
        answer = as_(organizer).post("/runs/proverbs/members/", {"name": "Zoë"})
        assert answer.status_code == 400
        assert "(E314). There is no account named Zoë." in page(answer)
        assert 'value="Zoë"' in page(answer)


class TestRemovals:
    def test_somebody_is_removed_from_a_public_run_and_let_back(
        self, run: Run, laptop: Owned, organizer: Person
    ) -> None:
        client = as_(organizer)
        committed(run, (laptop.machine, 4))
        answer = client.post("/runs/proverbs/removed/", {"remove-name": "teo"})
        assert answer["Location"] == f"{MANAGE}?undo={Member.objects.get().pk}"
        text = page(client.get(answer["Location"]))
        assert 'aria-label="Restore access for Teo"' in text, "beside the undo of this moment"
        assert as_(laptop.machine.person).get("/runs/proverbs/").status_code == 200
        header = laptop.credential(run, now=int(time.time()))
        file = f"/api/v1/files/snapshots/{run.snapshots.get().file}"
        assert Client().get(file, headers=header).status_code == 404
        client.post(f"/runs/proverbs/removed/{Member.objects.get().pk}/")
        assert "<bdi>Teo</bdi>" not in page(client.get(MANAGE))
        assert Client().get(file, headers=header).status_code == 200
        assert '"name": "Teo"' in page(Client().get("/api/v1/runs/proverbs/leaderboard"))

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("Amina", "(E325). Amina"),
            ("<img src=x>", "(E314). There is no account named &lt;img src=x&gt;"),
            ("\u202eoeT", "E314"),
            ("", "This field is required."),
            ("x" * 31, "at most 30 characters"),
            ("a\x00b", "Null characters are not allowed"),
        ],
    )
    def test_a_name_that_does_not_do_stays_in_its_field(
        self, run: Run, organizer: Person, name: str, words: str
    ) -> None:
        answer = as_(organizer).post("/runs/proverbs/removed/", {"remove-name": name})
        assert answer.status_code == 400
        assert words in page(answer)
        assert "<img" not in page(answer)
        assert not Member.objects.exists()

    def test_member_removed_from_a_closed_run_can_be_let_back_in(
        self, closed: Run, organizer: Person, volunteer: Person
    ) -> None:
        member = membership.add_member(run=closed, name="Teo")
        membership.remove_member(member=member)
        client = as_(organizer)
        assert f"/runs/proverbs/removed/{member.pk}/" in page(client.get(MANAGE))
        client.post(f"/runs/proverbs/removed/{member.pk}/")
        assert as_(volunteer).get("/runs/proverbs/").status_code == 200


class TestDrafts:
    def test_everything_is_there_to_be_changed(self, organizer: Person, data_folder: Any) -> None:
        draft(organizer)
        client = as_(organizer)
        text = page(client.get("/runs/proverbs/edit/"))
        assert 'name="title" value="A model of proverbs"' in text
        assert 'name="context" value="8"' in text
        assert "Leave empty to keep proverbs.txt." in text
        fields = {"context": "16", "vocab": "2048", "licence": "CC BY", "title": "Riddles", "text": None}
        answer = client.post("/runs/proverbs/edit/", filled(**fields))
        assert answer["Location"] == MANAGE
        run = Run.objects.get()
        assert (run.title, run.parsed_recipe.least_size(), run.dataset.licence) == ("Riddles", 16, "CC BY")
        assert run.dataset.filename == "proverbs.txt"

    def test_a_draft_may_become_one_of_another_recipe(self, organizer: Person, data_folder: Any) -> None:
        draft(organizer)
        client = as_(organizer)
        assert 'name="masked"' in page(client.get("/runs/proverbs/edit/?recipe=masked_lm"))
        values = filled(objective="masked_lm", family="albert", context="16", text=None)
        client.post("/runs/proverbs/edit/?recipe=masked_lm", values)
        run = Run.objects.get()
        assert run.parsed_recipe.objective == "masked_lm"
        assert run.dataset.state == "uploaded", "its text is cut anew"
        assert 'name="masked"' in page(client.get("/runs/proverbs/edit/"))

    def test_error_stands_beside_its_field_and_changes_nothing(self, organizer: Person, data_folder: Any) -> None:
        draft(organizer)
        answer = as_(organizer).post("/runs/proverbs/edit/", filled(target_batch="100000", title="Riddles"))
        assert "(E307). The dataset yields" in page(answer)
        assert Run.objects.get().title == "A model of proverbs"
        assert Dataset.objects.count() == 1

    def test_an_open_run_keeps_its_recipe(self, run: Run, organizer: Person) -> None:
        assert 'name="layers"' not in page(as_(organizer).get("/runs/proverbs/edit/"))
        words = {"title": "Riddles", "purpose": "", "visibility": "unlisted", "layers": "9"}
        as_(organizer).post("/runs/proverbs/edit/", words)
        after = Run.objects.get()
        assert (after.title, after.visibility, after.recipe) == ("Riddles", "unlisted", run.recipe)

    def test_a_draft_is_deleted_after_a_question(self, organizer: Person, data_folder: Any) -> None:
        draft(organizer)
        assert "This cannot be undone" in page(as_(organizer).get("/runs/proverbs/delete/"))
        assert Run.objects.exists()
        as_(organizer).post("/runs/proverbs/delete/")
        assert not Run.objects.exists()

    def test_an_open_run_is_not(self, run: Run, organizer: Person) -> None:
        answer = as_(organizer).post("/runs/proverbs/delete/")
        assert answer.status_code == 409
        assert "(E315). This cannot be done: the run is open." in page(answer)

    def test_an_open_run_without_a_step_is_taken_back_and_deleted(self, run: Run, organizer: Person) -> None:
        client = as_(organizer)
        assert 'value="take_back"' in page(client.get(MANAGE))
        client.post(MANAGE, {"action": "take_back"})
        text = page(client.get(MANAGE))
        assert re.search(r"with 20 laptops: [\d,]+ steps", text), "what the real number of steps takes"
        assert "Publish run" in text
        assert 'value="take_back"' not in text
        assert "Join in" not in page(client.get("/runs/proverbs/"))
        client.post("/runs/proverbs/delete/")
        assert not Run.objects.exists()

    def test_one_with_a_step_is_not(self, run: Run, laptop: Owned, organizer: Person) -> None:
        committed(run, (laptop.machine, 4))
        client = as_(organizer)
        assert 'value="take_back"' not in page(client.get(MANAGE))
        answer = client.post(MANAGE, {"action": "take_back"})
        assert answer.status_code == 400
        assert "(E323). The run has made a step" in page(answer)

    def test_the_page_shows_what_became_of_the_text(self, organizer: Person, data_folder: Any) -> None:
        run = draft(organizer)
        Dataset.objects.update(vouched_by=organizer, vouched_at=run.created_at)
        text = page(as_(organizer).get(MANAGE))
        assert "1,000, vocabulary 2,048" in text
        assert "4,000</dd>" in text
        assert "<dt>Sharing confirmed by</dt><dd>Amina," in text

    def test_page_reloads_without_a_form_during_preparation(self, organizer: Person, data_folder: Any) -> None:
        draft(organizer, visibility="private")
        Dataset.objects.update(state="preparing")
        client = as_(organizer)
        text = page(client.get(MANAGE))
        assert '<meta http-equiv="refresh"' in text
        assert 'name="name"' not in text
        answer = client.post("/runs/proverbs/invitations/", {"most_uses": "1", "lifetime": ""})
        assert LINK.search(page(answer))
        assert "refresh" not in page(answer), "the link is shown once"
        Dataset.objects.update(state="ready")
        text = page(client.get(MANAGE))
        assert 'name="name"' in text
        assert "refresh" not in text

    def test_what_is_wrong_now_stands_at_the_top(self, organizer: Person, data_folder: Any) -> None:
        draft(organizer)
        client = as_(organizer)
        assert "Problems" not in page(client.get(MANAGE))
        Dataset.objects.update(state="failed", fault_code="E328", fault_text="The disk is <b>full</b>.")
        text = page(client.get(MANAGE))
        assert text.index("Problems") < text.index('id="now"')
        assert "<strong>Site&#x27;s disk is full</strong> (E328). The disk is &lt;b&gt;full&lt;/b&gt;." in text
        assert text.count("(E328)") == 1

    @pytest.mark.parametrize(
        ("state", "code", "first"),
        [
            ("ready", "", ["Publish run"]),
            ("preparing", "", []),
            ("failed", "E302", ["Choose another file"]),
            ("failed", "E328", ["Try again"]),
        ],
    )
    def test_the_first_button_of_a_draft_is_what_helps(
        self, state: str, code: str, first: list[str], organizer: Person, data_folder: Any
    ) -> None:
        draft(organizer)
        Dataset.objects.update(state=state, fault_code=code)
        client = as_(organizer)
        text = page(client.get(MANAGE))
        assert re.findall(r'class="(?:button )?main"[^>]*>([^<]+)<', text) == first
        assert ("Try again" in text) == (code == "E328")
        if code:
            assert re.findall(r'class="(?:button )?main"[^>]*>([^<]+)<', page(client.get("/runs/proverbs/"))) == first

    def test_a_failed_draft_tells_its_error_once(self, organizer: Person, data_folder: Any) -> None:
        draft(organizer)
        Dataset.objects.update(state="failed", fault_code="E302", fault_text="The text is not UTF-8.")
        Run.objects.update(waiting_for="E302: The text is not UTF-8.")
        for path in (MANAGE, "/runs/proverbs/"):
            text = page(as_(organizer).get(path)).split("<h1>")[1]
            assert text.count("The text is not UTF-8.") == 1
            assert "The dataset could not be prepared." in text
            assert "These steps no longer count as credit." not in text

    def test_what_was_just_refused_is_told_once(self, organizer: Person, data_folder: Any) -> None:
        draft(organizer)
        Dataset.objects.update(state="failed", fault_code="E302", fault_text="The text is not UTF-8.")
        text = page(as_(organizer).post(MANAGE, {"action": "open"}))
        assert text.count("(E302)") == 1

    def test_the_page_is_fetched_anew_when_it_begins_or_ends(self, organizer: Person, data_folder: Any) -> None:
        """The page's script reloads the page if the run's state, release, text or reason for waiting changes.
        `waiting_for` covers a missing relay (E409).
        """
        draft(organizer)
        Run.objects.update(waiting_for="no relay is connected")
        text = page(as_(organizer).get(MANAGE))
        assert 'data-standing="failed|draft|||ready|no relay is connected"' in text

    def test_markup_and_right_to_left_writing_stay_in_their_place(self, organizer: Person) -> None:
        client = as_(organizer)
        title = "\u202egnp.<img src=x> أمثال"
        client.post("/runs/new/", filled(title=title, filename="أمثال.txt", visibility="private"))
        slug = Run.objects.get().slug
        for path in ("/", f"/runs/{slug}/", f"/runs/{slug}/manage/", f"/runs/{slug}/delete/"):
            text = page(client.get(path))
            assert "<bdi>\u202egnp.&lt;img src=x&gt; أمثال</bdi>" in text
            assert "<img" not in text


class TestStart:
    def test_it_is_set_shown_and_left_out_by_a_button(self, run: Run, organizer: Person) -> None:
        client, at = as_(organizer), (timezone.now() + timedelta(days=3)).replace(second=0, microsecond=0)
        client.post("/runs/proverbs/start/", {"starts_at": f"{at:%Y-%m-%dT%H:%M}"})
        assert Run.objects.get().starts_at == at
        text = page(client.get(MANAGE))
        assert f'value="{at:%Y-%m-%dT%H:%M}"' in text
        assert f'<time datetime="{at.isoformat()}" data-start>' in text
        shown = page(Client().get("/runs/proverbs/"))
        assert "Starts <span data-left>in 3 days</span>" in shown
        assert "Nobody is ready yet." in shown
        assert 'href="/runs/proverbs/start.ics"' in shown
        assert f"Starts {at:%A} {at.day} {at:%B}" in page(Client().get("/"))
        client.post(MANAGE, {"action": "start_now"})
        assert Run.objects.get().starts_at is None
        assert "start_now" not in page(client.get(MANAGE))

    @pytest.mark.parametrize("days", [-1, 400])
    def test_a_time_in_the_past_or_far_away_is_refused(self, run: Run, organizer: Person, days: int) -> None:
        at = timezone.now() + timedelta(days=days)
        answer = as_(organizer).post("/runs/proverbs/start/", {"starts_at": f"{at:%Y-%m-%dT%H:%M}"})
        assert answer.status_code == 400
        assert "Choose a time in the future" in page(answer)
        assert Run.objects.get().starts_at is None

    def test_it_is_not_offered_after_the_first_step(self, run: Run, organizer: Person, laptop: Owned) -> None:
        assert 'action="/runs/proverbs/start/"' in page(as_(organizer).get(MANAGE))
        committed(run, (laptop.machine, 4))
        assert 'action="/runs/proverbs/start/"' not in page(as_(organizer).get(MANAGE))
        at = timezone.now() + timedelta(days=1)
        answer = as_(organizer).post("/runs/proverbs/start/", {"starts_at": f"{at:%Y-%m-%dT%H:%M}"})
        assert "the run is under way" in page(answer)


class TestGathering:
    GATHER = "/runs/proverbs/gather/"

    def test_goal_and_chat_are_shown_on_the_runs_page(self, run: Run, organizer: Person) -> None:
        as_(organizer).post(self.GATHER, {"people": "20", "chat": "HTTPS://matrix.to/#/#a&b"})
        text = page(Client().get("/runs/proverbs/"))
        assert "0 of the 20 people hoped for" in text
        assert '<a href="https://matrix.to/#/#a&amp;b" rel="noopener nofollow">Chat' in text
        as_(organizer).post(self.GATHER, {"people": "", "chat": ""})
        text = page(Client().get("/runs/proverbs/"))
        assert 'class="goal"' not in text
        assert "nofollow" not in text

    @pytest.mark.parametrize("chat", ["javascript:alert(1)", "javascript://x.org/%0aalert(1)", "ftp://x.org", "chat"])
    def test_a_chat_is_on_the_web(self, run: Run, organizer: Person, chat: str) -> None:
        answer = as_(organizer).post(self.GATHER, {"people": "0", "chat": chat})
        assert answer.status_code == 400
        assert "Enter an address with https://." in page(answer)
        assert "greater than or equal to 1" in page(answer)


class TestLength:
    def test_a_live_run_is_made_longer(self, run: Run, organizer: Person) -> None:
        as_(organizer).post("/runs/proverbs/extend/", {"target_steps": "500"})
        assert Run.objects.get().parsed_recipe.target_steps == 500

    @pytest.mark.parametrize(
        ("steps", "words"), [("50", "E316"), ("", "This field is required"), ("x", "whole number")]
    )
    def test_what_is_not_longer_is_refused(self, run: Run, organizer: Person, steps: str, words: str) -> None:
        answer = as_(organizer).post("/runs/proverbs/extend/", {"target_steps": steps})
        assert answer.status_code == 400
        assert words in page(answer)

    def test_a_run_is_ended_after_a_question(self, run: Run, organizer: Person, laptop: Owned) -> None:
        client = as_(organizer)
        assert "/finish/" not in page(client.get(MANAGE))
        committed(run, (laptop.machine, 4))
        assert "/finish/" in page(client.get(MANAGE))
        assert "at step 1 of 100" in page(client.get("/runs/proverbs/finish/"))
        client.post("/runs/proverbs/finish/")
        assert Run.objects.get().wanted == "finished"
        text = page(client.get(MANAGE))
        assert "The run was ended at step 1." in text
        assert ">Pause<" not in text

    def test_without_a_step_it_is_refused_in_words(self, run: Run, organizer: Person) -> None:
        answer = as_(organizer).post("/runs/proverbs/finish/")
        assert answer.status_code == 409
        assert "E320" in page(answer)


class TestTextsInPieces:
    def test_a_form_takes_a_text_that_is_here_already(self, organizer: Person) -> None:
        upload = take_piece(
            upload=begin_upload(person=organizer, filename="proverbs.txt", size=len(TEXT)), offset=0, piece=TEXT
        )
        as_(organizer).post("/runs/new/", filled(text=None, upload=str(upload.pk)))
        dataset = Run.objects.get().dataset
        assert (dataset.filename, dataset.vouched_by) == ("proverbs.txt", organizer)
        assert storage.text_path(dataset).read_bytes() == TEXT

    def test_a_form_with_faults_keeps_it(self, organizer: Person) -> None:
        upload = take_piece(
            upload=begin_upload(person=organizer, filename="proverbs.txt", size=len(TEXT)), offset=0, piece=TEXT
        )
        for changes in ({"title": ""}, {"target_batch": "100000"}):
            answer = as_(organizer).post("/runs/new/", filled(text=None, upload=str(upload.pk), **changes))
            assert f'name="upload" value="{upload.pk}"' in page(answer)
            assert "is already uploaded" in page(answer)
        assert Upload.objects.get() == upload

    @pytest.mark.parametrize("piece", [b"", TEXT[:10]])
    def test_half_a_text_is_refused(self, organizer: Person, piece: bytes) -> None:
        upload = begin_upload(person=organizer, filename="proverbs.txt", size=len(TEXT))
        take_piece(upload=upload, offset=0, piece=piece)
        answer = as_(organizer).post("/runs/new/", filled(text=None, upload=str(upload.pk)))
        assert "E318" in page(answer)
        assert not Dataset.objects.exists()

    def test_anothers_upload_is_not_there(self, organizer: Person, stranger: Person) -> None:
        upload = take_piece(
            upload=begin_upload(person=stranger, filename="proverbs.txt", size=len(TEXT)), offset=0, piece=TEXT
        )
        answer = as_(organizer).post("/runs/new/", filled(text=None, upload=str(upload.pk)))
        assert "E318" in page(answer)
        assert Upload.objects.get() == upload


class TestAccess:
    def test_a_draft_is_not_said_to_be_listed(self, organizer: Person) -> None:
        draft(organizer, slug="proverbs")
        text = page(as_(organizer).get(MANAGE))
        assert "Once published, the run is listed and anyone can join." in text
        assert "Anyone can join" not in text

    def test_a_finished_run_invites_nobody(self, run: Run, organizer: Person, volunteer: Person) -> None:
        Run.objects.filter(pk=run.pk).update(state=Run.State.FINISHED)
        text = page(as_(organizer).get(MANAGE))
        assert "Anyone can join" not in text
        assert "Remove a volunteer" not in text
        Run.objects.filter(pk=run.pk).update(visibility=Run.Visibility.PRIVATE)
        membership.add_member(run=run, name=volunteer.username)
        text = page(as_(organizer).get(MANAGE))
        assert "Teo" in text, "its members can still be seen, and removed"
        assert "Invite with a link" not in text

    def test_a_finished_run_has_one_filled_button(self, run: Run, organizer: Person) -> None:
        Run.objects.filter(pk=run.pk).update(state=Run.State.FINISHED)
        Release.objects.create(run=run, state=Release.State.READY)
        text = page(as_(organizer).get(MANAGE))
        assert "Publish to the Hub" in text
        assert len(re.findall(r'class="(?:button )?main"', text)) == 1

    def test_members_who_are_here_are_marked(self, run: Run, organizer: Person, volunteer: Person) -> None:
        Run.objects.filter(pk=run.pk).update(visibility=Run.Visibility.PRIVATE)
        membership.add_member(run=run, name=volunteer.username)
        mark = 'Teo <span class="now">● now</span>'
        assert mark not in page(as_(organizer).get(MANAGE))
        peer = {"peer": "a" * 32, "name": "Teo", "role": "trainer", "state": "ready", "done": 0, "samples_per_s": 1.0}
        Presence.objects.create(run=run, phase="accumulate", done=0, target=4, members=[peer])
        assert mark in page(as_(organizer).get(MANAGE))

    def test_a_part_that_waits_is_renewed_and_one_with_forms_is_kept(self, organizer: Person) -> None:
        """A waiting part must reload to show invitations. Reloading a form would delete what someone has typed."""
        run = draft(organizer, slug="proverbs", visibility=Run.Visibility.PRIVATE)
        assert 'id="part-people" data-keep' in page(as_(organizer).get(MANAGE))
        run.dataset.state = "preparing"
        run.dataset.save()
        text = page(as_(organizer).get(MANAGE))
        assert 'id="part-people">' in text
        assert "You can invite people once the dataset is prepared." in text


class TestAnnouncement:
    def test_everybody_reads_it_until_there_is_another(self, run: Run, organizer: Person, client: Client) -> None:
        mine = as_(organizer)
        text = "Back on Monday <b>at nine</b>"
        for _ in range(2):
            assert mine.post("/runs/proverbs/announce/", {"text": text})["Location"] == "/runs/proverbs/manage/"
        shown = page(client.get("/runs/proverbs/"))
        assert '<p class="announcement" dir="auto">Back on Monday &lt;b&gt;at nine&lt;/b&gt;</p>' in shown
        assert run.activity.filter(kind="announced").count() == 1, "saying it twice says it once"
        assert "Back on Monday" in client.get("/runs/proverbs/feed.rss").content.decode()
        assert "announced" in page(client.get("/runs/proverbs/activity/?show=organizer"))
        mine.post("/runs/proverbs/announce/", {"text": ""})
        assert "announcement" not in page(client.get("/runs/proverbs/")).replace('id="part-announcement"', "")

    def test_one_that_is_too_long_stays_in_its_field(self, run: Run, organizer: Person) -> None:
        answer = as_(organizer).post("/runs/proverbs/announce/", {"text": "x" * 281})
        assert answer.status_code == 400
        assert "x" * 281 in page(answer)
        assert Run.objects.get().announcement == ""

    def test_whose_run_has_no_machine_reads_how_to_add_one(self, run: Run, organizer: Person, laptop: Owned) -> None:
        link = 'data-copy="Copy the invitation link"><code>http://testserver/runs/proverbs/</code></pre>'
        text = page(as_(organizer).get("/runs/proverbs/manage/"))
        assert link in text
        assert text.count("http://testserver/runs/proverbs/<") == 1, "each address once"
        assert '<a href="/runs/proverbs/">Add my own machine</a>' in text
        committed(run, (laptop.machine, 4))
        text = page(as_(organizer).get("/runs/proverbs/manage/"))
        assert text.count("http://testserver/runs/proverbs/<") == 1
        assert "Add my own machine" not in text

    def test_a_hundred_are_listed_at_a_time(self, closed: Run, organizer: Person) -> None:
        people = Person.objects.bulk_create(Person(username=f"guest-{place:03}") for place in range(102))
        Member.objects.bulk_create(Member(run=closed, person=person) for person in people)
        first = page(as_(organizer).get(MANAGE))
        assert ("guest-099" in first, "guest-100" in first) == (True, False)
        assert 'href="/runs/proverbs/manage/?members=100#members"' in first
        rest = page(as_(organizer).get(f"{MANAGE}?members=100"))
        assert ("guest-099" in rest, "guest-101" in rest) == (False, True)
        assert 'href="/runs/proverbs/manage/?members=0#members"' in rest
        assert "Next 100" not in rest
        assert "guest-000" in page(as_(organizer).get(f"{MANAGE}?members=-1"))
        assert "Previous 100" in page(as_(organizer).get(f"{MANAGE}?members=900"))


@pytest.mark.parametrize(
    ("state", "role", "groups"),
    [
        (
            Run.State.DRAFT,
            None,
            {
                "Model and data": ["text", "base", "publish", "trials"],
                "Training": ["details"],
                "People": ["people", "gather", "roles"],
                "Delete draft": [],
            },
        ),
        (
            Run.State.OPEN,
            None,
            {
                "Training": ["details", "length", "alerts", "rollback"],
                "People": ["people", "gather", "roles", "announce"],
                "Model and data": ["text", "publish", "trials"],
                "End run": [],
            },
        ),
        (Run.State.OPEN, Run.Role.MODERATOR, {"People": ["people", "roles", "announce"]}),
        (
            Run.State.FINISHED,
            None,
            {"Model and data": ["publish", "trials", "details", "text"], "People": ["roles", "announce"]},
        ),
    ],
)
def test_settings_are_grouped_and_the_last_group_ends_the_run(
    trained: Run, stranger: Person, state: Run.State, role: Run.Role | None, groups: dict[str, list[str]]
) -> None:
    Run.objects.update(state=state)
    if role is not None:
        given_role(trained, stranger, role)
    text = page(as_(stranger if role else "Amina").get(MANAGE))
    found = re.split(r'<section class="card" aria-labelledby="\w+"> <h2 id="\w+"[^>]*>([^<]*)</h2>', text)[1:]
    shown = dict(zip(found[::2], found[1::2], strict=True))
    assert {title: re.findall(r'<h3 id="(\w+)"', rows) for title, rows in shown.items()} == groups
    listed = re.findall(r">([^<]+)</a>", text.partition("data-sections>")[2].partition("</nav>")[0])
    assert all(title not in ("Delete draft", "End run") for title in [*groups][:-1])
    assert listed == ([*groups] if len(groups) > 1 else []), "a single group needs no list"
    assert ('class="hidden">People</h2>' in text) == (len(groups) == 1), "nor a heading"


@pytest.fixture
def stalled(run: Run, laptop: Owned) -> Run:
    """Return a run with one machine online, whose last step was two hours ago."""
    entry, ago = committed(run, (laptop.machine, 4)), timezone.now() - timedelta(hours=2)
    type(entry).objects.update(at=ago)
    member = {"peer": laptop.machine.peer_id, "name": "Teo", "state": "ready", "done": 1, "samples_per_s": 1.0}
    members = [{**member, "role": "trainer"}, {**member, "role": "relay", "name": "operator"}]
    Presence.objects.create(run=run, phase="accumulate", target=4, members=members, crowd=[[ago.timestamp(), 1]])
    return run


@pytest.mark.parametrize("role", [None, Run.Role.CO_ORGANIZER, Run.Role.MODERATOR])
def test_they_stand_on_both_pages_for_those_who_have_a_role(
    stalled: Run, stranger: Person, role: Run.Role | None
) -> None:
    if role is not None:
        given_role(stalled, stranger, role)
    client = as_(stranger) if role else as_("Amina")
    text = page(client.get(MANAGE))
    assert "<strong>Step takes too long</strong> (E421). No step has been made since" in text
    assert "<strong>Step takes too long.</strong> <a" in page(client.get("/runs/proverbs/"))


def test_a_stuck_run_is_nowhere_said_to_train(stalled: Run) -> None:
    text = page(Client().get("/runs/proverbs/"))
    assert '<span class="badge stuck"><span class="hidden">Stuck' in text
    assert "● now" not in text
    assert "● now" not in page(Client().get("/runs/proverbs/leaderboard/"))
    Presence.objects.update(crowd=[[timezone.now().timestamp(), 1]])
    assert "● now" in page(Client().get("/runs/proverbs/"))
    assert "● now" in page(Client().get("/runs/proverbs/leaderboard/"))


def test_nobody_else_reads_of_them(stalled: Run, volunteer: Person) -> None:
    for client in (Client(), as_(volunteer)):
        assert "See what to do" not in page(client.get("/runs/proverbs/"))


def test_a_run_without_trouble_says_nothing(run: Run, organizer: Person) -> None:
    assert "See what to do" not in page(as_(organizer).get("/runs/proverbs/"))


def test_a_minimum_is_set_shown_and_taken_off(stalled: Run, organizer: Person) -> None:
    client = as_(organizer)
    assert client.post(ALERTS, {"machines": "3"})["Location"] == MANAGE
    text = page(client.get(MANAGE))
    assert 'name="machines" value="3"' in text
    assert "(E422). Only 1 machine has been training since" in text
    assert "<strong>Step takes too long.</strong> <strong>Few machines.</strong>" in page(client.get("/runs/proverbs/"))
    client.post(ALERTS, {"machines": ""})
    assert "E422" not in page(client.get(MANAGE))
    assert Run.objects.get().least_machines is None


@pytest.mark.parametrize("machines", ["0", "-1", "x", "100001", "1.5"])
def test_what_is_no_number_of_machines_stays_in_its_field(run: Run, organizer: Person, machines: str) -> None:
    answer = as_(organizer).post(ALERTS, {"machines": machines})
    assert answer.status_code == 400
    assert f'value="{machines}"' in page(answer)
    assert Run.objects.get().least_machines is None


@pytest.fixture
def trained(run: Run, laptop: Owned) -> Run:
    for step in range(1, 6):
        committed(run, (laptop.machine, 4))
        if step in (2, 4):
            kept(run, step, heldout_loss=2.0 + step)
    return run


@pytest.mark.usefixtures("trained")
def test_snapshots_stand_there_with_the_best_one_marked() -> None:
    text = page(as_("Amina").get(ROLLED))
    assert text.index("/runs/proverbs/rollback/4/") < text.index(ASK) < text.index("/runs/proverbs/rollback/0/")
    best = text[text.index("<td><span>2") :].split("</td>")[0]
    assert "best" in best
    assert text.count(">best<") == 1
    assert "4.000" in text


@pytest.mark.usefixtures("trained")
def test_it_is_asked_once_with_what_it_means(trained: Run) -> None:
    text = page(as_("Amina").get(ASK))
    assert "Roll back to step 2?" in text
    assert "Rolling back will discard the 3 steps after step 2." in text
    assert "These steps no longer count as credit." in text
    assert "Every machine reloads the snapshot of step 2" in text
    trained.refresh_from_db()
    assert trained.rollback_index is None
    assert as_("Amina").post(ASK)["Location"] == ROLLED
    trained.refresh_from_db()
    assert trained.rollback_index == 2
    assert "being rolled back to step 2" in page(as_("Amina").get(ROLLED))


def test_one_step(trained: Run) -> None:
    assert "Rolling back will discard the step after step 4." in page(as_("Amina").get("/runs/proverbs/rollback/4/"))


@pytest.mark.parametrize("index", ["3", "99", "9" * 30])
@pytest.mark.usefixtures("trained")
def test_what_is_no_snapshot_is_not_found(index: str) -> None:
    assert as_("Amina").get(f"/runs/proverbs/rollback/{index}/").status_code == 404


def test_a_finished_run_says_so_and_offers_none(trained: Run) -> None:
    Run.objects.update(state=Run.State.FINISHED)
    answer = as_("Amina").post(ASK)
    assert answer.status_code == 409
    assert "the run is finished" in page(answer)
    assert "rollback/" not in page(as_("Amina").get(ROLLED))


def test_one_that_is_chosen_already_says_so(trained: Run) -> None:
    ask_rollback(run=trained, index=4)
    assert "it is being rolled back" in page(as_("Amina").post(ASK))
