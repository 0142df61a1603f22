"""Deleting an account: the name disappears everywhere, but the contribution still counts."""

from datetime import timedelta
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.utils import timezone

from accounts.models import FORMER, Machine, Person, Token
from accounts.services import create_token, sign_up
from coordination.models import Presence
from jobs.models import Job
from jobs.queue import Kind
from notices import services as notices
from notices.models import Choice, Event, Mailbox, Notice, Way, Webhook
from peer_agent.protocol.errors import Problem
from runs import storage
from runs.datasets.uploads import begin_upload
from runs.departure import HOSTS_KNOW_S, delete_account, forget_lines, without_name
from runs.ledger import standings
from runs.lifecycle import drafts, membership, roles, services
from runs.models import Dataset, LedgerEntry, Member, NamedVolunteer, Release, Run
from runs.releases.card_facts import set_named
from runs.releases.making import is_stale
from runs.timeline import add_line, trail_of
from tests.jobs.requests import do, requested
from tests.runs.factories import RECIPE, Owned, committed, draft, opened
from tests.web.requesters import given_role


@pytest.fixture
def run(organizer: Person, laptop: Owned) -> Run:
    run = opened(organizer)
    committed(run, (laptop.machine, 4))
    return run


def test_names_and_secrets_go_and_credit_stays(run: Run, volunteer: Person, laptop: Owned) -> None:
    name = volunteer.username
    add_line(run=run, kind="joined", text=f"{name} joined", names=[name])
    add_line(run=run, kind="edited", text=f"Amina changed the description. It is called “{name} of {name}” now.")
    create_token(person=volunteer, purpose=Token.Purpose.API, label="notebook")
    SocialAccount.objects.create(user=volunteer, provider="github", uid="7", extra_data={})
    set_named(run=run, person=volunteer, agreed=True)
    membership.add_member(run=run, name=name)
    notices.choose(person=volunteer, wanted=[(Event.FINISHED, Way.EMAIL)])
    notices.save_address(person=volunteer, address="teo@example.org")
    notices.save_webhook(person=volunteer, address="https://hook.example/")
    delete_account(person=volunteer)
    gone = Person.objects.get(pk=volunteer.pk)
    assert gone.username.startswith(FORMER)
    assert (gone.is_active, gone.has_public_page, gone.has_usable_password()) == (False, False, False)
    machine = Machine.objects.get(pk=laptop.machine.pk)
    assert machine.revoked_at is not None
    assert machine.name == "machine"
    for rows in (Token.objects, SocialAccount.objects, NamedVolunteer.objects, Member.objects):
        assert not rows.exists()
    assert not any(rows.objects.exists() for rows in (Choice, Mailbox, Webhook, Notice))
    (line,) = standings.leaderboard(run)
    assert (line.name, line.samples) == (gone.username, 4)
    assert LedgerEntry.objects.get().person == gone
    assert run.activity.filter(kind="joined").latest("pk").text == "A former volunteer joined"
    assert run.activity.filter(kind="edited", text__contains=f"“{name} of {name}”").exists(), "a title is no name"


def test_their_drafts_go_and_their_finished_runs_stay(organizer: Person, stranger: Person) -> None:
    draft(organizer, slug="draft")
    finished = opened(organizer, slug="finished")
    Run.objects.filter(pk=finished.pk).update(state=Run.State.FINISHED)
    delete_account(person=organizer)
    assert [run.slug for run in Run.objects.all()] == ["finished"]
    assert Run.objects.get().organizer.username.startswith(FORMER)


def test_whoever_is_needed_is_told_what_for(run: Run, organizer: Person) -> None:
    with pytest.raises(Problem, match=r"E329.*you organize a run that is not finished"):
        delete_account(person=organizer)
    opened(organizer, slug="second")
    with pytest.raises(Problem, match=r"E329.*2 runs that are not finished"):
        delete_account(person=organizer)
    assert Person.objects.get(pk=organizer.pk).is_active


def test_a_run_with_co_organizers_goes_to_the_longest_standing(
    run: Run, organizer: Person, volunteer: Person, stranger: Person, operator: Person
) -> None:
    draft(organizer, slug="draft")
    roles.invite(run=run, name="Ines", role=Run.Role.CO_ORGANIZER)  # the person has not accepted the invitation
    first = given_role(run, stranger, Run.Role.CO_ORGANIZER)
    given_role(run, volunteer, Run.Role.CO_ORGANIZER)
    given_role(Run.objects.get(slug="draft"), volunteer, Run.Role.MODERATOR)
    assert roles.successors(organizer) == [first]
    delete_account(person=organizer)
    run.refresh_from_db()
    assert (run.organizer, run.role_of(volunteer)) == (stranger, Run.Role.CO_ORGANIZER)
    assert [each.slug for each in Run.objects.all()] == [run.slug], "a moderator inherits nothing"
    line = run.activity.latest("pk")
    assert line.text == "Noor organizes the run now: the organizer before deleted their account."
    assert (line.by_id, line.on, line.is_internal) == (organizer.pk, stranger, False)


