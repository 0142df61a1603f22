"""One door to each object: who may see a run, who may manage it. Absence and lack of permission look alike."""

from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from runs.models import Run

Viewer = Person | AnonymousUser | None


def person_of(viewer: Viewer) -> Person | None:
    """The person, where somebody is logged in."""
    return viewer if isinstance(viewer, Person) and viewer.is_active else None


def listed_runs(viewer: Viewer) -> QuerySet[Run]:
    """Runs that belong on a list: the public ones, and one's own."""
    person = person_of(viewer)
    mine = Q(organizer=person) if person else Q(pk=None)
    return Run.objects.filter(Q(visibility=Run.Visibility.PUBLIC) | mine)


def access_run(*, slug: str, viewer: Viewer) -> Run:
    """A run that may be seen by whoever has its address. Raises Problem E305."""
    run = Run.objects.select_related("dataset", "organizer", "head").filter(slug=slug).first()
    if run is None or not may_see(run, viewer):
        raise Problem.of("E305", address=slug)
    return run


def access_managed_run(*, slug: str, viewer: Viewer) -> Run:
    """A run to open, pause and change: its organizer's. Raises Problem E305, PermissionDenied."""
    run = access_run(slug=slug, viewer=viewer)
    if not may_manage(run, viewer):
        raise PermissionDenied
    return run


def access_joinable_run(*, slug: str, viewer: Viewer) -> Run:
    """A run that takes part in rounds now. Raises Problem E305, E306 (finished), E308 (not open yet)."""
    run = access_run(slug=slug, viewer=viewer)
    if run.state == Run.State.FINISHED:
        raise Problem.of("E306")
    if run.state in (Run.State.DRAFT, Run.State.PREPARING):
        raise Problem.of("E308")
    return run


def may_see(run: Run, viewer: Viewer) -> bool:
    """A private run is its organizer's alone; the others are open to all who know the address."""
    return run.visibility != Run.Visibility.PRIVATE or may_manage(run, viewer)


def may_manage(run: Run, viewer: Viewer) -> bool:
    """Whether this is the organizer."""
    person = person_of(viewer)
    return person is not None and run.organizer_id == person.pk
