"""The polled feed, for pages whose WebSockets are blocked."""

import gzip
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from coordination.models import Presence
from runs.models import LogEntry, Run
from tests.runs.factories import Owned, committed
from tests.web.browsing import page
from web.feed import polling
from web.feed.live import PARTS, look


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "KEEP_S", 0.0)
    monkeypatch.setattr(polling, "REST_S", 0.0)


def test_the_same_picture_as_by_the_socket(client: Client, run: Run, laptop: Owned) -> None:
    committed(run, (laptop.machine, 4))
    run.snapshots.update(heldout_loss=6.5)
    answer = client.get(f"/runs/{run.slug}/feed.json").json()
    now = look(run.pk)
    assert now is not None
    points, heldout = now.chart["points"], now.chart["heldout"]
    chart = {"from": 0, "add": points, "heldout": heldout, "unigram": now.chart["unigram"]}
    assert answer == {"whole": True, "seq": 0, "parts": now.parts, "chart": chart, "standing": now.standing}
    assert set(now.parts) == set(PARTS)
    assert all(f' id="part-{name}"' in html.partition(">")[0] for name, html in now.parts.items())
    assert (len(points), len(heldout)) == (1, 1)


def test_a_part_is_what_the_page_shows(client: Client, run: Run, laptop: Owned) -> None:
    committed(run, (laptop.machine, 4))
    shown = page(client.get(f"/runs/{run.slug}/"))
    parts = client.get(f"/runs/{run.slug}/feed.json").json()["parts"]
    for name in ("step", "written", "activity"):
        assert " ".join(parts[name].split()) in shown, name


def test_time_to_go_is_shown_only_while_trainers_are_present(client: Client, run: Run, laptop: Owned) -> None:
    for _ in range(3):
        committed(run, (laptop.machine, 4))
    LogEntry.objects.filter(index=1).update(at=timezone.now() - timedelta(seconds=60))
    path = f"/runs/{run.slug}/feed.json"
    assert "to go" not in client.get(path).json()["parts"]["head"]
    teo = {"peer": "a" * 32, "name": "Teo", "role": "trainer", "state": "ready", "done": 1, "samples_per_s": 2.0}
    Presence.objects.create(run=run, phase="accumulate", done=1, target=4, void_rounds=0, members=[teo])
    assert "to go" in client.get(path).json()["parts"]["head"]


def test_it_is_in_the_language_that_the_page_names(client: Client, run: Run) -> None:
    path = f"/runs/{run.slug}/feed.json"
    english = client.get(path, headers={"accept-language": "bn"}).json()
    assert "Nobody is training right now" in english["parts"]["head"]
    bengali = look(run.pk, "bn")
    assert bengali is not None
    assert client.get(f"{path}?language=bn").json()["parts"] == bengali.parts != english["parts"]
    assert client.get(f"{path}?language=xx").json() == english


def test_no_more_pictures_are_kept_than_there_is_room_for(
    client: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "MOST", 1)
    monkeypatch.setattr(polling, "_kept", {})
    for language in ("en", "bn", "en"):
        client.get(f"/runs/{run.slug}/feed.json?language={language}")
    assert len(polling._kept) == 1


def test_what_has_not_changed_is_not_sent_again(client: Client, run: Run, laptop: Owned) -> None:
    first = client.get(f"/runs/{run.slug}/feed.json")
    known = {"if-none-match": first["ETag"]}
    assert client.get(f"/runs/{run.slug}/feed.json", headers=known).status_code == 304
    committed(run, (laptop.machine, 4))
    assert client.get(f"/runs/{run.slug}/feed.json", headers=known).status_code == 200


def test_a_crowd_shares_one_look_until_a_step_is_made(
    client: Client, run: Run, laptop: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/runs/{run.slug}/feed.json"
    monkeypatch.setattr(polling, "KEEP_S", 3600.0)
    first = client.get(path).content
    run.activity.create(kind="joined", text="Teo joined")
    assert client.get(path).content == first
    committed(run, (laptop.machine, 4))
    second = client.get(path)
    assert "Step 1 of" in second.json()["parts"]["head"]
    assert "Teo joined" in second.content.decode()


def test_steps_faster_than_looks_share_one_too(
    client: Client, run: Run, laptop: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/runs/{run.slug}/feed.json"
    monkeypatch.setattr(polling, "KEEP_S", 3600.0)
    monkeypatch.setattr(polling, "REST_S", 3600.0)
    first = client.get(path).content
    committed(run, (laptop.machine, 4))
    assert client.get(path).content == first
    monkeypatch.setattr(polling, "REST_S", 0.0)
    assert "Step 1 of" in client.get(path).json()["parts"]["head"]


def test_a_picture_is_compressed_once_however_many_ask(
    run: Run, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    compress = gzip.compress

    def counted(content: bytes, level: int, *, mtime: int) -> bytes:
        made.append(level)
        return compress(content, level, mtime=mtime)

    monkeypatch.setattr(gzip, "compress", counted)
    monkeypatch.setattr(polling, "KEEP_S", 60.0)
    polling._kept.clear()
    address = f"/runs/{run.slug}/feed.json"
    packed = [client.get(address, headers={"Accept-Encoding": "gzip"}) for _ in range(3)]
    plain = client.get(address, headers={"Accept-Encoding": "identity"})
    assert {answer["Content-Encoding"] for answer in packed} == {"gzip"}
    assert "Content-Encoding" not in plain
    assert gzip.decompress(packed[0].content) == plain.content
    assert len(made) == 1
    again = client.get(address, headers={"Accept-Encoding": "gzip", "If-None-Match": packed[0]["ETag"]})
    assert again.status_code == 304
