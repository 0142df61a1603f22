"""Snapshot uploads: only from the elected machine, and only with the admitted hash.

A regression: any account's credential could replace the model, and the audit did not notice.
"""

import asyncio
import hashlib
import time
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.test import Client
from django.utils import timezone

from accounts.models import Person
from coordination.models import Admission, PendingSnapshot, UploadSlot
from coordination.snapshots import PENDING, admit_hash, as_message, elect_keeper, news_of
from coordination.uploads import Slot
from jobs.queue import Kind
from jobs.runner import Later
from peer_agent.protocol.log.digests import state_digest
from runs import storage
from runs.models import LogEntry, RefusedSnapshot, Run, Snapshot
from runs.snapshots.retention import ASKED_FOR_S, thin_snapshots
from server.body_limits import LengthGuard
from tests.jobs.requests import do, requested
from tests.runs.factories import ELEMENTS, VECTORS, Owned, committed, opened, owned, state_bytes
from tests.web.api_client import API

LATER = timedelta(hours=1)


def true_vectors() -> dict[str, Any]:
    return {name: np.full(ELEMENTS, place, "<f4") for place, name in enumerate(VECTORS)}


@pytest.fixture
def entry(run: Run, laptop: Owned) -> LogEntry:
    return committed(run, (laptop.machine, 4), state_digest=state_digest(*true_vectors().values()))


@pytest.fixture
def true_state(entry: LogEntry) -> bytes:
    return state_bytes(step=1, index=1, log_digest=entry.digest)


@pytest.fixture
def elected(run: Run, laptop: Owned, entry: LogEntry) -> Owned:
    elect_keeper(run, peer=laptop.machine.peer_id, index=1, step=1)
    return laptop


def admit(run: Run, data: bytes) -> None:
    admit_hash(run, index=1, step=1, sha256=hashlib.sha256(data).hexdigest(), size=len(data))


def put(data: bytes, requester: Owned, run: Run, *, step: int = 1, slug: str = "proverbs") -> Any:
    headers = requester.credential(run, now=int(time.time()))
    return Client().put(f"{API}runs/{slug}/snapshots/{step}", data, "application/octet-stream", headers=headers)


def refused(answer: Any, code: str) -> bool:
    """Return True if the answer has this code and no part of the upload is stored."""
    work = storage.root() / "work"
    is_clean = not PendingSnapshot.objects.exists() and not (work.exists() and list(work.iterdir()))
    is_clean = is_clean and not list(storage.root().glob("runs/*/pending/*"))
    return (answer.json()["code"], is_clean, Snapshot.objects.count()) == (code, True, 1)


def noise(vectors: dict[str, Any]) -> None:
    """Change the parameters but not the state digest: at odd positions the digest's constant is a multiple of the
    position."""
    bits = vectors["parameters"].view(np.int32)
    for place in range(1, bits.size - 4, 6):
        bits[place] += 123456
        bits[place + 2] -= 2 * 123456
        bits[place + 4] += 123456


def forged(entry: LogEntry) -> bytes:
    vectors = true_vectors()
    vectors["parameters"][:] = 1.0
    noise(vectors)
    return state_bytes(step=1, index=1, log_digest=entry.digest, **vectors)


class TestWhoIsTaken:
    def test_the_elected_keeper_under_the_admitted_hash(self, run: Run, elected: Owned, true_state: bytes) -> None:
        admit(run, true_state)
        answer = put(true_state, elected, run)
        snapshot = Snapshot.objects.get(index=1)
        facts = {"step": 1, "file": snapshot.file, "state_digest": snapshot.state_digest, "size": snapshot.size}
        assert answer.json() == facts
        assert snapshot.state_digest == LogEntry.objects.get().state_digest
        assert snapshot.file == hashlib.sha256(true_state).hexdigest()
        assert storage.snapshot_path(run, snapshot.file).read_bytes() == true_state
        assert (snapshot.state, snapshot.verified_at) == (Snapshot.State.ADMITTED, None)
        assert not PendingSnapshot.objects.exists()
        assert news_of(run).snapshot == as_message(snapshot)

    def test_the_file_may_come_before_its_hash(self, run: Run, elected: Owned, true_state: bytes) -> None:
        assert put(true_state, elected, run).status_code == 200
        assert Snapshot.objects.count() == 1
        admit(run, true_state)
        assert Snapshot.objects.get(index=1).size == len(true_state)
        assert not list(storage.root().glob("runs/*/pending/*"))

    def test_the_same_file_twice_is_no_error(self, run: Run, elected: Owned, true_state: bytes) -> None:
        admit(run, true_state)
        assert [put(true_state, elected, run).status_code for _ in range(2)] == [200, 200]

    def test_nobody_else(self, run: Run, elected: Owned, true_state: bytes, stranger: Person) -> None:
        """A regression: any account's credential was enough."""
        admit(run, true_state)
        assert refused(put(true_state, owned(stranger), run), "E355")

    def test_not_for_another_step(self, run: Run, elected: Owned, true_state: bytes) -> None:
        assert refused(put(true_state, elected, run, step=2), "E355")

    def test_not_after_its_time(self, run: Run, elected: Owned, true_state: bytes) -> None:
        run.elections.update(until=timezone.now() - timedelta(seconds=1))
        assert refused(put(true_state, elected, run), "E355")

    def test_not_once_it_was_replaced(self, run: Run, elected: Owned, true_state: bytes, stranger: Person) -> None:
        elect_keeper(run, peer=owned(stranger).machine.peer_id, index=1, step=1)
        assert refused(put(true_state, elected, run), "E355")

    def test_not_for_another_run(self, run: Run, elected: Owned, true_state: bytes, organizer: Person) -> None:
        opened(organizer, slug="other")
        assert put(true_state, elected, run, slug="other").json()["code"] == "E213"

    def test_not_without_a_credential(self, run: Run, true_state: bytes) -> None:
        answer = Client().put(f"{API}runs/proverbs/snapshots/1", true_state, "application/octet-stream")
        assert (answer.status_code, answer.json()["code"]) == (401, "E201")


