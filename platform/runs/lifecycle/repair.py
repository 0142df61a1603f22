"""Repair a run that was paused because its loss rose: one action for what its managers would do one by one."""

from typing import NamedTuple
from uuid import UUID

from django.db import transaction

from accounts.models import Machine, Person
from runs.ledger.totals import reverse
from runs.lifecycle.membership import remove_person
from runs.lifecycle.services import ask_rollback, can_roll_back, resume_run, rollback_targets
from runs.models import Head, LedgerEntry, Member, Run, Snapshot
from runs.snapshots.recheck import outcome_of

WHY = "the site found other gradients"


class Repair(NamedTuple):
    """The parts of a repair: `machines` whose contributions were false, and the snapshot from before the first one.

    `people` are their owners who can be removed. `target` is None if no earlier snapshot is stored.
    """

    machines: list[Machine]
    people: list[Person]
    target: Snapshot | None


def repair_of(run: Run) -> Repair | None:
    """Return what can be repaired in a run that its rising loss has paused, or None if nothing was found false."""
    outcome = outcome_of(run) if run.is_halted else None
    if outcome is None or not outcome.blamed:
        return None
    first = min(each.index for each in outcome.blamed)
    found = Machine.objects.filter(pk__in=[UUID(each.machine) for each in outcome.blamed]).select_related("person")
    machines = sorted(found, key=lambda machine: (machine.person.username, machine.name))
    owners = {machine.person_id: machine.person for machine in machines}
    people = [owner for owner in owners.values() if owner.is_active and run.role_of(owner) is None]
    target = next((row for row in rollback_targets(run) if row.index < first), None) if can_roll_back(run) else None
    return Repair(machines, people, target)


@transaction.atomic
def repair_run(*, run: Run, by: Person | None = None) -> None:
    """Remove the people whose contributions were false, take back their credit since then, roll back, and resume.

    Repeating this changes nothing. Raises Problem E412 if the run cannot be rolled back now.
    """
    Head.objects.select_for_update().get(run=run)  # before the run's row, as hosts lock them
    run.refresh_from_db()
    repair, outcome = repair_of(run), outcome_of(run)
    if repair is None or outcome is None:
        return
    for person in repair.people:
        if not Member.objects.filter(run=run, person=person).exclude(removed_at=None).exists():
            remove_person(run=run, name=person.username, by=by)
    for each in outcome.blamed:
        rows = LedgerEntry.objects.filter(machine=UUID(each.machine), entry__index__gte=each.index)
        reverse(run, rows, WHY)
    if repair.target is not None:
        ask_rollback(run=run, index=repair.target.index, by=by)
    resume_run(run=run, by=by)
