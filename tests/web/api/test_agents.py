"""The API for agents: enrolment, credentials, and files by byte range."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.test import Client

from accounts.keys import site_key
from accounts.models import Machine, Person
from accounts.services import admit_machine, create_machine_token, revoke_machine
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
from peer_agent.protocol.messages import PROTOCOL
from peer_agent.protocol.recipe import ModelFile, encode_recipe
from peer_agent.recipes.finetune_lora import Base, FinetuneLoRA
from runs import storage
from runs.access import shut_out
from runs.lifecycle.membership import let_back, remove_person
from runs.models import Run, Shard, Snapshot
from tests.runs.factories import RECIPE, Owned, opened, owned
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

    @pytest.mark.parametrize(
        "changes", [{"public_key": "zz"}, {"proof": ""}, {"kind": "king"}, {"name": ""}, {"name": "x" * 61}]
    )
    def test_what_cannot_be(self, volunteer: Person, changes: dict[str, str]) -> None:
        answer = self.enrol(create_machine_token(person=volunteer).secret, Ed25519PrivateKey.generate(), **changes)
        assert (answer.status_code, answer.json()["code"]) == (422, "E206")


class TestCredentials:
    def ask(self, requester: Owned, path: str = "runs/proverbs/credential", **changes: Any) -> Any:
        key = changes.pop("key", requester.key)
        facts = {
            "machine": requester.machine.peer_id,
            "role": "trainer",
            "issued_at": time.time(),
            "protocol": PROTOCOL,
        }
        facts |= changes
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

    def test_whoever_may_train_may_be_an_auxiliary_instead(self, run: Run, laptop: Owned) -> None:
        answer = self.ask(laptop, role="auxiliary").json()
        signed = msgspec.msgpack.decode(msgspec.json.decode(f'"{answer["credential"]}"', type=bytes), type=Signed)
        credential = verify(signed, bytes.fromhex(answer["site_key"]), answer["time"])
        assert isinstance(credential, Credential)
        assert (credential.run, credential.role, credential.person) == (run.run_id, Role.AUXILIARY, "Teo")

    def test_an_auxiliary_is_refused_as_a_trainer_is(self, run: Run, laptop: Owned, operator: Person) -> None:
        assert self.refused(self.ask(laptop, "runs/none/credential", role="auxiliary"), "E305")
        good = owned(operator, kind=Machine.Kind.RELAY)
        for requester in (laptop, good):
            assert self.refused(self.ask(requester, "relays/credential", role="auxiliary"), "E213")
        revoke_machine(machine=laptop.machine)
        assert self.refused(self.ask(laptop, role="auxiliary"), "E214")

    def test_an_agent_of_protocol_1_is_told_what_to_type(self, run: Run, laptop: Owned, settings: Any) -> None:
        """The request is copied from version 1, which does not name a protocol."""
        settings.DOWNLOADS.mkdir()
        (settings.DOWNLOADS / "manyhands-0.2.0-py3-none-any.whl").write_bytes(b"a wheel")
        raw = json.dumps({"machine": laptop.machine.peer_id, "role": "trainer", "issued_at": time.time()}).encode()
        headers = {"X-Manyhands-Signature": sign(laptop.key, REQUEST, raw).signature.hex()}
        answer = Client().post(f"{API}runs/proverbs/credential", raw, "application/json", headers=headers)
        assert self.refused(answer, "E205")
        said, line = answer.json()["text"].split("\n")
        assert f"uses protocol 1; the other side uses {PROTOCOL}" in said
        assert line.startswith("pip install --force-reinstall")
        assert "http://testserver/download/manyhands-0.2.0-py3-none-any.whl#sha256=" in line

    def test_without_a_package_it_is_told_where_to_look(self, run: Run, laptop: Owned) -> None:
        answer = self.ask(laptop, protocol=PROTOCOL + 1)
        assert self.refused(answer, "E205")
        assert answer.json()["text"].endswith("\nhttp://testserver/download/")

    def test_an_unknown_machine(self, run: Run, laptop: Owned) -> None:
        assert self.refused(self.ask(laptop, machine="f" * 32), "E101")

    def test_a_wrong_clock(self, run: Run, laptop: Owned) -> None:
        answer = self.ask(laptop, issued_at=time.time() - 3600)
        assert self.refused(answer, "E204")
        assert "60 minutes" in answer.json()["text"]

    def test_another_key(self, run: Run, laptop: Owned) -> None:
        assert self.refused(self.ask(laptop, key=Ed25519PrivateKey.generate()), "E216")

    def test_no_signature(self, run: Run, laptop: Owned) -> None:
        facts = {"machine": laptop.machine.peer_id, "role": "trainer", "issued_at": time.time(), "protocol": PROTOCOL}
        answer = Client().post(f"{API}runs/proverbs/credential", json.dumps(facts), "application/json")
        assert self.refused(answer, "E216")

    @pytest.mark.parametrize("changes", [{"role": "king"}, {"machine": "x"}, {"issued_at": "now"}, {"more": 1}])
    def test_a_body_that_cannot_be_understood(self, run: Run, laptop: Owned, changes: dict[str, Any]) -> None:
        assert self.refused(self.ask(laptop, **changes), "E206")

    def test_a_run_that_is_not_there_or_not_for_them(self, run: Run, laptop: Owned, organizer: Person) -> None:
        assert self.refused(self.ask(laptop, "runs/none/credential"), "E305")
        Run.objects.update(visibility="private")
        assert self.refused(self.ask(laptop), "E305")
        assert self.ask(owned(organizer)).status_code == 200

    def test_removed_machine_cannot_return_under_another_name(
        self, run: Run, laptop: Owned, stranger: Person, volunteer: Person
    ) -> None:
        remove_person(run=run, name=volunteer.username)
        assert self.refused(self.ask(laptop), "E324")
        other = opened(run.organizer, slug="other")
        admit_machine(person=stranger, name="new", public_key=public_bytes(laptop.key), kind=Machine.Kind.AGENT)
        assert self.refused(self.ask(laptop), "E229")
        assert list(shut_out(run, [laptop.machine.peer_id])) == [laptop.machine]
        assert self.ask(laptop, f"runs/{other.slug}/credential").status_code == 200
        assert self.ask(owned(stranger)).status_code == 200
        let_back(member=run.members.get())
        assert self.ask(laptop).status_code == 200
        assert not shut_out(run, [laptop.machine.peer_id]).exists()

    def test_one_machine_does_not_ask_all_the_time(self, run: Run, laptop: Owned, settings: Any) -> None:
        settings.RATES = settings.RATES | {"credentials": (1, 900)}
        others = owned(laptop.machine.person)
        assert self.ask(laptop).status_code == 200
        assert self.refused(self.ask(laptop), "E223")
        assert self.ask(others).status_code == 200

    def test_nobody_reads_relays_logs_in_the_sites_name(self, run: Run, laptop: Owned, operator: Person) -> None:
        """The site issues reader credentials only to its own replays."""
        for requester in (laptop, owned(operator, kind=Machine.Kind.RELAY)):
            for path in ("runs/proverbs/credential", "relays/credential"):
                assert self.refused(self.ask(requester, path, role="reader"), "E213")

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
        self, requester: Owned, run: Run | None, role: Role = Role.TRAINER, now: int | None = None
    ) -> dict[str, str]:
        return requester.credential(run, role, now=int(time.time()) if now is None else now)

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

    def test_what_a_model_is_built_from(self, run: Run, organizer: Person, laptop: Owned) -> None:
        content = b"a base"
        digest = hashlib.sha256(content).hexdigest()
        recipe = FinetuneLoRA(context=32, base=Base(file=ModelFile(digest, len(content))))
        Run.objects.filter(pk=run.pk).update(recipe=encode_recipe(recipe).decode())
        path = storage.model_folder(run.dataset) / f"{digest}.safetensors"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        answer = get(f"files/models/{digest}", **self.header(laptop, run))
        assert (body(answer), answer["X-Sha256"]) == (content, digest)
        assert get(f"files/models/{'a' * 64}", **self.header(laptop, run)).status_code == 404
        other = opened(organizer, slug="other")
        assert get(f"files/models/{digest}", **self.header(laptop, other)).status_code == 404
        Run.objects.filter(pk=run.pk).update(recipe=encode_recipe(RECIPE).decode(), purpose=digest)
        assert get(f"files/models/{digest}", **self.header(laptop, run)).status_code == 404

    def test_a_relay_reads_every_run(self, run: Run, operator: Person) -> None:
        header = self.header(owned(operator, kind=Machine.Kind.RELAY), None, Role.RELAY)
        assert get(f"files/shards/{Shard.objects.get().digest}", **header).status_code == 200

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
