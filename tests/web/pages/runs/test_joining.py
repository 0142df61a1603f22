"""What whoever may join reads on a run's page: what a machine needs, whether there is work, what the model writes."""

import re

import pytest
from django.test import Client

from coordination.presence import OnlinePeer
from runs.models import Run, Snapshot
from tests.web.browsing import page
from web.pages.runs.run import room_words


def test_a_page_shows_what_snapshots_write(run: Run, client: Client) -> None:
    """Text of a model is anybody's: markup in it is shown."""
    assert "What it writes" not in page(client.get(f"/runs/{run.slug}/"))
    facts = {"digest": "2" * 64, "state_digest": "1" * 16, "file": "3" * 64, "size": 5}
    Snapshot.objects.create(run=run, index=20, step=20, written=[["Many", " <b>hands</b>"], ["", "alone"]], **facts)
    shown = page(client.get(f"/runs/{run.slug}/"))
    assert "<strong>Many</strong> &lt;b&gt;hands&lt;/b&gt;" in shown
    assert "Step 20" in shown
    assert "The model started without a prompt." in shown
    assert client.get(f"/runs/{run.slug}/feed.json").json()["run"]["written"] == "20"
    part = page(client.get(f"/runs/{run.slug}/written/"))
    assert part.startswith("<section")
    assert part in shown, "what an open page fetches is what a new one has"


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
    """Two units of two samples make a step of four."""
    run.state = state
    peers = [OnlinePeer(f"{place:032x}", "Teo", "trainer", "ready", 0, 1.0) for place in range(here)]
    relay = OnlinePeer("f" * 32, "operator", "relay", "ready", 0, 0.0)
    assert words in room_words(run, [*peers, relay])


def test_who_may_join_reads_what_a_machine_needs(run: Run, client: Client) -> None:
    shown = page(client.get(f"/runs/{run.slug}/"))
    assert re.search(r"You need about [\d.,]+ .B of memory. First download [\d.,]+ .B", shown)
