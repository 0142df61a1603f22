"""The page of online machines: what everyone, a machine's owner, and the organizer may see."""

import re
from collections import Counter
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.test import Client
from django.utils import timezone

from accounts.keys import site_key
from accounts.models import Machine, Person
from coordination.models import Presence
from coordination.presence import Carried, Link, OnlinePeer
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import SpanEntry, seal, whole
from runs.models import ActivityLine, LogEntry, Run, SealedRecord
from tests.long_run import SCALARS
from tests.runs.factories import ELEMENTS, Owned, committed, owned
from tests.test_house import ROOT
from tests.web.browsing import as_, page
from web.pages.runs import swarm

CARRIED = Link("trainer", Carried(2_125_000.0, is_floor=False), None)
COORDINATOR = ROOT / "peer_agent" / "protocol" / "coordinator"


def here(run: Run, *machines: tuple[Machine, str], **more: Any) -> None:
    usual = {"state": "ready", "done": 0, "samples_per_s": 1.0, "way": "direct", **more}
    members = [{"peer": one.peer_id, "name": one.person.username, "role": role, **usual} for one, role in machines]
    links = {one.peer_id: msgspec.to_builtins(CARRIED) for one, _ in machines}
    Presence.objects.create(run=run, phase="accumulate", done=0, target=4, members=members, links=links)


def averaged_by(run: Run, *peers: PeerId) -> None:
    entry = LogEntry.objects.get(run=run, index=run.head.index)
    spans = tuple(
        SpanEntry(span=at, first=at, stop=at + 1, attempt=1, reducer=peer, root="1" * 64, sum_squares=1.0)
        for at, peer in enumerate(peers)
    )
    facts: dict[str, Any] = {
        "index": entry.index,
        "step": entry.step,
        "fence": 1,
        "attempt": 1,
        "round": 1,
        "previous": "0" * 64,
    }
    sums: dict[str, Any] = {
        "contributions": (),
        "loss": 3.0,
        "tokens": 1,
        "samples": 1,
        "exact": True,
        "scalars": SCALARS,
    }
    size: dict[str, Any] = {"elements": ELEMENTS, "chunk_elements": 16, "codec": "fp16"}
    sealed = seal(site_key(), whole(run=run.run_id, spans=spans, **facts, **sums, **size))
    SealedRecord.objects.filter(entry=entry).update(
        payload=sealed.head.payload, signature=sealed.head.signature, contributions=sealed.contributions
    )