class TestWhichBytes:
    def test_no_others_than_most_people_have(self, run: Run, elected: Owned, true_state: bytes) -> None:
        admit(run, true_state)
        other = bytearray(true_state)
        other[-1] ^= 1
        assert refused(put(bytes(other), elected, run), "E356")

    def test_none_with_the_same_cheap_digest(
        self, run: Run, elected: Owned, entry: LogEntry, true_state: bytes
    ) -> None:
        """The digest is linear and public, so a forged state can have the same digest. The audit did not notice such a
        state either."""
        vectors = true_vectors()
        before = state_digest(*vectors.values())
        noise(vectors)
        assert state_digest(*vectors.values()) == before == entry.state_digest
        admit(run, true_state)
        data = state_bytes(step=1, index=1, log_digest=entry.digest, **vectors)
        assert refused(put(data, elected, run), "E356")

    def test_what_waits_goes_when_another_hash_is_admitted(
        self, run: Run, elected: Owned, entry: LogEntry, true_state: bytes
    ) -> None:
        assert put(forged(entry), elected, run).status_code == 200
        admit(run, true_state)
        assert not PendingSnapshot.objects.exists()
        assert not list(storage.root().glob("runs/*/pending/*"))
        assert Snapshot.objects.count() == 1

    def test_a_hash_that_the_log_has_refused_is_not_admitted_again(
        self, run: Run, elected: Owned, true_state: bytes
    ) -> None:
        RefusedSnapshot.objects.create(run=run, index=1, step=1, file=hashlib.sha256(true_state).hexdigest())
        admit(run, true_state)
        assert not Admission.objects.exists()
        assert refused(put(true_state, elected, run), "E356")

    def test_what_nobody_admits_expires(self, run: Run, elected: Owned, true_state: bytes) -> None:
        put(true_state, elected, run)
        assert requested() == [(Kind.EXPIRE_PENDING, "")]
        later = do(Kind.EXPIRE_PENDING)
        assert isinstance(later, Later)
        assert PENDING.total_seconds() - 60 < (later.after_s or 0) <= PENDING.total_seconds() + 1
        path = storage.snapshot_path(run, hashlib.sha256(true_state).hexdigest())
        assert path.exists()
        PendingSnapshot.objects.update(expires=timezone.now() - timedelta(seconds=1))
        assert do(Kind.EXPIRE_PENDING) is None
        assert not PendingSnapshot.objects.exists()
        thin_snapshots(run.pk, now=path.stat().st_mtime + ASKED_FOR_S + 1)
        assert not path.exists()

    def test_of_two_keepers_files_the_newer_waits(
        self, run: Run, elected: Owned, entry: LogEntry, true_state: bytes, stranger: Person
    ) -> None:
        put(forged(entry), elected, run)
        other = owned(stranger)
        elect_keeper(run, peer=other.machine.peer_id, index=1, step=1)
        put(true_state, other, run)
        assert PendingSnapshot.objects.count() == 1
        admit(run, true_state)
        assert Snapshot.objects.filter(index=1).exists()

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("name", VECTORS)
    def test_no_values_that_are_not_finite(
        self, run: Run, elected: Owned, entry: LogEntry, name: str, value: float
    ) -> None:
        """Values that are not finite are refused, even if most replicas report them."""
        vector = np.ones(ELEMENTS, "<f4")
        vector[-1] = value
        given: dict[str, Any] = {name: vector}
        data = state_bytes(step=1, index=1, log_digest=entry.digest, **given)
        admit(run, data)
        assert refused(put(data, elected, run), "E310")

    @pytest.mark.parametrize(
        "changes",
        [
            {"elements": ELEMENTS - 1},
            {"elements": ELEMENTS + 1},
            {"layout": '{"pieces":[["w",[64],0]],"elements":64}'},
            {"layout": "{}"},
            {"step": 2},
            {"index": 2},
            {"log_digest": "f" * 64},
            {"moment2": np.ones(ELEMENTS - 1, "<f4")},
            {"moment2": np.ones(ELEMENTS + 1, "<f4")},
        ],
        ids=str,
    )
    def test_no_other_layout_size_or_place(
        self, run: Run, elected: Owned, entry: LogEntry, changes: dict[str, Any]
    ) -> None:
        facts: dict[str, Any] = {"step": 1, "index": 1, "log_digest": entry.digest}
        data = state_bytes(**{**facts, **changes})
        admit(run, data)
        assert refused(put(data, elected, run), "E310")

    @pytest.mark.parametrize("change", [(b'"F32"', b'"I32"'), (b"moment1", b"momentX"), (b'"step"', b'"stop"')])
    def test_no_other_tensors(self, run: Run, elected: Owned, true_state: bytes, change: tuple[bytes, bytes]) -> None:
        data = true_state.replace(*change, 1)
        admit(run, data)
        assert refused(put(data, elected, run), "E310")

    @pytest.mark.parametrize("data", [b"x", b"not a safetensors file", b"\xff" * 100, (9).to_bytes(8, "little")])
    def test_nothing_else(self, run: Run, elected: Owned, data: bytes) -> None:
        assert refused(put(data, elected, run), "E310")

    @pytest.mark.parametrize(("more", "code"), [(1, "E304"), (-1, "E356")])
    def test_no_other_length_than_is_admitted(
        self, run: Run, elected: Owned, true_state: bytes, more: int, code: str
    ) -> None:
        admit(run, true_state)
        data = (true_state + b" ")[: len(true_state) + more]
        assert refused(put(data, elected, run), code)


