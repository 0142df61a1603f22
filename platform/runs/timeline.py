"""A run's timeline: each event as one line of text."""

from collections.abc import Sequence
from datetime import datetime

from django.db.models import F, QuerySet

from accounts.models import Person
from runs.models import ActivityLine, Head, Run

STEP = "step"  # a committed step
VOID = "void"  # a void round
MEMBER = "member"  # a member was admitted or removed
ROLLING_BACK, ROLLED_BACK = "rolling back", "rolled back"  # a rollback was requested, or was carried out
GROUPS = {
    "steps": (STEP,),
    "people": ("joined", "left", MEMBER, "evicted"),
    "problems": (
        *(VOID, "silent", "dropped", "late", "refused", "replan", "non-finite", "returned", "reload", "replay"),
        *("failed", "unpublished", "lost words", "recovered", "lost steps", "bridged", "halted", "rechecked"),
    ),
    "organizer": (
        *("created", "edited", "mixed", "prepared", "opened", "paused", "resumed", "extended", "ending", "taken back"),
        *(ROLLING_BACK, ROLLED_BACK),
        *("announced", "publishing", "handed over", "trial", "finished", "replayed", "release", "published"),
    ),
}  # kinds of lines, in groups for people to choose from
ROLE = "role"  # a change of role in the run
AN_OPERATOR = "An operator of this site"  # an operator's name on timelines
STEPS_KEPT = 64  # lines about steps that a timeline keeps; the log has every step, and a page shows only a few


def quoted(text: str) -> str:
    """Put someone's words in quotation marks. Unicode isolates keep right-to-left words from reordering the line."""
    return f"“\u2068{text}\u2069”"


def activity_of(run: Run, group: str = "") -> QuerySet[ActivityLine]:
    """Return the lines that every viewer of the run may read: all of them, or those in one group.

    Lines about members are shown only in invitation-only runs. If such a run's visibility changes later, these lines
    must not become public.
    """
    lines = run.activity.filter(is_internal=False)
    lines = lines.filter(kind__in=GROUPS[group]) if group else lines
    return lines if run.visibility == Run.Visibility.PRIVATE else lines.exclude(kind=MEMBER)


def trail_of(run: Run) -> QuerySet[ActivityLine]:
    """Return what the organizer, managers and operators did, latest first. Only managers may see this."""
    return run.activity.filter(by__isnull=False).select_related("by").order_by("-pk")


def resumed_at(run: Run) -> datetime | None:
    """Return when the run was last resumed after a pause, or None if it never was."""
    return run.activity.filter(kind="resumed").order_by("-at", "-id").values_list("at", flat=True).first()


def add_action(
    *,
    run: Run,
    kind: str,
    action: str = "",
    text: str = "",
    by: Person | None = None,
    role: Run.Role | None = None,
    on: Person | None = None,
    is_internal: bool = False,
) -> None:
    """Record something that a person did to a run, as in “Amina paused the run.” Such lines are never changed.

    `text` replaces the name and the action. `by` defaults to the organizer, and `role` to that person's current role. A
    line with `is_internal` set is shown only to managers.
    """
    who = by or run.organizer
    acted_as = role or run.role_of(who) or ""
    is_unnamed = acted_as == Run.Role.OPERATOR
    told = (text or f"{AN_OPERATOR if is_unnamed else who.username} {action}")[:300]
    named = [*([] if text or is_unnamed else [who.username]), *([on.username] if on else [])]
    ActivityLine.objects.create(
        run=run,
        kind=kind,
        text=told,
        names=" ".join(named),
        by=who,
        by_role=acted_as,
        on=on,
        is_internal=is_internal,
    )


def add_line(*, run: Run, kind: str, text: str, names: Sequence[str] = ()) -> None:
    """Add a line about an event to a run's timeline. `names` lists the people named in the text."""
    ActivityLine.objects.create(run=run, kind=kind[:20], text=text[:300], names=" ".join(names))
    if kind == STEP:
        _forget_old_steps(run)
    elif kind == VOID:
        Head.objects.filter(run=run).update(void_rounds=F("void_rounds") + 1)


def _forget_old_steps(run: Run) -> None:
    steps = run.activity.filter(kind=STEP)
    oldest = steps.order_by("-pk").values_list("pk", flat=True)[STEPS_KEPT : STEPS_KEPT + 1].first()
    if oldest is not None:
        steps.filter(pk__lte=oldest).delete()


def add_line_once(*, run: Run, kind: str, text: str) -> None:
    """Add a line unless the run's timeline already has an identical one. Use this for events that may recur often."""
    if not run.activity.filter(kind=kind, text=text[:300]).exists():
        add_line(run=run, kind=kind, text=text)
