"""The site verifies snapshots with its own replay before a release, and refuses a state that differs."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from accounts.keys import site_key
from coordination.snapshots import admit_hash, elect_keeper, news_of, note_listener, request_replay
from coordination.uploads import take_snapshot
from jobs.queue import Kind
from jobs.runner import Later
from peer_agent.protocol import messages as m
from peer_agent.protocol import reasons
from peer_agent.protocol.credentials import Credential, Role, public_bytes, verify
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import AccumulatorId, PeerId
from peer_agent.site_work.relay_logs import read_reach
from runs import background, storage
from runs.ledger.audit import audit
from runs.lifecycle.drafts import delete_draft, take_back
from runs.models import RefusedSnapshot, Release, Run, Snapshot, Verification
from runs.processes import ChildStopped
from runs.releases import making
from runs.releases.card_facts import release_facts
from runs.snapshots import replay, verification
from runs.snapshots.replay import Reader
from runs.snapshots.verification import Outcome, next_goal, verify_next
from tests.jobs.requests import do, forget_requests, requested, requested_kinds
from tests.runs.factories import Owned, committed, state_bytes

State = Snapshot.State
AT_A_SNAPSHOT = (Kind.MEASURE_HELDOUT, Kind.THIN_SNAPSHOTS, Kind.VERIFY_SNAPSHOTS)  # work that a new snapshot requests


class Children:
    """Child processes that answer at once with the true state of a step, unless a test interferes."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.asked: list[tuple[str, int]] = []  # (the file from which the replay starts, number of records)
        self.errors: list[BaseException | None] = []
        self.in_between: Any = None

    def __call__(self, arguments: list[str], *, beat: Any, **_: Any) -> dict[str, Any]:
        if arguments[0] != "replay":
            return self.release(arguments)
        records, out = Path(arguments[3]), Path(arguments[4])
        names = sorted(path.name for path in records.iterdir())
        self.asked.append((Path(arguments[2]).stem, len(names)))
        beat()
        if self.in_between is not None:
            self.in_between()
        if self.errors and (error := self.errors.pop(0)):
            raise error
        index = int(names[-1].split(".")[0])
        data = true_state(self.run, index)
        file = hashlib.sha256(data).hexdigest()
        if file != arguments[arguments.index("--expected") + 1]:
            out.mkdir()
            (out / f"{file}.safetensors").write_bytes(data)
        facts = {"index": index, "step": index, "log_digest": self.run.log.get(index=index).digest}
        return {**facts, "state_digest": f"{index:016x}", "file": file, "size": len(data)}

    def release(self, arguments: list[str]) -> dict[str, Any]:
        Path(arguments[4]).mkdir()
        return {"files": [], "archive": "a.zip", "sample": ""}


def true_state(run: Run, index: int) -> bytes:
    return state_bytes(step=index, index=index, log_digest=run.log.get(index=index).digest)


def another_state(run: Run, index: int) -> bytes:
    return true_state(run, index)[:-1] + b"\0"


def hand_in(run: Run, laptop: Owned, data: bytes, index: int) -> Snapshot:
    """Upload a snapshot with the hash reported by most replicas."""
    elect_keeper(run, peer=laptop.machine.peer_id, index=index, step=index)
    admit_hash(run, index=index, step=index, sha256=hashlib.sha256(data).hexdigest(), size=len(data))
    path = storage.root() / "body"
    path.write_bytes(data)
    with path.open("rb") as body:
        take_snapshot(election=run.elections.get(index=index), body=body, size=len(data))
    return run.snapshots.get(index=index)


def steps(run: Run, laptop: Owned, count: int) -> None:
    for _ in range(count):
        committed(run, (laptop.machine, 4))


