"""How each object is reached: who may see a run, who may manage it. Absence and lack of permission look alike.

Of a run there is one organizer, who made it; co-organizers, who may do all that the organizer may but delete the run or
choose other co-organizers; and moderators, who let people in and out, and make announcements.
"""

from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db.models import Exists, OuterRef, Q, QuerySet

from accounts.models import Machine, PastOwner, Person
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import PeerId
from runs.models import Member, Run, RunRole
from runs.states import NOT_OPEN

Viewer = Person | AnonymousUser | None
BESIDE = ("dataset", "organizer", "head", "release", "publication", "verification")  # what pages read of a run with it
LISTED = (Run.Visibility.PUBLIC, Run.Visibility.REQUEST)
MANAGING = (Run.Role.ORGANIZER, Run.Role.CO_ORGANIZER)
RANKS: dict[Run.Role | None, int] = {Run.Role.ORGANIZER: 3, Run.Role.CO_ORGANIZER: 2, Run.Role.MODERATOR: 1}


def person_of(viewer: Viewer) -> Person | None:
    return viewer if isinstance(viewer, Person) and viewer.is_active else None


def listed_runs(viewer: Viewer) -> QuerySet[Run]:
    """Runs that belong on a list: those that everybody sees, once opened, one's own, and those one was invited to."""
    opened = Q(visibility__in=LISTED) & ~Q(state=Run.State.DRAFT)
    return Run.objects.filter(opened | _joined(person_of(viewer)))


def visible_runs(viewer: Viewer) -> QuerySet[Run]:
    """Runs that open for whoever has their address."""
    return Run.objects.filter(~Q(visibility=Run.Visibility.PRIVATE) | _joined(person_of(viewer)))


def _joined(person: Person | None) -> Q:
    """Runs in which one has a role, and those by invitation of which one is a member."""
    if person is None:
        return Q(pk__in=[])
    return _has_role(person) | (Q(visibility=Run.Visibility.PRIVATE) & _is_member(person))


def _has_role(person: Person) -> Q:
    role = RunRole.objects.filter(run=OuterRef("pk"), person=person).exclude(accepted_at=None)
    return Q(organizer=person) | Q(Exists(role))


def _is_member(person: Person) -> Q:
    return Q(Exists(Member.objects.filter(run=OuterRef("pk"), person=person, removed_at=None)))


def access_run(*, slug: str, viewer: Viewer) -> Run:
    """A run that may be seen by whoever has its address. Raises Problem E305."""
    run = visible_runs(viewer).select_related(*BESIDE).filter(slug=slug).first()
    if run is None:
        raise Problem.of("E305", address=f"/runs/{slug}/")
    return run


def access_peer_run(which: Q, *, person: Person | None, address: str) -> Run:
    """The run of a credential, while its person may help; a relay of the site (None) serves all.

    Raises Problem E305, E324 (removed), E410 (members only).

    A credential is good for an hour; who was removed meanwhile has lost the run all the same.
    """
    runs = Run.objects.all() if person is None else visible_runs(person)
    run = runs.select_related("dataset", "organizer", "head").filter(which).first()
    if run is None:
        raise Problem.of("E305", address=address)
    if person is not None:
        _require_part(run, person)
    return run


def helped_runs(person: Person) -> QuerySet[Run]:
    """Runs in which somebody's machines may take part: what they see, but for those they were removed from, and those
    by request of which they are no member.
    """
    others = Q(visibility=Run.Visibility.REQUEST) & ~_has_role(person) & ~_is_member(person)
    return visible_runs(person).exclude(Exists(_removals(person))).exclude(others)


def _removals(person: Person) -> QuerySet[Member]:
    """Of the run of an outer query."""
    return Member.objects.filter(run=OuterRef("pk"), person=person, removed_at__isnull=False)


def participants(run: Run) -> QuerySet[Person]:
    """Who is in a run: its organizer, its members and, where it is open to all, whoever gave something to it.

    Not those who were removed.
    """
    members = Member.objects.filter(run=run, removed_at=None).values("person")
    removed = Member.objects.filter(run=run, removed_at__isnull=False).values("person")
    taking_part = Q(pk=run.organizer_id) | Q(pk__in=members)
    if not run.members_only:
        taking_part |= Q(pk__in=run.totals.order_by().values("person"))
    return Person.objects.filter(taking_part, is_active=True).exclude(pk__in=removed)


