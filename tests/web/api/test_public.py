"""The public API: answer formats, permissions, cursors, and releases by byte range."""

import hashlib
import html
import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from django.test import AsyncClient, Client

from accounts.models import Person
from accounts.services import revoke_machine
from peer_agent import __version__
from peer_agent.protocol.messages import PROTOCOL
from peer_agent.publishing.card import parse_facts
from peer_agent.recipes.text.recipe import HEADER_BYTES
from runs import storage
from runs.lifecycle.membership import add_member, remove_member
from runs.models import Member, Release, Run, Snapshot
from runs.releases.card_facts import set_named
from tests.runs.factories import Owned, committed, opened, owned
from tests.web.api_client import API, body, get

ENDLESS = f"bytes=0-{'9' * 5000}"
CONTENT = bytes(range(256)) * 8


@pytest.fixture
def release(run: Run) -> Release:
    file = {"name": "proverbs.zip", "size": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest()}
    made = Release.objects.create(run=run, state="ready", folder="release", files=[file], archive="proverbs.zip")
    path = storage.release_path(made, "proverbs.zip")
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    return made


class TestReading:
    def test_a_run(self, run: Run, laptop: Owned) -> None:
        committed(run, (laptop.machine, 4), loss=5.5)
        facts = get("runs/proverbs").json()
        (source,) = facts.pop("sources")
        assert {facts.pop(name) for name in ("heldout", "warning", "released_step")} == {None, ""}
        assert facts.pop("passes") == pytest.approx(4 / run.parsed_recipe.samples_in(1000))
        assert source == {
            "filename": "proverbs.txt",
            "size": 4000,
            "licence": "CC0",
            "sha256": "a" * 64,
            "tokens": 1000,
            "share": 1.0,
        }
        assert facts == {
            "slug": "proverbs",
            "title": "A model of proverbs",
            "state": "open",
            "starts_at": None,
            "step": 1,
            "target_steps": 100,
            "loss": 5.5,
            "peers_online": 0,
            "waiting_for": "",
            "unigram_entropy": 6.1,
            "parameters": run.elements,
            "codec_up": run.parsed_recipe.codec_up,
            "codec_down": run.parsed_recipe.codec_down,
            "contributors": "all",
            "codecs": "stated",
            "recipe": json.loads(run.recipe),
            "data_bytes": 2000 + HEADER_BYTES,
        }
        assert get("runs").json() == {"items": [facts], "next": None}

    def test_a_step(self, run: Run, laptop: Owned) -> None:
        entry = committed(run, (laptop.machine, 4), state_digest="1" * 16)
        (step,) = get("runs/proverbs/steps").json()["items"]
        assert datetime.fromisoformat(step.pop("at")).utcoffset() is not None
        assert step == {
            "step": 1,
            "loss": 5.0,
            "tokens": 32,
            "samples": 4,
            "peers": 1,
            "duration_s": 1.5,
            "attempts": 1,
            "exact": True,
            "update_digest": entry.digest,
            "state_digest": "1" * 16,
            "is_undone": False,
        }

    def test_who_gave_what(self, run: Run, laptop: Owned) -> None:
        committed(run, (laptop.machine, 4))
        assert get("runs/proverbs/leaderboard").json()["averaged"] == []
        assert get("runs/proverbs/leaderboard").json()["items"] == [
            {"rank": 1, "name": "Teo", "samples": 4, "checked": 0, "tokens": 32, "rounds": 1}
        ]
        assert get("runs/proverbs/ledger").json()["items"] == [
            {"step": 1, "person": "Teo", "machine": "laptop", "reason": "", "samples": 4, "tokens": 32, "weight": 32}
        ]

    def test_what_a_card_says_names_only_who_agreed(self, run: Run, laptop: Owned, volunteer: Person) -> None:
        for loss in (5.0, 4.0, 3.0):
            committed(run, (laptop.machine, 4), loss=loss)
        facts = get("runs/proverbs/facts").json()
        assert (facts["steps"], facts["samples"], facts["points"]) == (3, 12, [[1, 5.0], [2, 4.0], [3, 3.0]])
        assert (facts["people"], facts["unnamed"], facts["unnamed_samples"]) == ([], 1, 12)
        set_named(run=run, person=volunteer, agreed=True)
        facts = get("runs/proverbs/facts?step=2").json()
        assert (facts["steps"], facts["loss"], facts["points"][-1]) == (2, 4.5, [2, 4.0])
        assert facts["people"] == [{"name": "Teo", "share": 1.0, "samples": 8}]
        assert facts["data_licence"] == "CC0"
        assert parse_facts(json.dumps(facts).encode()).contributors == 1

    def test_a_card_by_an_agent_says_that_the_run_overfits(self, run: Run, laptop: Owned) -> None:
        for loss, heldout in ((5.0, 4.0), (4.0, 3.3), (3.0, 3.6), (2.0, 4.3)):
            entry = committed(run, (laptop.machine, 4), loss=loss)
            measured = {"heldout_loss": heldout, "state_digest": "5" * 16, "file": "f" * 64, "size": 5}
            run.snapshots.create(index=entry.index, step=entry.step, **measured)
        facts = parse_facts(get("runs/proverbs/facts").content)
        assert (facts.is_overfitting, facts.heldout_loss) == (True, 4.3)
        assert (facts.best_heldout_loss, facts.best_heldout_step) == (3.3, 2)

    def test_the_agent_that_is_offered(self, db: None, settings: Any) -> None:
        bare = get("agent").json()
        assert (bare["version"], bare["protocol"], bare["url"]) == (__version__, PROTOCOL, None)
        wheel = Path(settings.DOWNLOADS) / "manyhands-0.3.1-py3-none-any.whl"
        wheel.parent.mkdir()
        wheel.write_bytes(CONTENT)
        offered = get("agent").json()
        digest = hashlib.sha256(CONTENT).hexdigest()
        url = f"http://testserver/download/{wheel.name}"
        assert {**bare, "version": "0.3.1", "url": url, "sha256": digest, "size": len(CONTENT)}.items() <= {
            **offered,
            "upgrade_pip": None,
            "upgrade_uv": None,
        }.items()
        page = Client().get("/download/").content.decode()
        for line in (offered["upgrade_pip"], offered["upgrade_uv"]):
            assert f"{url}#sha256={digest}" in line
            assert html.escape(line) in page, "the same line as on the page"
        assert "version 0.3.1" in page

    def test_snapshots(self, run: Run) -> None:
        (snapshot,) = get("runs/proverbs/snapshots").json()["items"]
        assert (snapshot["index"], snapshot["step"], snapshot["digest"]) == (0, 0, "0" * 64)
        assert (snapshot["heldout_figures"], snapshot["is_best"]) == ({}, False)
        run.snapshots.update(heldout_loss=2.5, heldout_figures={"perplexity": 12.2})
        (snapshot,) = get("runs/proverbs/snapshots").json()["items"]
        assert (snapshot["heldout_figures"], snapshot["is_best"]) == ({"perplexity": 12.2}, True)

    def test_how_a_run_learns(self, run: Run, laptop: Owned) -> None:
        bare = get("runs/proverbs").json()
        assert (bare["heldout"], bare["warning"], bare["passes"]) == (None, "", 0.0)
        for loss, heldout in ((5.0, 4.0), (4.0, 3.3), (3.0, 3.6), (2.0, 4.3)):
            entry = committed(run, (laptop.machine, 4), loss=loss)
            facts = {"index": entry.index, "step": entry.step, "state_digest": "", "file": f"{entry.step}", "size": 1}
            Snapshot.objects.create(run=run, heldout_loss=heldout, **facts)
        told = get("runs/proverbs").json()
        assert told["heldout"] == {"loss": 4.3, "step": 4, "best_loss": 3.3, "best_step": 2}
        assert told["warning"].startswith("The model is overfitting: held-out loss rose from 3.30 at step 2 to 4.30")
        assert told["passes"] > 0
        page = Client().get("/runs/proverbs/").content.decode()
        assert html.escape(told["warning"]) in page

    @pytest.mark.parametrize("name", ["steps", "ledger", "snapshots", "leaderboard"])
    def test_lists_go_on_at_the_cursor_until_there_is_none(self, run: Run, organizer: Person, name: str) -> None:
        machines = [owned(Person.objects.create_user(f"hand{number}", None)).machine for number in range(5)]
        for number, machine in enumerate(machines):
            entry = committed(run, (machine, number + 1))
            Snapshot.objects.create(
                run=run, index=entry.index, step=entry.step, state_digest="", file=f"{number}" * 64, size=1
            )
        whole = get(f"runs/proverbs/{name}").json()
        parts, cursor = [], ""
        while True:
            part = get(f"runs/proverbs/{name}?limit=2{cursor}").json()
            parts += part["items"]
            if part["next"] is None:
                break
            cursor = f"&cursor={part['next']}"
        assert parts == whole["items"]
        assert len(parts) >= 5
        assert whole["next"] is None

    @pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "cursor=-1", "cursor=x", f"cursor={2**63}"])
    def test_a_limit_or_cursor_that_cannot_be(self, run: Run, query: str) -> None:
        answer = get(f"runs/proverbs/steps?{query}")
        assert answer.status_code == 422
        assert answer.json()["code"] == "E206"

    @pytest.mark.parametrize("path", ["runs/none", "runs/none/steps", "runs/none/release/x.zip", "nothing"])
    def test_what_is_not_there_says_so_in_json(self, db: None, path: str) -> None:
        answer = get(path)
        assert answer.status_code == 404
        assert set(answer.json()) == {"code", "title", "severity", "text"}

    def test_the_description_has_what_is_built_and_no_more(self, db: None) -> None:
        paths = get("openapi.json").json()["paths"]
        assert f"{API}runs/{{slug}}/leaderboard" in paths
        assert {f"{API}devices", f"{API}devices/poll"} <= set(paths)
        assert not [path for path in paths if "team" in path]


