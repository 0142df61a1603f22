"""Find out whose contributions were false, after a run's loss rose, or if people dispute a machine's work.

A child process computes some contributions of the last steps again. The coordinator kept the sketches that reducers
made of them, and the replica that replays the log has the parameters. So the verdict is the site's own arithmetic.
"""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from msgspec import Struct

from accounts.models import Machine
from jobs import queue
from jobs.queue import Kind
from peer_agent.protocol.coordinator.events import Finding, Findings, Sketched, Verdict
from peer_agent.protocol.coordinator.round.audits import Work, work_of
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.identifiers import PeerId
from runs import storage
from runs.models import LogEntry, Recheck, Run, Snapshot
from runs.processes import ChildStopped, faults_to
from runs.snapshots import replay
from runs.timeline import add_line

MOST_WAITING = 8  # disputes of a run that wait; further ones are ignored
GIVEN_UP = timedelta(days=1)  # after which a dispute's request that fails is given up
CLEARED = "The site computed {checked:,} contributions to steps {first:,} to {last:,} again, and found none false."
UNSURE = (
    "The site computed {checked:,} contributions to steps {first:,} to {last:,} again, and found {false:,} false. "
    "That is too few to blame anyone: bad memory can spoil some."
)
DISPUTED = (
    "The site computed {checked:,} contributions to steps {first:,} to {last:,} again, because people disagreed about "
    "some of them. It found {false:,} false."
)
BLAMED = (
    "The site computed {checked:,} contributions to steps {first:,} to {last:,} again. Those of {names} were not the "
    "gradients of their samples."
)


class Blamed(Struct, frozen=True):
    """A machine with false contributions, by the site's own arithmetic. `index`: the first false one's log entry."""

    machine: str
    index: int


class Outcome(Struct, frozen=True):
    """The result of a recheck: the first and last step, and the machines to blame.

    `checked` contributions were computed, and `left` could not be. `false`: how many were false. `found`: all verdicts.
    """

    first: int
    last: int
    checked: int
    left: int
    blamed: tuple[Blamed, ...] = ()
    false: int = 0
    found: tuple[Finding, ...] = ()


@transaction.atomic
def request_recheck(run: Run, sketched: Sequence[Sketched], *, about: str = "") -> None:
    """Request that contributions be computed again. `about`: the disputed machine, or "" after the loss rose.

    Do nothing if there are none, if the data are on the Hub, or if many disputes wait.
    """
    if not sketched or run.dataset.streamed:
        return
    if about and _waiting(run.pk).exclude(about="").count() >= MOST_WAITING:
        return
    Recheck.objects.create(run=run, about=about, evidence=msgspec.json.encode(sketched))
    queue.put(Kind.RECHECK, run.pk)


def _waiting(run_id: UUID) -> QuerySet[Recheck]:
    return Recheck.objects.filter(run=run_id, outcome__isnull=True).order_by("about", "pk")  # disputes last


def recheck_run(run_id: UUID) -> Fault | None:
    """Carry out all requests, and report the outcomes on the timeline. Return any error, after which to try again."""
    failed = None
    for asked in _waiting(run_id).select_related("run__dataset"):
        faults: list[Fault] = []
        with faults_to(faults.append, "E312"), storage.workspace() as work:
            _recheck(asked, work)
        if faults and asked.about and asked.asked_at < timezone.now() - GIVEN_UP:
            asked.delete()
        elif faults:
            failed = faults[0]
            Recheck.objects.filter(pk=asked.pk).update(fault=str(failed))
    return failed


def recheck_of(run: Run) -> Recheck | None:
    """Return the request that was made when the run's loss last rose, if there is one."""
    return Recheck.objects.filter(run=run, about="").order_by("-pk").first()


def outcome_of(run: Run) -> Outcome | None:
    """Return what was found after the run's loss rose, or None if there was no recheck, or if it is still under way."""
    asked = recheck_of(run)
    return msgspec.convert(asked.outcome, Outcome) if asked is not None and asked.outcome is not None else None