@pytest.fixture
def long_run(run: Run, laptop: Owned, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(replay, "to_lines", lambda _: b"a record")
    steps(run, laptop, 6)
    for index in (2, 4):
        hand_in(run, laptop, true_state(run, index), index)
    return Run.objects.select_related("head", "dataset").get(pk=run.pk)


@pytest.fixture
def children(long_run: Run, monkeypatch: pytest.MonkeyPatch) -> Children:
    made = Children(long_run)
    monkeypatch.setattr(replay, "run_child", made)
    return made


def states(run: Run) -> dict[int, str]:
    return dict(run.snapshots.values_list("index", "state"))


class TestOneAfterAnother:
    def test_a_snapshot_that_is_kept_requests_its_verification(self, long_run: Run) -> None:
        assert {(kind, long_run.pk.hex) for kind in AT_A_SNAPSHOT} <= set(requested())

    def test_from_a_verified_one_to_the_next(self, long_run: Run, children: Children) -> None:
        assert news_of(long_run).verified == 0
        assert [verify_next(long_run.pk) for _ in range(3)] == [Outcome.MORE, Outcome.MORE, Outcome.DONE]
        files = dict(long_run.snapshots.values_list("index", "file"))
        assert children.asked == [(files[0], 2), (files[2], 2)]
        assert states(long_run) == {0: State.VERIFIED, 2: State.VERIFIED, 4: State.VERIFIED}
        assert long_run.snapshots.get(index=4).verified_at is not None
        assert news_of(long_run).verified == 4

    def test_only_what_is_on_the_disk(self, long_run: Run, children: Children) -> None:
        long_run.snapshots.filter(index=2).update(is_stored=False)
        verify_next(long_run.pk)
        assert (children.asked[0][1], states(long_run)[4]) == (4, State.VERIFIED)
        assert not verification.unverified().exists()

    def test_after_a_restart_it_goes_on_at_the_last_verified_one(self, long_run: Run, children: Children) -> None:
        children.errors = [None, ChildStopped()]
        assert [verify_next(long_run.pk) for _ in range(2)] == [Outcome.MORE, Outcome.DONE]
        assert states(long_run)[4] == State.ADMITTED
        assert list(verification.unverified()) == [long_run], "it still waits"
        assert verify_next(long_run.pk) == Outcome.MORE
        assert children.asked[2] == children.asked[1], "from step 2, not from the beginning"

    def test_what_fails_is_told_once_and_tried_again_later(self, long_run: Run, children: Children) -> None:
        children.errors = [Problem.of("E341", step=1), Problem.of("E341", step=1)]
        for _ in range(2):
            assert do(Kind.VERIFY_SNAPSHOTS, long_run.pk) == Later(fault=str(Problem.of("E341", step=1)))
        assert long_run.activity.filter(kind="failed").count() == 1
        assert verify_next(long_run.pk) == Outcome.MORE
        assert Verification.objects.get().fault == ""

    def test_child_gets_relay_addresses_and_a_key_of_its_own(self, long_run: Run, tmp_path: Path) -> None:
        relay = PeerId("0e" * 16)
        hello = m.Hello(run=long_run.run_id, accumulator=AccumulatorId("0" * 32), url="ws://10.0.0.7:9/")
        note_listener(relay, hello)
        assert Reader(long_run, tmp_path / "none").path.exists()
        assert read_reach(tmp_path / "none").relays == (), "it keeps no log"
        note_listener(relay, msgspec.structs.replace(hello, keeps_log=True))
        reader = Reader(long_run, tmp_path / "reach")
        reach = read_reach(tmp_path / "reach")
        assert [(each.peer, each.url) for each in reach.relays] == [(relay, "ws://10.0.0.7:9/")]
        credential = verify(reach.credential, public_bytes(site_key()), timezone.now().timestamp())
        assert isinstance(credential, Credential)
        assert (credential.role, credential.run, credential.machine) == (Role.READER, long_run.run_id, reach.peer)
        reader.renew()
        assert read_reach(tmp_path / "reach") == reach
        reader._renewed_at -= replay.RENEW_S
        reader.renew()
        assert read_reach(tmp_path / "reach").peer == reach.peer


class TestAnotherState:
    @pytest.fixture
    def lied(self, long_run: Run, laptop: Owned, children: Children) -> Run:
        """Return a run whose replicas reported a false hash at step 6."""
        hand_in(long_run, laptop, another_state(long_run, 6), 6)
        for _ in range(2):
            verify_next(long_run.pk)
        return long_run

    def test_is_refused_and_the_sites_own_stands_in_its_place(
        self, lied: Run, django_capture_on_commit_callbacks: Any
    ) -> None:
        before = lied.snapshots.get(index=6)
        assert storage.snapshot_path(lied, before.file).exists()
        with django_capture_on_commit_callbacks(execute=False) as later:
            assert verify_next(lied.pk) == Outcome.MORE
        for call in later:
            call()
        after = lied.snapshots.get(index=6)
        data = true_state(lied, 6)
        assert (after.file, after.state) == (hashlib.sha256(data).hexdigest(), State.VERIFIED)
        assert storage.snapshot_path(lied, after.file).read_bytes() == data
        assert not storage.snapshot_path(lied, before.file).exists()
        assert RefusedSnapshot.objects.get().file == before.file
        told = lied.activity.get(kind="refused").text
        assert told == verification.REFUSED.format(step=6)

    def test_judges_the_replicas(self, lied: Run) -> None:
        assert news_of(lied).replays == ()
        verify_next(lied.pk)
        (replayed,) = news_of(lied).replays
        assert (replayed.index, replayed.step, replayed.state_digest) == (6, 6, f"{6:016x}")
        assert lied.log.get(index=6).state_digest == f"{6:016x}"

    def test_is_named_by_the_audit(self, lied: Run) -> None:
        refused = lied.snapshots.get(index=6).file
        verify_next(lied.pk)
        named = sorted((row["step"], row["state"]) for row in audit(lied)["snapshots"])
        assert named == [(0, "verified"), (2, "verified"), (4, "verified"), (6, "refused"), (6, "verified")]
        assert any(row["file"] == refused for row in audit(lied)["snapshots"])


class TestWhatIsAskedFor:
    def test_is_made_from_the_log(self, long_run: Run, children: Children) -> None:
        """The site makes a state from the log if replicas disagree at step 5, or if none is left to upload it."""
        request_replay(long_run, index=5, step=5)
        for _ in range(3):
            verify_next(long_run.pk)
        assert states(long_run)[5] == State.VERIFIED
        (replayed,) = news_of(long_run).replays
        assert (replayed.step, replayed.state_digest) == (5, f"{5:016x}")

    def test_at_the_last_step_it_says_so(self, long_run: Run, children: Children) -> None:
        request_replay(long_run, index=6, step=6)
        for _ in range(3):
            verify_next(long_run.pk)
        assert long_run.activity.filter(kind="replayed", text=verification.MADE).count() == 1

    def test_asked_again_it_answers_at_once(self, long_run: Run, children: Children) -> None:
        verify_next(long_run.pk)
        request_replay(long_run, index=2, step=2)
        assert [replayed.index for replayed in news_of(long_run).replays] == [2]
        assert verification.next_goal(long_run) is not None
        assert next_goal(long_run).index == 4  # type: ignore[union-attr]

    def test_what_is_older_than_a_verified_one_is_of_no_interest(self, long_run: Run, children: Children) -> None:
        verify_next(long_run.pk)
        request_replay(long_run, index=1, step=1)
        assert not long_run.replays.exists()


class TestTheRelease:
    @pytest.fixture
    def finishing(self, long_run: Run, laptop: Owned, children: Children, monkeypatch: pytest.MonkeyPatch) -> Run:
        monkeypatch.setattr(making, "run_child", children.release)
        hand_in(long_run, laptop, true_state(long_run, 6), 6)
        Run.objects.filter(pk=long_run.pk).update(state=Run.State.FINISHING)
        Release.objects.create(run=long_run)
        long_run.refresh_from_db()
        return long_run

    def test_is_not_made_of_what_is_not_verified(self, finishing: Run) -> None:
        assert making.make_release(finishing.pk) == Release.State.PREPARING
        forget_requests()
        assert do(Kind.MAKE_RELEASE, finishing.pk) is None
        assert requested() == [(Kind.VERIFY_SNAPSHOTS, finishing.pk.hex)]
        finishing.refresh_from_db()
        assert (finishing.state, Release.objects.get().folder) == (Run.State.FINISHING, "")
        assert not verification.is_release_ready(finishing.pk)

    def test_is_made_once_it_is(self, finishing: Run) -> None:
        forget_requests()
        for _ in range(3):
            assert do(Kind.VERIFY_SNAPSHOTS, finishing.pk) == Later(0.0)
        assert requested_kinds() == list(background.AFTER_VERIFYING)
        assert do(Kind.VERIFY_SNAPSHOTS, finishing.pk) is None
        assert requested()[-1] == (Kind.MAKE_RELEASE, finishing.pk.hex)
        assert making.make_release(finishing.pk) == Release.State.READY

    def test_page_counts_replayed_steps_across_all_snapshots(self, finishing: Run, children: Children) -> None:
        said: list[str] = []
        children.in_between = lambda: said.append(Run.objects.get(pk=finishing.pk).waiting_for)
        while verify_next(finishing.pk) == Outcome.MORE:
            children.in_between()
        counts = [reasons.CHECKED.format(done=done, whole=6) for done in (0, 2, 2, 4, 4)]
        assert said == [*counts, ""]

    def test_page_says_why_a_replay_failed(self, finishing: Run, children: Children) -> None:
        children.errors = [Problem.of("E341", step=1)]
        verify_next(finishing.pk)
        assert "E341" in Run.objects.get(pk=finishing.pk).waiting_for

    def test_a_run_that_goes_on_is_not_said_to_wait(self, long_run: Run, children: Children) -> None:
        said: list[str] = []
        children.in_between = lambda: said.append(Run.objects.get(pk=long_run.pk).waiting_for)
        verify_next(long_run.pk)
        assert said == [""]

    def test_says_that_all_was_replayed(self, finishing: Run) -> None:
        for _ in range(3):
            verify_next(finishing.pk)
        assert "whole log" in release_facts(finishing, finishing.snapshots.get(index=6)).checked


class TestARunThatWasTakenBack:
    """A run that is a draft again, without snapshots, while one of its jobs is still waiting."""

    @pytest.fixture
    def taken_back(self, run: Run) -> Run:
        take_back(run=run)
        return Run.objects.select_related("head").get(pk=run.pk)

    def test_has_nothing_to_verify(self, taken_back: Run) -> None:
        assert verify_next(taken_back.pk) == Outcome.DONE
        assert do(Kind.VERIFY_SNAPSHOTS, taken_back.pk) is None

    @pytest.mark.parametrize("kind", [Kind.PREPARE_RUN, Kind.PUBLISH_CHECKPOINT, *AT_A_SNAPSHOT])
    def test_has_no_work_left_once_it_is_deleted(self, taken_back: Run, kind: Kind) -> None:
        key = taken_back.pk
        delete_draft(run=taken_back)
        assert do(kind, key) is None

    def test_is_not_asked_for_a_state(self, taken_back: Run) -> None:
        """The host that asks has not yet noticed that the run is a draft again."""
        request_replay(taken_back, index=0, step=0)
        assert verify_next(taken_back.pk) == Outcome.DONE


class TestAudit:
    def test_a_stored_file_that_is_not_what_its_name_says(self, long_run: Run) -> None:
        books = "snapshot's file"
        assert not [fault for fault in audit(long_run)["faults"] if books in fault]
        path = storage.snapshot_path(long_run, long_run.snapshots.get(index=2).file)
        path.write_bytes(b"something else")
        assert "step 2: the snapshot's file has another sha256 than its name" in audit(long_run)["faults"]
        path.unlink()
        assert any(
            fault.startswith("step 2: the snapshot's file cannot be read") for fault in audit(long_run)["faults"]
        )
        long_run.snapshots.filter(index=2).update(is_stored=False)
        assert not [fault for fault in audit(long_run)["faults"] if books in fault]