class TestReadingAsSomebody:
    @pytest.fixture(autouse=True)
    def private(self, run: Run) -> None:
        Run.objects.update(visibility="private")

    @pytest.mark.parametrize("name", ["", "/steps", "/leaderboard", "/ledger", "/snapshots", "/facts"])
    def test_a_machine_reads_the_run_that_its_credential_is_for(
        self, run: Run, organizer: Person, laptop: Owned, volunteer: Person, name: str
    ) -> None:
        other = opened(organizer, slug="other", visibility="private")
        for private in (run, other):
            add_member(run=private, name=volunteer.username)
        own, others = (laptop.credential(of, now=int(time.time())) for of in (run, other))
        assert Client().get(f"{API}runs/proverbs{name}", headers=own).status_code == 200
        refused = Client().get(f"{API}runs/proverbs{name}", headers=others)
        assert (refused.status_code, refused.json()["code"]) == (403, "E213")
        remove_member(member=Member.objects.get(run=run, person=volunteer))
        assert Client().get(f"{API}runs/proverbs{name}", headers=own).status_code == 404
        revoke_machine(machine=laptop.machine)
        refused = Client().get(f"{API}runs/proverbs{name}", headers=own)
        assert (refused.status_code, refused.json()["code"]) == (403, "E214")

    def test_a_token_that_does_not_work_is_an_error_and_not_nobody(self, db: None) -> None:
        answer = get("runs", authorization="Bearer mh_wrong")
        assert (answer.status_code, answer.json()["code"]) == (401, "E215")


