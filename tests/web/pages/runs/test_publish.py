"""The page that publishes a run's model, and contributors' consent to being named."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from accounts.models import Person
from peer_agent.protocol.errors import Fault
from runs.models import HubAccount, NamedVolunteer, Publication, Release, Run
from runs.releases.card_facts import release_facts
from tests.publishing.hub_double import Hub, running_hub
from tests.runs.factories import Owned, committed
from tests.web.browsing import as_, page

TOKEN = "hf_of_amina"
PAGE = "/runs/proverbs/publish/"


@pytest.fixture
def hub(settings: Any) -> Iterator[Hub]:
    with running_hub() as hub:
        hub.account("amina", TOKEN)
        settings.HUB_ENDPOINT = hub.url
        yield hub


def test_only_the_organizer_comes_in(run: Run, stranger: Person, organizer: Person) -> None:
    assert Client().get(PAGE)["Location"] == f"/login/?next={PAGE}"
    assert as_(stranger).get(PAGE).status_code == 403
    assert as_(stranger).post(PAGE, {"action": "publish", "repository": "a/b"}).status_code == 403
    assert as_(organizer).get("/runs/elsewhere/publish/").status_code == 404
    assert as_(organizer).post(PAGE, {"action": "dance"}).status_code == 404
    assert not Publication.objects.exists()


def test_a_token_is_tried_kept_and_never_shown(hub: Hub, run: Run, organizer: Person) -> None:
    client = as_(organizer)
    assert "add an access token" in page(client.get(PAGE))
    assert client.post(PAGE, {"action": "save", "token": TOKEN})["Location"] == PAGE
    answer = client.get(PAGE)
    assert "can publish as <strong>amina</strong>" in page(answer)
    assert 'value="amina/proverbs"' in page(answer)
    assert TOKEN not in page(answer)
    assert "no-store" in answer["Cache-Control"]


@pytest.mark.parametrize("token", ["hf_read", "hf_unknown", ""])
def test_a_token_that_does_not_do_is_refused_in_page(hub: Hub, run: Run, organizer: Person, token: str) -> None:
    hub.account("amina", "hf_read", role="read")
    answer = as_(organizer).post(PAGE, {"action": "save", "token": token})
    assert answer.status_code == 400
    assert ("E343" if token else "E351") in page(answer)
    assert not HubAccount.objects.exists()


def test_it_can_be_asked_for_before_it_is_made(hub: Hub, run: Run, organizer: Person) -> None:
    client = as_(organizer)
    client.post(PAGE, {"action": "save", "token": TOKEN})
    client.post(PAGE, {"action": "publish", "repository": "amina/proverbs", "private": "on"})
    publication = Publication.objects.get()
    assert (publication.repository, publication.private, publication.replace) == ("amina/proverbs", True, False)
    assert "after the last step" in page(client.get(PAGE))


def test_checkpoints_are_asked_for_and_shown(hub: Hub, run: Run, organizer: Person) -> None:
    client = as_(organizer)
    client.post(PAGE, {"action": "save", "token": TOKEN})
    asked = {"action": "publish", "repository": "amina/proverbs", "checkpoint_every": "1000", "in_branches": "on"}
    client.post(PAGE, asked)
    publication = Publication.objects.get()
    assert (publication.checkpoint_every, publication.in_branches) == (1000, True)
    assert "The first checkpoint will follow the snapshot at step 1,000." in page(client.get(PAGE))
    assert 'value="1000"' in page(client.get(PAGE))
    fault = str(Fault.of("E346", endpoint="https://hub", reason="refused"))
    url = "https://hub.example/amina/proverbs/tree/step-1000"
    Publication.objects.update(checkpoint_step=1000, checkpoint_url=url, checkpoint_fault=fault)
    assert f'The newest checkpoint is <a href="{url}" rel="noopener">step 1,000 ↗</a>.' in page(client.get(PAGE))
    assert "E346" in page(client.get(PAGE))


@pytest.mark.parametrize("every", ["-1", "ten", "10000001"])
def test_a_schedule_that_is_none_is_told(hub: Hub, run: Run, organizer: Person, every: str) -> None:
    client = as_(organizer)
    client.post(PAGE, {"action": "save", "token": TOKEN})
    answer = client.post(PAGE, {"action": "publish", "repository": "amina/proverbs", "checkpoint_every": every})
    assert answer.status_code == 400
    assert not Publication.objects.exists()


def test_a_finished_model_has_no_checkpoints(hub: Hub, run: Run, organizer: Person) -> None:
    Release.objects.create(run=run, state=Release.State.READY, folder="x", archive="proverbs.zip")
    client = as_(organizer)
    client.post(PAGE, {"action": "save", "token": TOKEN})
    assert "checkpoint" not in page(client.get(PAGE))
    client.post(PAGE, {"action": "publish", "repository": "amina/proverbs", "checkpoint_every": "5"})
    assert Publication.objects.get().checkpoint_every == 0


def test_the_page_follows_an_upload_until_it_ends(hub: Hub, run: Run, organizer: Person) -> None:
    Release.objects.create(run=run, state=Release.State.READY, folder="x", archive="proverbs.zip")
    client = as_(organizer)
    client.post(PAGE, {"action": "save", "token": TOKEN})
    client.post(PAGE, {"action": "publish", "repository": "amina/proverbs"})
    text = page(client.get(PAGE))
    assert '<meta name="renew-ms" content="3000">' in text
    assert "refresh" not in text.replace('<noscript><meta http-equiv="refresh" content="3"></noscript>', "")
    assert 'id="part-publication"' in text
    Publication.objects.update(state=Publication.State.PUBLISHED)
    assert "renew-ms" not in page(client.get(PAGE))


@pytest.mark.parametrize("name", ["proverbs", "a/b/c", "../x", "a b/c", "a/" + "x" * 200])
def test_a_name_that_is_none_is_told(hub: Hub, run: Run, organizer: Person, name: str) -> None:
    client = as_(organizer)
    client.post(PAGE, {"action": "save", "token": TOKEN})
    answer = client.post(PAGE, {"action": "publish", "repository": name})
    assert answer.status_code == 400
    assert 'role="alert"' in page(answer)
    assert not Publication.objects.exists()


def test_removing_the_token_forgets_it(hub: Hub, run: Run, organizer: Person) -> None:
    client = as_(organizer)
    client.post(PAGE, {"action": "save", "token": TOKEN})
    client.post(PAGE, {"action": "remove"})
    assert not HubAccount.objects.exists()
    assert "add an access token" in page(client.get(PAGE))


def test_the_run_page_shows_where_it_is(run: Run, organizer: Person) -> None:
    file = {"name": "proverbs.zip", "size": 5, "sha256": "a" * 64}
    Release.objects.create(run=run, state=Release.State.READY, folder="x", files=[file], archive="proverbs.zip")
    before = page(Client().get("/runs/proverbs/"))
    assert "curl -C - -O http://testserver/api/v1/runs/proverbs/release/proverbs.zip" in before
    assert "On the Hub" not in before
    publication = Publication.objects.create(
        run=run, repository="amina/proverbs", url="https://hub.example/amina/proverbs"
    )
    after = page(Client().get("/runs/proverbs/"))
    assert '<a class="button second" href="https://hub.example/amina/proverbs" rel="noopener">On the Hub ↗</a>' in after
    assert "model=&quot;amina/proverbs&quot;" in after
    Publication.objects.filter(pk=publication.pk).update(private=True)
    assert "hub.example" not in page(Client().get("/runs/proverbs/"))


def test_who_gave_something_may_be_named_and_take_it_back(
    run: Run, laptop: Owned, volunteer: Person, stranger: Person
) -> None:
    committed(run, (laptop.machine, 4))
    client, where = as_(volunteer), "/runs/proverbs/named/"
    assert "Add my name" in page(client.get("/runs/proverbs/"))
    assert "Add my name" not in page(as_(stranger).get("/runs/proverbs/"))
    snapshot = run.snapshots.get()
    facts = release_facts(run, snapshot)
    assert (facts.people, facts.unnamed, facts.unnamed_samples, facts.unnamed_share) == ((), 1, 4, 1.0)
    for _ in range(2):
        client.post(where, {"agreed": "1"})
    assert [person.name for person in release_facts(run, snapshot).people] == ["Teo"]
    assert "Remove my name" in page(client.get("/runs/proverbs/"))
    client.post(where)
    assert not NamedVolunteer.objects.exists()
