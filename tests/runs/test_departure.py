"""Whoever leaves for good leaves no name behind; what they gave stays counted."""

from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount

from accounts.models import FORMER, Machine, Person, Token
from accounts.services import create_token, sign_up
from peer_agent.protocol.errors import Problem
from runs.departure import delete_account, without_name
from runs.ledger import standings
from runs.lifecycle import membership, services
from runs.models import LedgerEntry, Member, NamedVolunteer, Run
from runs.releases.card_names import set_named
from runs.timeline import add_line
from tests.runs.factories import Owned, committed, draft, opened


@pytest.fixture
def run(organizer: Person, laptop: Owned) -> Run:
    run = opened(organizer)
    committed(run, (laptop.machine, 4))
    return run


def test_names_and_secrets_go_and_credit_stays(run: Run, volunteer: Person, laptop: Owned) -> None:
    name = volunteer.username
    add_line(run=run, kind="joined", text=f"{name} joined; {name}2 and anti-{name} did not.")
    create_token(person=volunteer, purpose=Token.Purpose.API, label="notebook")
    SocialAccount.objects.create(user=volunteer, provider="github", uid="7", extra_data={})
    set_named(run=run, person=volunteer, agreed=True)
    membership.add_member(run=run, name=name)
    delete_account(person=volunteer)
    gone = Person.objects.get(pk=volunteer.pk)
    assert gone.username.startswith(FORMER)
    assert (gone.is_active, gone.has_public_page, gone.has_usable_password()) == (False, False, False)
    machine = Machine.objects.get(pk=laptop.machine.pk)
    assert machine.revoked_at is not None
    assert machine.name == "machine"
    for rows in (Token.objects, SocialAccount.objects, NamedVolunteer.objects, Member.objects):
        assert not rows.exists()
    (line,) = standings.leaderboard(run)
    assert (line.name, line.samples) == (gone.username, 4)
    assert LedgerEntry.objects.get().person == gone
    told = run.activity.filter(kind="joined").latest("pk").text
    assert told == f"A former volunteer joined; {name}2 and anti-{name} did not."
    assert not run.activity.filter(text__startswith=name).exists()


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


def test_the_name_is_free_again_and_that_of_a_former_volunteer_is_nobodys(volunteer: Person) -> None:
    name = volunteer.username
    delete_account(person=volunteer)
    assert sign_up(username=name, password="correct horse battery").username == name
    for taken in (f"{FORMER}1", f"{FORMER.upper()}1"):
        with pytest.raises(Exception, match="This name is taken"):
            sign_up(username=taken, password="correct horse battery")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Teo joined.", "A former volunteer joined."),
        ("12 of Teo's samples", "12 of a former volunteer's samples"),
        ("a machine of Teo", "A machine of a former volunteer"),
        ("Teodor joined.", "Teodor joined."),
        ("Teo.b and Teo-b and x.Teo", "Teo.b and Teo-b and x.Teo"),
        ("with Teo.", "With a former volunteer."),
        ("nobody", "nobody"),
    ],
)
def test_a_name_is_replaced_where_it_is_a_word(text: str, told: str) -> None:
    assert without_name(text, "Teo") == told


def test_all_of_it_or_nothing(run: Run, volunteer: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> None:
        raise OSError

    monkeypatch.setattr("runs.departure.deactivation.forget_person", fail)
    membership.add_member(run=run, name=volunteer.username)
    with pytest.raises(OSError):  # noqa: PT011
        delete_account(person=volunteer)
    assert Member.objects.filter(person=volunteer).exists()


def test_a_finished_release_no_longer_names_them(
    run: Run, volunteer: Person, laptop: Owned, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("runs.queue.enqueue", lambda task, row, **_: asked.append(task.value))
    services.finish_run(run=run)
    run.release.state = "ready"
    run.release.save()
    set_named(run=run, person=volunteer, agreed=True)
    with django_capture_on_commit_callbacks(execute=True):
        delete_account(person=volunteer)
    assert "runs.tasks.remake_release" in asked