class TestRelease:
    def test_a_whole_file(self, release: Release) -> None:
        answer = get("runs/proverbs/release/proverbs.zip")
        assert body(answer) == CONTENT
        assert answer["X-Sha256"] == hashlib.sha256(CONTENT).hexdigest()
        assert answer["Accept-Ranges"] == "bytes"
        assert answer["Content-Length"] == str(len(CONTENT))

    @pytest.mark.parametrize(
        ("wanted", "start", "stop"),
        [("bytes=0-0", 0, 1), ("bytes=100-199", 100, 200), ("bytes=2000-", 2000, 2048), ("bytes=-48", 2000, 2048),
         ("bytes=2000-9999", 2000, 2048), ("bytes=-9999", 0, 2048)],
    )  # fmt: skip
    def test_a_part_of_it(self, release: Release, wanted: str, start: int, stop: int) -> None:
        answer = get("runs/proverbs/release/proverbs.zip", range=wanted)
        assert answer.status_code == 206
        assert answer["Content-Range"] == f"bytes {start}-{stop - 1}/2048"
        assert body(answer) == CONTENT[start:stop]

    @pytest.mark.parametrize("wanted", ["bytes=2048-", "bytes=9999-10000", "bytes=-0"])
    def test_a_part_beyond_its_end(self, release: Release, wanted: str) -> None:
        answer = get("runs/proverbs/release/proverbs.zip", range=wanted)
        assert answer.status_code == 416
        assert answer["Content-Range"] == "bytes */2048"

    @pytest.mark.parametrize("wanted", ["bytes=5-2", "bytes=-", "lines=1-2", "bytes=0-1,5-6", "nonsense", ENDLESS])
    def test_a_range_that_makes_no_sense_is_passed_over(self, release: Release, wanted: str) -> None:
        answer = get("runs/proverbs/release/proverbs.zip", range=wanted)
        assert answer.status_code == 200
        assert body(answer) == CONTENT

    def test_a_part_of_another_version_is_not_mixed_in(self, release: Release) -> None:
        answer = get("runs/proverbs/release/proverbs.zip", range="bytes=100-", if_range='"other"')
        assert body(answer) == CONTENT

    @pytest.mark.parametrize("name", ["other.zip", "..%2f..%2fkeys%2fsite", "../../keys/site"])
    def test_nothing_else_is_served(self, release: Release, name: str) -> None:
        assert get(f"runs/proverbs/release/{name}").status_code == 404

    def test_its_size_and_digest_without_its_bytes(self, release: Release) -> None:
        answer = Client().head(f"{API}runs/proverbs/release/proverbs.zip")
        assert (answer.status_code, answer["Content-Length"], body(answer)) == (200, "2048", b"")

    def test_nothing_is_served_before_it_is_ready(self, release: Release) -> None:
        Release.objects.update(state="preparing")
        assert get("runs/proverbs/release/proverbs.zip").status_code == 404

    @pytest.mark.django_db(transaction=True)
    async def test_a_server_streams_it(self, release: Release) -> None:
        answer: Any = await AsyncClient().get(f"{API}runs/proverbs/release/proverbs.zip", headers={"Range": "bytes=1-"})
        assert answer.is_async
        assert b"".join([block async for block in answer]) == CONTENT[1:]
