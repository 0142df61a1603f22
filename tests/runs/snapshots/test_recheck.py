"""After a run's loss rose, the site finds out whose contributions were false, and one action undoes them."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from accounts.models import Person
from jobs.queue import Kind
from jobs.runner import Later
from peer_agent.protocol import reasons
from peer_agent.protocol.coordinator.events import Finding, Gradient, Sketched, Verdict
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import ChunkRange
from runs import storage
from runs.access import is_removed
from runs.lifecycle.repair import repair_of, repair_run
from runs.lifecycle.services import halt_run, resume_run
from runs.models import ActivityLine, LedgerEntry, Member, Recheck, Run, RunRole, Snapshot
from runs.snapshots import replay
from runs.snapshots.recheck import MOST_WAITING, findings_of, heed_findings, judged, outcome_of, request_recheck
from tests.jobs.requests import do, requested
from tests.runs.factories import Owned, committed, owned, state_file

REASON = reasons.LOSS_ROSE.format(before="1", now="2.5", step="8")
HONEST, FALSE = "passed", "failed"


class Child:
    """A child process that answers at once with these verdicts: (log entry, machine, verdict)."""

    def __init__(self) -> None:
        self.found, self.asked, self.records = list[tuple[int, Owned, str]](), dict[str, Any](), list[tuple[str, int]]()
        self.error: Problem | None = None

    def __call__(self, arguments: list[str], **_: Any) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        name, records, asked = arguments[0], arguments[3], arguments[4]
        assert name == "recheck"
        self.asked = msgspec.json.decode(Path(asked).read_bytes())
        self.records = [(path.stem, len(path.read_bytes().splitlines())) for path in sorted(Path(records).iterdir())]
        found = [
            {"index": index, "step": index, "machine": each.machine.peer_id, "verdict": verdict}
            for index, each, verdict in self.found
        ]
        return {"found": found, "left": 0}


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    made = Child()
    monkeypatch.setattr(replay, "run_child", made)
    return made


@pytest.fixture
def desktop(stranger: Person) -> Owned:
    return owned(stranger, "desktop")


@pytest.fixture
def halted(run: Run, laptop: Owned, desktop: Owned) -> Run:
    """A run of eight steps by two people, with a snapshot at step 4, whose loss rose in the end."""
    for step in range(1, 9):
        committed(run, (laptop.machine, 4), (desktop.machine, 6))
        if step == 4:
            snapshot(run, step)
    both = {each.machine.peer_id: Gradient(b"s" * 1024, 2.0, 8) for each in (laptop, desktop)}
    halt_run(run=run, reason=REASON)
    request_recheck(run, [Sketched(n, 7, (ChunkRange(0, 3),), both) for n in (6, 7, 8)])
    run.refresh_from_db()
    return run


def snapshot(run: Run, step: int) -> Snapshot:
    digest = run.log.get(index=step).digest
    path = state_file(run_path(run) / "draft", step=step, index=step, log_digest=digest)
    file = "f" * 64
    path.rename(run_path(run) / f"{file}.safetensors")
    facts = {"state_digest": "0" * 16, "file": file, "size": 1, "state": Snapshot.State.VERIFIED, "digest": digest}
    return Snapshot.objects.create(run=run, index=step, step=step, **facts)


def run_path(run: Run) -> Path:
    return storage.snapshot_path(run, "a").parent


def blame(child: Child, desktop: Owned, laptop: Owned) -> None:
    child.found = [(n, each, HONEST if each is laptop else FALSE) for n in (6, 7, 8) for each in (laptop, desktop)]


# --- verdicts


@pytest.mark.parametrize(
    ("verdicts", "first", "false"),
    [
        (["passed", "failed", "failed"], 2, 2),
        (["passed", "failed", "passed"], None, 1),
        (["unclear"] * 3, None, 0),
    ],
)
def test_outcome_names_the_first_false_contribution(verdicts: list[str], first: int | None, false: int) -> None:
    found = [{"index": n, "step": n, "machine": "ab", "verdict": verdict} for n, verdict in enumerate(verdicts, 1)]
    outcome = judged(found, verdicts.count("unclear"))
    assert [each.index for each in outcome.blamed] == ([first] if first is not None else [])
    assert (outcome.false, outcome.checked) == (false, 3 - verdicts.count("unclear"))


def test_machine_with_bad_memory_is_told_to_the_coordinator_and_not_named(
    halted: Run, child: Child, laptop: Owned, desktop: Owned
) -> None:
    child.found = [(n, laptop, HONEST) for n in (6, 7, 8)]
    child.found += [(6, desktop, FALSE), (7, desktop, HONEST), (8, desktop, HONEST)]
    do(Kind.RECHECK, halted.pk)
    (line,) = ActivityLine.objects.filter(kind="rechecked")
    assert line.text.startswith("The site computed 6 contributions to steps 6 to 8 again, and found 1 false.")
    assert line.names == ""
    assert repair_of(halted) is None
    resume_run(run=halted)
    (findings,) = findings_of(halted)
    assert len(findings.found) == 6
    assert Finding(desktop.machine.peer_id, 6, Verdict.FAILED) in findings.found


def test_request_is_for_the_contributions_of_the_last_steps(halted: Run, child: Child) -> None:
    assert (Kind.RECHECK, halted.pk.hex) in requested()
    assert outcome_of(halted) is None
    assert do(Kind.RECHECK, halted.pk) is None
    assert child.asked["run"] == halted.run_id
    assert [each[0] for each in child.asked["sketched"]] == [6, 7, 8]
    assert [index for index, _ in child.records] == [f"{n:012d}" for n in (5, 6, 7, 8)], "from the snapshot of step 4"


def test_run_whose_machines_read_the_hub_is_not_rechecked(run: Run, laptop: Owned) -> None:
    run.dataset.origin = {"kind": "dataset", "streamed": 10**12}
    run.dataset.save()
    committed(run, (laptop.machine, 4))
    request_recheck(run, [Sketched(1, 7, (), {})])
    assert not Recheck.objects.exists()


def test_outcome_is_told_on_the_timeline_once(halted: Run, child: Child, laptop: Owned, desktop: Owned) -> None:
    blame(child, desktop, laptop)
    for _ in range(2):
        assert do(Kind.RECHECK, halted.pk) is None
    (line,) = ActivityLine.objects.filter(kind="rechecked")
    assert line.text.startswith("The site computed 6 contributions to steps 6 to 8 again. Those of Noor were not")
    assert line.names == "Noor"
    assert bytes(Recheck.objects.get().evidence) == b""


def test_steps_that_a_rollback_undid_are_not_rechecked(halted: Run, child: Child) -> None:
    halted.log.filter(index=8).update(is_undone=True)
    assert do(Kind.RECHECK, halted.pk) is None
    assert not child.asked
    assert not Recheck.objects.exists()


def test_replay_does_not_go_past_a_rollback(halted: Run, child: Child) -> None:
    """The rollback stored its state as the snapshot of its own entry, 5."""
    halted.log.filter(index=5).update(kind="rollback")
    snapshot(halted, 5)
    do(Kind.RECHECK, halted.pk)
    assert [index for index, _ in child.records] == [f"{n:012d}" for n in (6, 7, 8)]


def test_failure_is_tried_again(halted: Run, child: Child) -> None:
    child.error = Problem.of("E341", step=6)
    outcome = do(Kind.RECHECK, halted.pk)
    assert isinstance(outcome, Later)
    assert Recheck.objects.get().fault.startswith("E341")
    child.error = None
    assert do(Kind.RECHECK, halted.pk) is None
    assert Recheck.objects.get().fault == ""


# --- repair


def test_repair_removes_rolls_back_strikes_and_resumes(
    halted: Run, child: Child, laptop: Owned, desktop: Owned
) -> None:
    blame(child, desktop, laptop)
    do(Kind.RECHECK, halted.pk)
    repair = repair_of(halted)
    assert repair is not None
    assert (repair.people, [machine.pk for machine in repair.machines]) == (
        [desktop.machine.person],
        [desktop.machine.pk],
    )
    assert repair.target is not None
    assert repair.target.index == 4
    for _ in range(2):
        repair_run(run=halted)
    halted.refresh_from_db()
    assert (halted.state, halted.rollback_index) == ("open", 4)
    assert is_removed(halted, desktop.machine.person)
    assert not is_removed(halted, laptop.machine.person)
    struck = LedgerEntry.objects.exclude(reverses=None).order_by("pk")
    assert [(row.machine_id, row.entry.index, row.samples) for row in struck] == [
        (desktop.machine.pk, index, -6) for index in (6, 7, 8)
    ]
    assert halted.totals.get(machine=desktop.machine).samples == 5 * 6


def test_nothing_false_leaves_nothing_to_repair(halted: Run, child: Child, laptop: Owned, desktop: Owned) -> None:
    child.found = [(n, each, HONEST) for n in (6, 7, 8) for each in (laptop, desktop)]
    do(Kind.RECHECK, halted.pk)
    assert repair_of(halted) is None
    repair_run(run=halted)
    halted.refresh_from_db()
    assert halted.state == "paused"
    assert not Member.objects.exists()


def test_organizers_broken_machine_does_not_remove_them(halted: Run, child: Child, desktop: Owned) -> None:
    RunRole.objects.create(
        run=halted,
        person=desktop.machine.person,
        role=Run.Role.CO_ORGANIZER,
        invited_by=halted.organizer,
        accepted_at=halted.created_at,
    )
    child.found = [(n, desktop, FALSE) for n in (6, 7)]
    do(Kind.RECHECK, halted.pk)
    repair = repair_of(halted)
    assert repair is not None
    assert repair.people == []
    repair_run(run=halted)
    assert not is_removed(halted, desktop.machine.person)
    assert LedgerEntry.objects.exclude(reverses=None).count() == 3


def test_outcome_of_an_earlier_pause_is_not_repaired(halted: Run, child: Child, laptop: Owned, desktop: Owned) -> None:
    blame(child, desktop, laptop)
    do(Kind.RECHECK, halted.pk)
    halted.waiting_for = ""
    assert repair_of(halted) is None


def test_coordinator_learns_of_false_work_once_no_manager_has_to_decide(
    halted: Run, child: Child, laptop: Owned, desktop: Owned
) -> None:
    blame(child, desktop, laptop)
    do(Kind.RECHECK, halted.pk)
    assert findings_of(halted) == frozenset(), "a manager decides"
    resume_run(run=halted)
    (findings,) = findings_of(halted)
    verdicts = {(each.peer, each.index): each.verdict for each in findings.found}
    assert verdicts[desktop.machine.peer_id, 6] is Verdict.FAILED
    assert verdicts[laptop.machine.peer_id, 8] is Verdict.PASSED
    heed_findings(halted, findings.number)
    assert findings_of(halted) == frozenset(), "a later host does not act on them again"
    assert outcome_of(halted) is not None


def test_each_request_has_an_outcome_of_its_own(halted: Run, child: Child, laptop: Owned) -> None:
    peer = laptop.machine.peer_id
    request_recheck(halted, [Sketched(5, 7, (), {peer: Gradient(b"x" * 1024, 2.0, 8)})], about=peer)
    asked = list[list[int]]()

    def look(arguments: list[str], **facts: Any) -> dict[str, Any]:
        answer = child(arguments, **facts)
        asked.append([each[0] for each in child.asked["sketched"]])
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "run_child", look)
        child.found = [(5, laptop, HONEST)]
        do(Kind.RECHECK, halted.pk)
    assert asked == [[6, 7, 8], [5]]
    resume_run(run=halted)
    numbers = sorted(each.number for each in findings_of(halted))
    for number in numbers:
        heed_findings(halted, number)
    assert [row.about for row in Recheck.objects.all()] == [""], "a dispute's row is deleted once it was heeded"


def test_so_many_requests_wait(halted: Run, laptop: Owned) -> None:
    Recheck.objects.all().delete()
    for _ in range(MOST_WAITING + 3):
        request_recheck(halted, [Sketched(5, 7, (), {})], about=laptop.machine.peer_id)
    assert Recheck.objects.count() == MOST_WAITING
    request_recheck(halted, [Sketched(5, 7, (), {})])
    assert Recheck.objects.count() == MOST_WAITING + 1, "disputes do not keep the site from finding out why a loss rose"


def test_outcome_of_a_dispute_names_no_machine(halted: Run, child: Child, laptop: Owned) -> None:
    Recheck.objects.all().delete()
    request_recheck(halted, [Sketched(6, 7, (), {})], about=laptop.machine.peer_id)
    child.found = [(n, laptop, FALSE) for n in (6, 7)]
    do(Kind.RECHECK, halted.pk)
    (line,) = ActivityLine.objects.filter(kind="rechecked")
    assert line.text.endswith("because people disagreed about some of them. It found 2 false.")
    assert line.names == ""


def test_dispute_that_cannot_be_computed_is_given_up_after_a_day(halted: Run, child: Child, laptop: Owned) -> None:
    request_recheck(halted, [Sketched(6, 7, (), {})], about=laptop.machine.peer_id)
    child.error = Problem.of("E341", step=6)
    assert isinstance(do(Kind.RECHECK, halted.pk), Later)
    assert Recheck.objects.count() == 2
    Recheck.objects.update(asked_at=timezone.now() - timedelta(days=2))
    assert isinstance(do(Kind.RECHECK, halted.pk), Later)
    assert [row.about for row in Recheck.objects.all()] == [""], "managers wait for this one"


def test_closed_account_does_not_prevent_the_repair(halted: Run, child: Child, laptop: Owned, desktop: Owned) -> None:
    blame(child, desktop, laptop)
    do(Kind.RECHECK, halted.pk)
    Person.objects.filter(pk=desktop.machine.person.pk).update(is_active=False)
    repair_run(run=halted)
    halted.refresh_from_db()
    assert (halted.state, halted.rollback_index) == ("open", 4)


def test_another_pause_forgets_the_outcome_of_the_last_one(
    halted: Run, child: Child, laptop: Owned, desktop: Owned
) -> None:
    blame(child, desktop, laptop)
    do(Kind.RECHECK, halted.pk)
    resume_run(run=halted)
    halt_run(run=halted, reason=REASON)
    assert outcome_of(halted) is None
