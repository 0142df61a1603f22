"""The API: shapes, permissions, lists that go on, files by ranges, what agents ask."""

import hashlib
import html
import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.test import AsyncClient, Client
from safetensors.numpy import load_file, save_file

from accounts.keys import site_key
from accounts.models import Machine, Person, Token
from accounts.services import create_machine_token, create_token, revoke_machine
from peer_agent import __version__
from peer_agent.protocol.credentials import (
    LIFETIME_S,
    REQUEST,
    Credential,
    Role,
    Signed,
    public_bytes,
    sign,
    verify,
)
from peer_agent.protocol.digests import state_digest
from peer_agent.protocol.messages import PROTOCOL
from peer_agent.publishing.card import parse_facts
from runs import storage
from runs.membership import add_member, remove_member
from runs.models import Member, Release, Run, Shard, Snapshot
from runs.named import set_named
from tests.runs.cast import Owned, committed, opened, owned, state_file

API = "/api/v1/"
ENDLESS = f"bytes=0-{'9' * 5000}"
CONTENT = bytes(range(256)) * 8


def get(path: str, *clients: Client, **headers: str) -> Any:
    return (*clients, Client())[0].get(
        API + path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def body(answer: Any) -> bytes:
    return b"".join(answer.streaming_content)


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
        assert get("runs/proverbs").json() == {
            "slug": "proverbs",
            "title": "A model of proverbs",
            "state": "open",
            "step": 1,
            "target_steps": 100,
            "loss": 5.5,
            "peers_online": 0,
            "waiting_for": "",
            "unigram_entropy": 6.1,
            "parameters": run.elements,
            "codec_up": run.parsed_recipe.codec_up,
            "codec_down": run.parsed_recipe.codec_down,
            "recipe": json.loads(run.recipe),
            "data_bytes": 2000,
        }
        assert get("runs").json() == {"items": [get("runs/proverbs").json()], "next": None}

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
        }

    def test_who_gave_what(self, run: Run, laptop: Owned) -> None:
        committed(run, (laptop.machine, 4))
        assert get("runs/proverbs/leaderboard").json()["items"] == [
            {"rank": 1, "name": "Teo", "samples": 4, "tokens": 32, "rounds": 1}
        ]
        assert get("runs/proverbs/ledger").json()["items"] == [
            {"step": 1, "person": "Teo", "machine": "laptop", "samples": 4, "tokens": 32, "weight": 32}
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
        assert parse_facts(json.dumps(facts).encode()).hands == 1

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
        assert set(answer.json()) == {"code", "text"}

    def test_the_description_has_what_is_built_and_no_more(self, db: None) -> None:
        paths = get("openapi.json").json()["paths"]
        assert f"{API}runs/{{slug}}/leaderboard" in paths
        assert {f"{API}devices", f"{API}devices/poll"} <= set(paths)
        assert not [path for path in paths if "team" in path]
        assert get("docs").status_code == 404


class TestReadingAsSomebody:
    @pytest.fixture(autouse=True)
    def private(self, run: Run) -> None:
        Run.objects.update(visibility="private")

    @pytest.mark.parametrize("name", ["", "/steps", "/leaderboard", "/ledger", "/snapshots"])
    def test_a_private_run_is_not_there_for_others(self, stranger: Person, name: str) -> None:
        secret = create_token(person=stranger, purpose=Token.Purpose.API).secret
        for headers in ({}, {"authorization": f"Bearer {secret}"}):
            assert get(f"runs/proverbs{name}", **headers).status_code == 404
        assert get("runs").json()["items"] == []

    def test_its_organizer_reads_it_with_a_token(self, organizer: Person) -> None:
        secret = create_token(person=organizer, purpose=Token.Purpose.API).secret
        assert get("runs/proverbs", authorization=f"Bearer {secret}").json()["slug"] == "proverbs"
        assert len(get("runs", authorization=f"Bearer {secret}").json()["items"]) == 1

    def test_its_organizer_reads_it_in_the_browser(self, organizer: Person) -> None:
        client = Client()
        client.force_login(organizer)
        assert get("runs/proverbs", client).status_code == 200

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


class TestEnrolment:
    def enrol(self, secret: str, key: Ed25519PrivateKey, **changes: Any) -> Any:
        proof = sign(key, REQUEST, secret.encode()).signature.hex()
        facts = {"name": "laptop", "public_key": public_bytes(key).hex(), "kind": "agent", "proof": proof, **changes}
        return Client().post(
            f"{API}machines", json.dumps(facts), "application/json", headers={"Authorization": f"Bearer {secret}"}
        )

    def test_a_machine_learns_its_name_and_the_sites_key(self, volunteer: Person) -> None:
        answer = self.enrol(create_machine_token(person=volunteer).secret, Ed25519PrivateKey.generate()).json()
        assert answer["person"] == "Teo"
        assert answer["machine"] == Machine.objects.get().peer_id
        assert answer["site_key"] == public_bytes(site_key()).hex()

    def test_a_bad_proof(self, volunteer: Person) -> None:
        secret = create_machine_token(person=volunteer).secret
        answer = self.enrol(secret, Ed25519PrivateKey.generate(), proof="0" * 128)
        assert (answer.status_code, answer.json()["code"]) == (401, "E216")
        assert not Machine.objects.exists()

    def test_a_token_twice(self, volunteer: Person) -> None:
        secret = create_machine_token(person=volunteer).secret
        answers = [self.enrol(secret, Ed25519PrivateKey.generate()) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 401]

    @pytest.mark.parametrize(
        "changes", [{"public_key": "zz"}, {"proof": ""}, {"kind": "king"}, {"name": ""}, {"name": "x" * 61}]
    )
    def test_what_cannot_be(self, volunteer: Person, changes: dict[str, str]) -> None:
        answer = self.enrol(create_machine_token(person=volunteer).secret, Ed25519PrivateKey.generate(), **changes)
        assert (answer.status_code, answer.json()["code"]) == (422, "E206")


class TestCredentials:
    def ask(self, asker: Owned, path: str = "runs/proverbs/credential", **changes: Any) -> Any:
        key = changes.pop("key", asker.key)
        facts = {"machine": asker.machine.peer_id, "role": "trainer", "issued_at": time.time(), **changes}
        raw = json.dumps(facts).encode()
        headers = {"X-Manyhands-Signature": sign(key, REQUEST, raw).signature.hex()}
        return Client().post(API + path, raw, "application/json", headers=headers)

    def refused(self, answer: Any, code: str) -> bool:
        return answer.status_code in range(400, 500) and answer.json()["code"] == code

    def test_it_is_signed_by_this_site_for_this_run(self, run: Run, laptop: Owned) -> None:
        answer = self.ask(laptop).json()
        signed = msgspec.msgpack.decode(msgspec.json.decode(f'"{answer["credential"]}"', type=bytes), type=Signed)
        credential = verify(signed, bytes.fromhex(answer["site_key"]), answer["time"])
        assert isinstance(credential, Credential)
        assert (credential.run, credential.role, credential.person) == (run.run_id, Role.TRAINER, "Teo")
        assert (answer["run"], answer["slug"], answer["control"]) == (
            run.run_id,
            "proverbs",
            "ws://testserver/ws/agents/",
        )

    def test_an_unknown_machine(self, run: Run, laptop: Owned) -> None:
        assert self.refused(self.ask(laptop, machine="f" * 32), "E101")

    def test_a_wrong_clock(self, run: Run, laptop: Owned) -> None:
        answer = self.ask(laptop, issued_at=time.time() - 3600)
        assert self.refused(answer, "E204")
        assert "60 minutes" in answer.json()["text"]

    def test_a_revoked_machine(self, run: Run, laptop: Owned) -> None:
        revoke_machine(machine=laptop.machine)
        assert self.refused(self.ask(laptop), "E214")

    def test_another_key(self, run: Run, laptop: Owned) -> None:
        assert self.refused(self.ask(laptop, key=Ed25519PrivateKey.generate()), "E216")

    def test_no_signature(self, run: Run, laptop: Owned) -> None:
        facts = {"machine": laptop.machine.peer_id, "role": "trainer", "issued_at": time.time()}
        answer = Client().post(f"{API}runs/proverbs/credential", json.dumps(facts), "application/json")
        assert self.refused(answer, "E216")

    @pytest.mark.parametrize("changes", [{"role": "king"}, {"machine": "x"}, {"issued_at": "now"}, {"more": 1}])
    def test_a_body_that_cannot_be_understood(self, run: Run, laptop: Owned, changes: dict[str, Any]) -> None:
        assert self.refused(self.ask(laptop, **changes), "E206")

    @pytest.mark.parametrize(("state", "code"), [("draft", "E308"), ("preparing", "E308"), ("finished", "E306")])
    def test_a_run_that_is_not_open(self, run: Run, laptop: Owned, state: str, code: str) -> None:
        Run.objects.update(state=state)
        assert self.refused(self.ask(laptop), code)

    def test_a_run_that_is_not_there_or_not_for_them(self, run: Run, laptop: Owned, organizer: Person) -> None:
        assert self.refused(self.ask(laptop, "runs/none/credential"), "E305")
        Run.objects.update(visibility="private")
        assert self.refused(self.ask(laptop), "E305")
        assert self.ask(owned(organizer)).status_code == 200

    def test_only_an_operators_relay_is_a_relay(
        self, run: Run, laptop: Owned, volunteer: Person, operator: Person
    ) -> None:
        relays = "relays/credential"
        own_relay = owned(volunteer, kind=Machine.Kind.RELAY)
        assert self.refused(self.ask(laptop, relays, role="relay"), "E213")
        assert self.refused(self.ask(own_relay, relays, role="relay"), "E213")
        assert self.refused(self.ask(owned(operator), relays, role="relay"), "E213")
        assert self.refused(self.ask(laptop, role="relay"), "E213")
        good = owned(operator, kind=Machine.Kind.RELAY)
        assert self.refused(self.ask(good, relays, role="trainer"), "E213")
        assert self.ask(good, relays, role="relay").json()["run"] == "*"


class TestFiles:
    def header(
        self, asker: Owned, run: Run | None, role: Role = Role.TRAINER, now: int | None = None
    ) -> dict[str, str]:
        return asker.credential(run, role, now=int(time.time()) if now is None else now)

    def test_a_shard_and_a_snapshot_of_the_credentials_run(self, run: Run, laptop: Owned) -> None:
        shard, snapshot = Shard.objects.get(), Snapshot.objects.get()
        for path, digest in (
            (f"files/shards/{shard.digest}", shard.digest),
            (f"files/snapshots/{snapshot.file}", snapshot.file),
        ):
            answer = get(path, **self.header(laptop, run))
            assert hashlib.sha256(body(answer)).hexdigest() == digest == answer["X-Sha256"]

    def test_ranges_so_that_a_fetch_can_go_on(self, run: Run, laptop: Owned) -> None:
        answer = get(f"files/shards/{Shard.objects.get().digest}", range="bytes=6-", **self.header(laptop, run))
        assert (answer.status_code, body(answer)) == (206, b" of a shard")

    def test_a_relay_reads_every_run(self, run: Run, operator: Person) -> None:
        header = self.header(owned(operator, kind=Machine.Kind.RELAY), None, Role.RELAY)
        assert get(f"files/shards/{Shard.objects.get().digest}", **header).status_code == 200

    def test_a_credential_for_another_run_opens_nothing(self, run: Run, organizer: Person, laptop: Owned) -> None:
        other = opened(organizer, slug="other")
        Shard.objects.filter(dataset=other.dataset).delete()
        other.snapshots.all().delete()
        for path in (f"files/shards/{Shard.objects.get().digest}", f"files/snapshots/{Snapshot.objects.get().file}"):
            assert get(path, **self.header(laptop, other)).status_code == 404

    @pytest.mark.parametrize("header", [None, "", "Bearer x", "Credential", "Credential !!", "Credential AAAA"])
    def test_without_a_credential(self, run: Run, header: str | None) -> None:
        headers = {} if header is None else {"authorization": header}
        answer = get(f"files/shards/{Shard.objects.get().digest}", **headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "E201")

    def test_with_one_of_another_site(self, run: Run, laptop: Owned, data_folder: Path) -> None:
        header = self.header(laptop, run)
        (data_folder / "keys" / "site").unlink()
        assert get(f"files/shards/{Shard.objects.get().digest}", **header).json()["code"] == "E201"

    def test_with_one_that_has_expired(self, run: Run, laptop: Owned) -> None:
        header = self.header(laptop, run, now=int(time.time()) - LIFETIME_S - 301)
        assert get(f"files/shards/{Shard.objects.get().digest}", **header).json()["code"] == "E202"

    def test_with_one_of_a_machine_that_was_revoked_since(self, run: Run, laptop: Owned) -> None:
        header = self.header(laptop, run)
        revoke_machine(machine=laptop.machine)
        assert get(f"files/shards/{Shard.objects.get().digest}", **header).json()["code"] == "E214"

    def test_with_one_of_a_member_who_was_removed_since(self, run: Run, laptop: Owned, operator: Person) -> None:
        Run.objects.update(visibility="private")
        member = add_member(run=run, name="Teo")
        header = self.header(laptop, run)
        shard = f"files/shards/{Shard.objects.get().digest}"
        paths = (shard, f"files/snapshots/{Snapshot.objects.get().file}")
        assert [get(path, **header).status_code for path in paths] == [200, 200]
        remove_member(member=member)
        assert [get(path, **header).status_code for path in paths] == [404, 404]
        relay = self.header(owned(operator, kind=Machine.Kind.RELAY), None, Role.RELAY)
        assert get(shard, **relay).status_code == 200


class TestOfferingSnapshots:
    @pytest.fixture
    def offered(self, run: Run, laptop: Owned, tmp_path: Path) -> Path:
        """A state that the log agrees with."""
        entry = committed(run, (laptop.machine, 4))
        path = state_file(tmp_path / "state", step=1, index=1, log_digest=entry.digest)
        vectors = load_file(path)
        entry.state_digest = state_digest(*(vectors[name] for name in ("parameters", "moment1", "moment2")))
        entry.save()
        return path

    def put(self, path: Path, asker: Owned, run: Run, *, step: int = 1, slug: str = "proverbs") -> Any:
        headers = asker.credential(run, now=int(time.time()))
        content = path.read_bytes()
        return Client().put(f"{API}runs/{slug}/snapshots/{step}", content, "application/octet-stream", headers=headers)

    def test_one_that_the_log_agrees_with_is_kept(self, offered: Path, run: Run, laptop: Owned) -> None:
        answer = self.put(offered, laptop, run)
        snapshot = Snapshot.objects.get(index=1)
        assert answer.json() == {
            "step": 1,
            "file": snapshot.file,
            "state_digest": snapshot.state_digest,
            "size": snapshot.size,
        }
        assert storage.snapshot_path(run, snapshot.file).read_bytes() == offered.read_bytes()
        assert snapshot.file == hashlib.sha256(offered.read_bytes()).hexdigest()

    def test_the_same_one_twice_is_no_error(self, offered: Path, run: Run, laptop: Owned) -> None:
        assert [self.put(offered, laptop, run).status_code for _ in range(2)] == [200, 200]

    def test_one_that_differs_leaves_nothing_behind(self, offered: Path, run: Run, laptop: Owned) -> None:
        vectors = load_file(offered)
        vectors["moment2"][0] += 1
        digest = run.log.get().digest
        save_file(vectors, offered, metadata={"step": "1", "index": "1", "log_digest": digest})
        answer = self.put(offered, laptop, run)
        assert (answer.status_code, answer.json()["code"]) == (409, "E310")
        assert Snapshot.objects.count() == 1
        assert len(list(storage.snapshot_path(run, "x").parent.iterdir())) == 1
        assert list((storage.root() / "work").iterdir()) == []

    @pytest.mark.parametrize("elements", [63, 65])
    def test_one_of_another_model(self, run: Run, laptop: Owned, tmp_path: Path, elements: int) -> None:
        path = state_file(tmp_path / "state", step=1, index=1, log_digest="d" * 64, elements=elements)
        assert self.put(path, laptop, run).json()["code"] == "E310"

    @pytest.mark.parametrize("content", [b"", b"not a safetensors file", b"\xff" * 100])
    def test_something_else(self, run: Run, laptop: Owned, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "state"
        path.write_bytes(content)
        assert self.put(path, laptop, run).json()["code"] in ("E310", "E311")

    def test_of_another_step_than_the_address_says(self, offered: Path, run: Run, laptop: Owned) -> None:
        assert self.put(offered, laptop, run, step=2).json()["code"] == "E310"

    def test_for_another_run(self, offered: Path, run: Run, laptop: Owned, organizer: Person) -> None:
        opened(organizer, slug="other")
        assert self.put(offered, laptop, run, slug="other").json()["code"] == "E213"

    def test_without_a_credential(self, offered: Path, run: Run) -> None:
        answer = Client().put(f"{API}runs/proverbs/snapshots/1", offered.read_bytes(), "application/octet-stream")
        assert (answer.status_code, answer.json()["code"]) == (401, "E201")