def test_whose_account_is_closed_inherits_nothing(run: Run, organizer: Person, volunteer: Person) -> None:
    given_role(run, volunteer, Run.Role.CO_ORGANIZER)
    Person.objects.filter(pk=volunteer.pk).update(is_active=False)
    with pytest.raises(Problem, match="E329"):
        delete_account(person=organizer)


def test_a_run_of_an_account_that_cannot_be_deleted_yet_stays(run: Run, organizer: Person, volunteer: Person) -> None:
    opened(organizer, slug="second")
    given_role(run, volunteer, Run.Role.CO_ORGANIZER)
    with pytest.raises(Problem, match=r"E329.*you organize a run that is not finished"):
        delete_account(person=organizer)
    assert Run.objects.get(slug=run.slug).organizer == organizer


def test_their_role_ends_and_the_trail_names_them_no_more(
    run: Run, organizer: Person, volunteer: Person, stranger: Person
) -> None:
    """The trail includes every kind of line that a helper can cause or that can name a helper."""
    given_role(run, volunteer, Run.Role.CO_ORGANIZER)
    services.pause_run(run=run, by=volunteer)
    services.resume_run(run=run, by=volunteer)
    drafts.announce(run=run, text="Teo is here", by=volunteer)
    drafts.announce(run=run, text="", by=volunteer)
    drafts.warn_below(run=run, machines=2, by=volunteer)
    drafts.warn_below(run=run, machines=None, by=volunteer)
    drafts.change_words(run=run, title="Other", purpose="", by=volunteer)
    issued = membership.create_invitation(run=run, by=volunteer)
    membership.revoke_invitation(invitation=issued.invitation, by=volunteer)
    services.extend_run(run=run, target_steps=200, by=volunteer)
    roles.take_back(given=roles.invite(run=run, name="Noor", role=Run.Role.MODERATOR, by=volunteer), by=volunteer)
    membership.remove_person(run=run, name="Noor", by=volunteer)
    membership.let_back(member=membership.removed_from(run).get(), by=volunteer)
    membership.remove_person(run=run, name="Teo")
    membership.let_back(member=membership.removed_from(run).get())
    roles.take_back(given=roles.invite(run=run, name="Teo", role=Run.Role.MODERATOR))
    given_role(run, volunteer, Run.Role.MODERATOR)
    delete_account(person=volunteer)
    assert not run.roles.exists()
    texts = [line.text for line in trail_of(run)]
    assert texts[0] == "A former volunteer gave up the role of moderator with their account."
    assert [text for text in texts if "Teo" in text] == ["A former volunteer announced “\u2068Teo is here\u2069”"]
    assert len(texts) == 24


def test_a_site_keeps_an_operator(volunteer: Person, stranger: Person) -> None:
    Person.objects.filter(pk=volunteer.pk).update(is_superuser=True)
    volunteer.refresh_from_db()
    with pytest.raises(Problem, match=r"E329.*the only operator"):
        delete_account(person=volunteer)
    Person.objects.filter(pk=stranger.pk).update(is_superuser=True)
    delete_account(person=volunteer)
    assert not Person.objects.get(pk=volunteer.pk).is_superuser


def test_whoever_was_removed_stays_removed(run: Run, volunteer: Person) -> None:
    membership.remove_person(run=run, name=volunteer.username)
    delete_account(person=volunteer)
    assert membership.removed_from(run).get().person_id == volunteer.pk


