"""Members, endings, drafts and uploads, on each database."""

from typing import Any

import pytest

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from runs import storage
from runs.access import access_run, listed_runs, shut_out
from runs.datasets import uploads
from runs.datasets.services import store_pieces
from runs.lifecycle import drafts, membership, services
from runs.models import Dataset, Member, Run
from tests.runs.factories import committed, draft, opened, owned

TEXT = "Many hands, много рук.\n".encode() * 50


@pytest.fixture
def amina(data_folder: Any, any_database: str) -> Person:
    return Person.objects.create_user("Amina", None)


def test_an_invitation_from_making_to_removal(amina: Person) -> None:
    run = opened(amina, visibility=Run.Visibility.PRIVATE)
    teo, noor = (Person.objects.create_user(name, None) for name in ("Teo", "Noor"))
    secret = membership.create_invitation(run=run, most_uses=1).secret
    membership.accept_invitation(slug=run.slug, secret=secret, person=teo)
    with pytest.raises(Problem, match="E313"):
        membership.accept_invitation(slug=run.slug, secret=secret, person=noor)
    laptop, attic = owned(teo).machine, owned(noor).machine
    assert list(listed_runs(teo)) == [access_run(slug=run.slug, viewer=teo)]
    assert list(shut_out(run, [laptop.peer_id, attic.peer_id])) == [attic]
    membership.remove_member(member=Member.objects.get())
    assert set(shut_out(run, [laptop.peer_id, attic.peer_id])) == {laptop, attic}


def test_somebody_removed_from_a_public_run_and_let_back(amina: Person) -> None:
    run, teo = opened(amina), Person.objects.create_user("Teo", None)
    laptop, desk = owned(teo).machine, owned(amina).machine
    peers = [laptop.peer_id, desk.peer_id]
    for _ in range(2):
        membership.remove_person(run=run, name="teo")
    assert list(shut_out(run, peers)) == [laptop]
    membership.let_back(member=membership.removed_from(run).get())
    assert list(shut_out(run, peers)) == []
    assert list(run.activity.order_by("id").values_list("text", flat=True)) == [
        "Amina removed Teo.",
        "Amina let Teo back in.",
    ]


def test_an_open_run_taken_back_unless_a_step_was_made(amina: Person) -> None:
    run = opened(amina)
    drafts.take_back(run=run)
    assert (run.state, run.snapshots.count()) == ("draft", 0)
    Run.objects.update(state="open")
    committed(run, (owned(amina).machine, 4))
    with pytest.raises(Problem, match="E323"):
        drafts.take_back(run=run)


def test_longer_and_then_ended(amina: Person) -> None:
    run = opened(amina)
    committed(run, (owned(amina).machine, 4))
    services.extend_run(run=run, target_steps=200)
    assert not services.finish_run(run=run, target_steps=100)
    services.end_run(run=run)
    assert services.finish_run(run=run, target_steps=100)
    assert Run.objects.get().state == "finishing"


def test_a_draft_on_another_text_and_then_none(amina: Person) -> None:
    run = draft(amina)
    upload = uploads.begin_upload(person=amina, filename="words.txt", size=len(TEXT))
    for start in range(0, len(TEXT), 301):
        upload = uploads.take_piece(upload=upload, offset=start, piece=TEXT[start : start + 301])
    dataset = store_pieces(organizer=amina, title="Words", licence="CC0", upload=upload)
    drafts.change_draft(run=run, recipe=run.parsed_recipe, licence="CC BY", dataset=dataset)
    assert Dataset.objects.get() == dataset
    assert storage.text_path(dataset).read_bytes() == TEXT
    drafts.delete_draft(run=run)
    assert not Dataset.objects.exists()
