"""The picture for pages whose sockets are blocked."""

import pytest
from django.test import Client

from accounts.models import Person
from runs.models import Run
from tests.golden import golden
from tests.runs.cast import Owned, committed
from web.feed import polling
from web.feed.looking import look


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "KEEP_S", 0.0)


def test_the_same_picture_as_by_the_socket(client: Client, run: Run, laptop: Owned) -> None:
    committed(run, (laptop.machine, 4))
    run.snapshots.update(heldout_loss=6.5)
    answer = client.get(f"/runs/{run.slug}/feed.json").json()
    assert answer == {"type": "picture", "seq": 0, "run": look(run.pk)}
    assert set(answer["run"]) == set(golden("feed")["messages"][0]["run"])
    assert answer["run"]["hands"]
    assert answer["run"]["heldout"]
    for rows in ("hands", "happenings", "heldout"):
        named = golden("feed")["messages"][0]["run"][rows][0]
        assert all(set(row) == set(named) for row in answer["run"][rows])


def test_what_has_not_changed_is_not_sent_again(client: Client, run: Run, laptop: Owned) -> None:
    first = client.get(f"/runs/{run.slug}/feed.json")
    known = {"if-none-match": first["ETag"]}
    assert client.get(f"/runs/{run.slug}/feed.json", headers=known).status_code == 304
    committed(run, (laptop.machine, 4))
    assert client.get(f"/runs/{run.slug}/feed.json", headers=known).status_code == 200


def test_a_private_run_is_its_organizers(client: Client, run: Run, organizer: Person, stranger: Person) -> None:
    Run.objects.update(visibility="private")
    assert client.get(f"/runs/{run.slug}/feed.json").status_code == 404
    client.force_login(stranger)
    assert client.get(f"/runs/{run.slug}/feed.json").status_code == 404
    client.force_login(organizer)
    assert client.get(f"/runs/{run.slug}/feed.json").status_code == 200


def test_a_crowd_shares_one_look(client: Client, run: Run, laptop: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "KEEP_S", 3600.0)
    first = client.get(f"/runs/{run.slug}/feed.json").content
    committed(run, (laptop.machine, 4))
    assert client.get(f"/runs/{run.slug}/feed.json").content == first
    monkeypatch.setattr(polling, "KEEP_S", 0.0)
    assert client.get(f"/runs/{run.slug}/feed.json").json()["run"]["step"] == 1