# --- the guard in front of Django, before a byte is read


async def guarded(machine: Owned, run: Run, length: int, inner: Any) -> tuple[int, str]:
    """Return the status and body of the answer to an upload that announces this length."""
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": True}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    header = await sync_to_async(machine.credential)(run, now=int(time.time()))
    names = {"host": "here", "content-length": str(length), **{k.lower(): v for k, v in header.items()}}
    headers = [(name.encode(), value.encode()) for name, value in names.items()]
    scope = {"type": "http", "method": "PUT", "path": f"{API}runs/proverbs/snapshots/1", "headers": headers}
    await LengthGuard(inner)(scope, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()


async def taken(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b""})


class TestBeforeItIsRead:
    def test_a_huge_length_of_a_keeper(self, run: Run, elected: Owned, true_state: bytes) -> None:
        admit(run, true_state)
        status, text = async_to_sync(guarded)(elected, run, len(true_state) + 1, taken)
        assert (status, "E304" in text) == (413, True)
        assert async_to_sync(guarded)(elected, run, len(true_state), taken)[0] == 299

    def test_somebody_who_was_not_asked(self, run: Run, elected: Owned, stranger: Person) -> None:
        status, text = async_to_sync(guarded)(owned(stranger), run, 100, taken)
        assert (status, "E355" in text) == (403, True)

    def test_a_second_upload_while_one_is_under_way(self, run: Run, elected: Owned, true_state: bytes) -> None:
        seen: list[tuple[int, str]] = []

        async def and_another(scope: Any, receive: Any, send: Any) -> None:
            seen.append(await guarded(elected, run, len(true_state), taken))
            await taken(scope, receive, send)

        assert async_to_sync(guarded)(elected, run, len(true_state), and_another)[0] == 299
        assert [(status, "E357" in text) for status, text in seen] == [(409, True)]
        assert async_to_sync(guarded)(elected, run, len(true_state), taken)[0] == 299, "when that one has ended"

    def test_an_upload_that_broke_off_is_forgotten(self, run: Run, elected: Owned, true_state: bytes) -> None:
        async def breaks(scope: Any, receive: Any, send: Any) -> None:
            raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            async_to_sync(guarded)(elected, run, len(true_state), breaks)
        assert not UploadSlot.objects.exists()

    def test_one_of_a_site_that_was_killed_holds_for_a_minute(
        self, run: Run, elected: Owned, true_state: bytes
    ) -> None:
        slot = UploadSlot.objects.create(machine=elected.machine, until=timezone.now() + LATER)
        assert async_to_sync(guarded)(elected, run, len(true_state), taken)[0] == 409
        slot.until = timezone.now() - timedelta(seconds=1)
        slot.save()
        assert async_to_sync(guarded)(elected, run, len(true_state), taken)[0] == 299

    def test_bytes_that_come_hold_it(self, run: Run, elected: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
        slot = Slot(elected.machine)
        assert not slot.is_old
        later = timezone.now() + timedelta(seconds=50)
        with monkeypatch.context() as clock:
            clock.setattr("coordination.uploads.timezone.now", lambda: later)
            assert slot.is_old
            slot.renew()
            assert not slot.is_old
        assert UploadSlot.objects.get().until > later
        slot.release()
        assert not UploadSlot.objects.exists()