def test_name_is_free_again_and_former_names_are_reserved(volunteer: Person) -> None:
    name = volunteer.username
    delete_account(person=volunteer)
    assert sign_up(username=name, password="correct horse battery").username == name
    for taken in (f"{FORMER}1", f"{FORMER.upper()}1"):
        with pytest.raises(Exception, match="keeps that name for itself"):
            sign_up(username=taken, password="correct horse battery")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Teo joined", "A former volunteer joined"),
        ("Teo (laptop) is not responding", "A former volunteer (laptop) is not responding"),
        ("12 of Teo's samples were returned", "12 of a former volunteer's samples were returned"),
        ("A relay of Teo is gone", "A relay of a former volunteer is gone"),
        ("Noor (desk), Teo (laptop) and 2 more left", "Noor (desk), a former volunteer (laptop) and 2 more left"),
        ("Amina added Teo.", "Amina added a former volunteer."),
        ("Teo removed Teo.b.", "A former volunteer removed Teo.b."),
        ("Teo removed Teo-b.", "A former volunteer removed Teo-b."),
        ("Teo removed x.Teo.", "A former volunteer removed x.Teo."),
        ("Teo removed Teodor.", "A former volunteer removed Teodor."),
        ("Teo announced “\u2068Teo is here\u2069”", "A former volunteer announced “\u2068Teo is here\u2069”"),
    ],
)
def test_a_name_is_replaced_in_a_line_that_has_it(text: str, told: str) -> None:
    assert without_name(text, "Teo") == told


@pytest.mark.parametrize("name", ["The", "of", "run", "Tim", "is"])
def test_a_line_that_names_others_stays_as_it_is(run: Run, name: str) -> None:
    add_line(run=run, kind="opened", text="The run is published: a model of 64 parameters.")
    add_line(run=run, kind="joined", text="A relay of Timo joined", names=["Timo"])
    before = list(run.activity.values_list("text", "names"))
    forget_lines(name)
    assert list(run.activity.values_list("text", "names")) == before


def test_what_hosts_write_afterwards_is_found_again(run: Run, volunteer: Person) -> None:
    name = delete_account(person=volunteer)
    due = Job.objects.get(kind=Kind.FORGET_NAME, key=name).due
    assert due > timezone.now() + timedelta(seconds=HOSTS_KNOW_S / 2), "not before hosts have dropped the machines"
    add_line(run=run, kind="left", text=f"{name} is away", names=[name])
    plan = {"senders": [{"who": {"person": name, "machine": "laptop"}}]}
    Presence.objects.create(run=run, phase="gathering", plan=plan)
    assert do(Kind.FORGET_NAME, name) is None
    assert not run.activity.filter(Q(text__contains=name) | Q(names__contains=name)).exists()
    assert Presence.objects.get().plan is None


def test_files_on_their_way_go_too(volunteer: Person, django_capture_on_commit_callbacks: Any) -> None:
    upload = begin_upload(person=volunteer, filename="words.txt", size=9)
    path = storage.upload_path(upload)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"words")
    with django_capture_on_commit_callbacks(execute=True):
        delete_account(person=volunteer)
    assert not path.exists()


def test_whose_account_is_closed_makes_nothing(organizer: Person) -> None:
    """The account was open when the request began, but has since been closed."""
    text = draft(organizer).dataset
    Person.objects.filter(pk=organizer.pk).update(is_active=False)
    with pytest.raises(PermissionDenied):
        services.create_run(organizer=organizer, dataset=text, title="Late", purpose="", recipe=RECIPE)


def test_who_vouched_for_a_text_is_taken_off_its_card(run: Run, organizer: Person) -> None:
    services.finish_run(run=run)
    run.release.state = "ready"
    run.release.save()
    Dataset.objects.update(vouched_by=organizer)
    Run.objects.update(state=Run.State.FINISHED)
    assert not is_stale(Release.objects.get())
    delete_account(person=organizer)
    assert is_stale(Release.objects.get())


def test_all_of_it_or_nothing(run: Run, volunteer: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> None:
        raise OSError

    monkeypatch.setattr("runs.departure.deactivation.forget_person", fail)
    membership.add_member(run=run, name=volunteer.username)
    with pytest.raises(OSError):  # noqa: PT011
        delete_account(person=volunteer)
    assert Member.objects.filter(person=volunteer).exists()


def test_a_finished_release_no_longer_names_them(run: Run, volunteer: Person, laptop: Owned) -> None:
    services.finish_run(run=run)
    run.release.state = "ready"
    run.release.save()
    set_named(run=run, person=volunteer, agreed=True)
    delete_account(person=volunteer)
    assert (Kind.REMAKE_RELEASE, run.pk.hex) in requested()


def test_whose_account_was_closed_meanwhile_deletes_nothing(volunteer: Person) -> None:
    """An operator closed the account first, and must still be able to inspect it."""
    Person.objects.filter(pk=volunteer.pk).update(is_active=False)
    with pytest.raises(PermissionDenied):
        delete_account(person=volunteer)
    assert Person.objects.get(pk=volunteer.pk).username == volunteer.username