def rows(answer: Any) -> list[list[str]]:
    """Return the cells of the machines table, without HTML tags."""
    table = re.search(r"<table class=\"lines\">.*?</table>", page(answer))
    found = re.findall(r"<tr.*?</tr>", table[0]) if table else []
    return [[re.sub("<[^>]+>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row)] for row in found[1:]]


def test_nobody_is_here(client: Client, run: Run) -> None:
    text = page(client.get("/runs/proverbs/swarm/"))
    assert "No machines are online right now." in text
    assert "No steps yet." in text
    assert "No contributions were left out in the last 24 hours." in text
    assert 'href="/runs/proverbs/swarm/"' in page(client.get("/runs/proverbs/"))


def test_visitors_see_only_leaderboard_names_and_no_links(
    client: Client, run: Run, laptop: Owned, operator: Person
) -> None:
    committed(run, (laptop.machine, 4))
    new = owned(laptop.machine.person, "not yet told").machine
    relay = owned(operator, "srv-17.example.org", Machine.Kind.RELAY).machine
    averaged_by(run, laptop.machine.peer_id, laptop.machine.peer_id, relay.peer_id, PeerId("f" * 32))
    here(run, (laptop.machine, "trainer"), (new, "auxiliary"), (relay, "relay"))
    answer = client.get("/runs/proverbs/swarm/")
    assert rows(answer) == [
        ["Teo laptop", "trains", "direct", "50%"],
        ["Teo", "averages", "direct", "–"],
        ["relay", "averages and forwards", "direct", "25%"],
    ]
    text = page(answer)
    assert "1 person on 2 machines and 1 relay are online: 1 trains, 1 only averages." in text
    assert "in step 1; 25% was averaged by machines that have since left" in text
    for secret in ("srv-17", "Ines", "not yet told", "Mb/s", laptop.machine.peer_id):
        assert secret not in text, secret


def test_links_are_shown_to_their_owner_and_who_manages_the_run(
    run: Run, laptop: Owned, stranger: Person, organizer: Person, operator: Person
) -> None:
    other, relay = owned(stranger, "tower").machine, owned(operator, "srv-17", Machine.Kind.RELAY).machine
    here(run, (laptop.machine, "trainer"), (other, "trainer"), (relay, "relay"))
    seen = {who: rows(as_(who).get("/runs/proverbs/swarm/")) for who in ("Teo", "Noor", "Amina", "Ines")}
    carried = ["17 Mb/s", "not measured yet"]
    assert [row[-2:] for row in seen["Teo"]] == [carried, ["–", "–"], ["–", "–"]]
    assert [row[-2:] for row in seen["Noor"]] == [["–", "–"], carried, ["–", "–"]]
    assert [row[-2:] for row in seen["Amina"]] == [carried] * 3
    assert [row[0] for row in seen["Amina"]] == ["Teo laptop", "Noor tower", "relay"], "its name is the site's"
    assert [row[0] for row in seen["Ines"]] == ["Teo", "Noor", "relay srv-17"]


def test_a_hundred_machines_at_a_time(client: Client, run: Run, laptop: Owned) -> None:
    here(run, *[(laptop.machine, "trainer")] * 101, way="relayed", state="syncing")
    answer = client.get("/runs/proverbs/swarm/")
    assert (len(rows(answer)), "Next 100" in page(answer)) == (100, True)
    last = client.get("/runs/proverbs/swarm/?machines=100")
    assert rows(last) == [["Teo", "trains catching up", "relayed"]]
    assert ("Previous 100" in page(last), "Next 100" in page(last)) == (True, False)


def test_the_last_twenty_steps_are_timed(client: Client, run: Run, laptop: Owned) -> None:
    for step in range(1, 23):
        committed(run, (laptop.machine, 4))
        run.log.filter(step=step).update(duration_s=9 if step < 3 else step, attempts=1 + (step in {2, 5}))
    facts = swarm.rounds_of(run)
    assert facts is not None
    assert (facts["steps"], facts["median"], facts["longest"], facts["longest_step"]) == (20, "12 s", "22 s", 22)
    assert (facts["again"], facts["first"], facts["last"]) == ("1 step", 3, 22)
    tops = [float(top) for top in re.findall(r"M[\d.]+ 93V([\d.]+)", facts["drawn"])]
    assert (len(tops), tops.index(min(tops)), tops == sorted(tops, reverse=True)) == (20, 19, True)
    text = page(client.get("/runs/proverbs/swarm/"))
    assert 'aria-label="Times of the last 20 steps: median 12 s, longest 22 s"' in text
    assert "Averaging was retried in 1 step" in text


def test_what_was_left_out_is_counted_by_reason(client: Client, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Counter(
        {
            ("returned", "28 of Teo's samples were returned to the pool (its gradients were too old)"): 2,
            ("returned", "8 of Noor's samples were returned to the pool (its gradients were too old)"): 1,
            ("returned", "8 of Noor's samples were returned to the pool (chunk 3 was refused (E105))"): 1,
            ("dropped", "Noor was lost during a step; the others finish it"): 1,
            ("refused", "the snapshot of step 4 is not what the log says"): 1,
            ("void", "a step is retried: a relay was lost; nothing was lost"): 1,
        }
    )
    for kind, text in told.elements():
        ActivityLine.objects.create(run=run, kind=kind, text=text)
    before = timezone.now() - timedelta(hours=25)
    ActivityLine.objects.create(run=run, kind="late", text="a part of Teo's gradient came too late", at=before)
    reasons = [("Gradients were too old", 3), ("A part was damaged", 1), ("The machine was lost", 1)]
    assert sorted(swarm.reasons_of(run)) == sorted(reasons)
    assert swarm.reasons_of(run)[0] == reasons[0]
    text = page(client.get("/runs/proverbs/swarm/"))
    assert '<td>Gradients were too old</td><td class="number">3</td>' in text
    monkeypatch.setattr(swarm, "MOST", 2)
    assert sum(count for _, count in swarm.reasons_of(run)) <= 2, "no more lines are read"


@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind, part, _ in swarm.NOT_IN_A_STEP])
def test_reasons_are_those_that_a_coordinator_gives(kind: str, part: str) -> None:
    """If the coordinator changed the wording of a sentence, the page could no longer match it to a reason."""
    source = "".join(path.read_text() for path in COORDINATOR.rglob("*.py"))
    assert f'Note("{kind}"' in source
    assert part in source


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ("tt", "1 person on 2 machines is online: 2 train."),
        ("tar", "1 person on 2 machines and 1 relay are online: 1 trains, 1 only averages."),
        ("rr", "Only the site is online: 2 relays."),
        ("", "No machines are online right now."),
    ],
)
def test_the_sentence_says_who_is_here(roles: str, words: str) -> None:
    named = {"t": "trainer", "a": "auxiliary", "r": "relay"}
    peers = [OnlinePeer(f"{at}" * 32, "Teo", named[role], "ready", 0, 1.0) for at, role in enumerate(roles)]
    assert swarm.online_sentence(peers) == words


def test_nobody_trains_in_a_paused_run(client: Client, run: Run, laptop: Owned) -> None:
    here(run, (laptop.machine, "trainer"))
    Run.objects.update(state=Run.State.PAUSED)
    answer = client.get("/runs/proverbs/swarm/")
    assert "1 person on 1 machine is online: 1 waits until the run resumes." in page(answer)
    assert rows(answer) == [["Teo", "waits", "direct"]]
