"""The API for agents: enrolment, credentials, files by ranges, snapshots that are handed in."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.test import Client
from safetensors.numpy import load_file, save_file

from accounts.keys import site_key
from accounts.models import Machine, Person
from accounts.services import create_machine_token, revoke_machine
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
from runs import storage
from runs.membership import add_member, remove_member
from runs.models import Run, Shard, Snapshot
from tests.runs.cast import Owned, committed, opened, owned, state_file
from tests.web.api_client import API, body, get


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