def takes_part(run: Run, person: Person) -> bool:
    return helped_runs(person).filter(pk=run.pk).exists()


def is_removed(run: Run, person: Person) -> bool:
    return run.members.filter(person=person, removed_at__isnull=False).exists()


def _require_part(run: Run, person: Person) -> None:
    if not takes_part(run, person):
        may_ask = run.visibility == Run.Visibility.REQUEST and not is_removed(run, person)
        raise Problem.of("E410" if may_ask else "E324")


def require_unremoved(run: Run, machine: Machine) -> None:
    """Whoever was removed does not come back by approving the same machine under another name. Raises Problem E229."""
    if machine.person_id != run.organizer_id and _of_removed(run).filter(pk=machine.pk).exists():
        raise Problem.of("E229")


def _of_removed(run: Run) -> QuerySet[Machine]:
    """Machines that worked for somebody who was removed, before they had their present person."""
    removed = Member.objects.filter(run=run, removed_at__isnull=False).values("person")
    return Machine.objects.filter(pk__in=PastOwner.objects.filter(person__in=removed).values("machine"))


def shut_out(run: Run, machines: list[PeerId]) -> QuerySet[Machine]:
    """Those of these machines whose people, now or before, were removed, or have no part in a run of members."""
    invited = Member.objects.filter(run=run, removed_at=None).values("person")
    removed = Member.objects.filter(run=run, removed_at__isnull=False).values("person")
    is_open = Run.objects.filter(pk=run.pk, visibility__in=(Run.Visibility.PUBLIC, Run.Visibility.UNLISTED))
    others = Machine.objects.filter(pk__in=machines).exclude(person=run.organizer_id)
    gone = Q(person__in=removed) | Q(pk__in=_of_removed(run).values("pk"))
    return others.filter(gone | (~Q(person__in=invited) & ~Q(Exists(is_open))))


def access_managed_run(*, slug: str, viewer: Viewer) -> Run:
    """A run to open, pause and change: for its organizer and co-organizers. Raises Problem E305, PermissionDenied."""
    return _access_as(*MANAGING, slug=slug, viewer=viewer)


def access_moderated_run(*, slug: str, viewer: Viewer) -> Run:
    """A run to let people in and out of: for all who have a role in it. Raises Problem E305, PermissionDenied."""
    return _access_as(*MANAGING, Run.Role.MODERATOR, slug=slug, viewer=viewer)


def access_own_run(*, slug: str, viewer: Viewer) -> Run:
    """A run to delete: its organizer's. Raises Problem E305, PermissionDenied."""
    return _access_as(Run.Role.ORGANIZER, slug=slug, viewer=viewer)


def _access_as(*roles: Run.Role, slug: str, viewer: Viewer) -> Run:
    run = access_run(slug=slug, viewer=viewer)
    if role_of(run, viewer) not in roles:
        raise PermissionDenied
    return run


def access_joinable_run(*, slug: str, viewer: Viewer) -> Run:
    """A run that takes part in rounds now.

    Raises Problem E305, E306 (finished), E308 (not open), E324 (removed), E410 (members only).
    """
    run = access_run(slug=slug, viewer=viewer)
    person = person_of(viewer)
    if person is not None:
        _require_part(run, person)
    if run.state == Run.State.FINISHED:
        raise Problem.of("E306")
    require_open(run)
    return run


def require_open(run: Run) -> None:
    """Volunteers come once a run was opened. Raises Problem E308."""
    if run.state in NOT_OPEN:
        raise Problem.of("E308")


def may_see(run: Run, viewer: Viewer) -> bool:
    """A run by invitation is for members and those with a role; others are seen by all who know the address."""
    return visible_runs(viewer).filter(pk=run.pk).exists()


def may_manage(run: Run, viewer: Viewer) -> bool:
    return role_of(run, viewer) in MANAGING


def role_of(run: Run, viewer: Viewer) -> Run.Role | None:
    """The viewer's role in the run; None for everybody else, operators too."""
    person = person_of(viewer)
    return run.role_of(person) if person is not None else None


def outranks(role: Run.Role | None, other: Run.Role | None) -> bool:
    """Whether who has this role may remove somebody with the other one, or give it and take it away."""
    return RANKS.get(role, 0) > RANKS.get(other, 0)