def findings_of(run: Run) -> frozenset[Findings]:
    """Return all findings that the coordinator has not heeded yet. Empty while a manager has yet to decide."""
    if run.is_halted:
        return frozenset()
    rows = Recheck.objects.filter(run=run, outcome__isnull=False, is_heeded=False).values_list("pk", "outcome")
    return frozenset(Findings(number, msgspec.convert(outcome, Outcome).found) for number, outcome in rows)


def heed_findings(run: Run, number: int) -> None:
    """Note that the coordinator has acted on findings. Managers still see those from when the loss rose."""
    rows = Recheck.objects.filter(run=run, pk=number)
    rows.exclude(about="").delete()
    rows.update(is_heeded=True)


def _recheck(asked: Recheck, work: Path) -> None:
    run, sketched = asked.run, msgspec.json.decode(bytes(asked.evidence), type=list[Sketched])
    if run.log.filter(index__in=[each.index for each in sketched], is_undone=True).exists():
        asked.delete()  # a rollback has undone these steps, and relays may have deleted their averages
        return
    start = _start_of(run, min(each.index for each in sketched))
    shards = list(run.dataset.shards.order_by("position").values_list("digest", flat=True))
    wanted = {"run": run.run_id, "sketched": sketched, "shards": shards}
    try:
        found = replay.recheck(run, start, [each.index for each in sketched], msgspec.json.encode(wanted), work)
    except ChildStopped:
        return  # the site is shutting down, and its next start does this again
    outcome = judged(found["found"], found["left"])
    names = _names([each.machine for each in outcome.blamed]) if not asked.about else []
    text = DISPUTED if asked.about else BLAMED if names else UNSURE if outcome.false else CLEARED
    facts = {"checked": outcome.checked, "first": outcome.first, "last": outcome.last, "false": outcome.false}
    with transaction.atomic():
        made = {"outcome": msgspec.to_builtins(outcome), "evidence": b"", "fault": ""}
        if _waiting(run.pk).filter(pk=asked.pk).update(**made) and outcome.checked:
            line = text.format(names=" and ".join(names), **facts)
            add_line(run=run, kind="rechecked", text=line, names=names)


def judged(found: Sequence[dict[str, Any]], left: int) -> Outcome:
    """Return the outcome that follows from single verdicts, in log order. Those on the `left` ones are unclear."""
    steps = [each["step"] for each in found] or [0]
    findings = tuple(Finding(PeerId(each["machine"]), each["index"], Verdict(each["verdict"])) for each in found)
    blamed = list[Blamed]()
    for machine in sorted({each.peer for each in findings}):
        own = [each for each in findings if each.peer == machine]
        if work_of([each.verdict for each in own]) is Work.FALSE:
            blamed.append(Blamed(machine, min(each.index for each in own if each.verdict is Verdict.FAILED)))
    false = sum(each.verdict is Verdict.FAILED for each in findings)
    return Outcome(min(steps), max(steps), len(found) - left, left, tuple(blamed), false, findings)


def _start_of(run: Run, first: int) -> Snapshot:
    """Return the latest verified snapshot before an entry, if possible two entries before.

    Contributions to the entry may contain work on the parameters of two entries before. No replay goes past a rollback.
    """
    rolled_back = run.log.filter(kind=LogEntry.Kind.ROLLBACK, index__lt=first).order_by("-index")
    since: int = rolled_back.values_list("index", flat=True).first() or 0
    trusted = run.snapshots.filter(state=Snapshot.State.VERIFIED, is_stored=True, index__gte=since, index__lt=first)
    found = trusted.filter(index__lt=first - 1).order_by("-index").first() or trusted.first()
    if found is None:
        raise Problem.of("E342", step=first, reason="no verified snapshot before it is stored")
    return found


def _names(machines: Sequence[str]) -> list[str]:
    found = Machine.objects.filter(pk__in=[UUID(each) for each in machines]).select_related("person")
    return sorted({machine.person.username for machine in found})
