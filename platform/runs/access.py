"""Rules for who may see and who may manage a run. To a visitor, a forbidden run looks like one that does not exist.

Co-organizers may do everything that the organizer may, except delete the run or choose other co-organizers. Moderators
may admit and remove people, and post announcements.
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
# Rows that pages read in the same query as the run
BESIDE = ("dataset", "organizer", "head", "release", "publication", "verification")
LISTED = (Run.Visibility.PUBLIC, Run.Visibility.REQUEST)
MANAGING = (Run.Role.ORGANIZER, Run.Role.CO_ORGANIZER)
RANKS: dict[Run.Role | None, int] = {Run.Role.ORGANIZER: 3, Run.Role.CO_ORGANIZER: 2, Run.Role.MODERATOR: 1}


class Preparing(Problem):
    """Problem E308 for a run that will open by itself. It tells a machine to wait and try again."""

    retry_after_s = 20  # keeps a waiting machine within the "credentials" rate limit


def person_of(viewer: Viewer) -> Person | None:
    return viewer if isinstance(viewer, Person) and viewer.is_active else None


def listed_runs(viewer: Viewer) -> QuerySet[Run]:
    """Return the runs that are listed for a viewer.

    These are public and by-request runs that have been opened, and runs in which the viewer has a role. Invitation-only
    runs are listed for their members.
    """
    opened = Q(visibility__in=LISTED) & ~Q(state=Run.State.DRAFT)
    return Run.objects.filter(opened | _joined(person_of(viewer)))


def visible_runs(viewer: Viewer) -> QuerySet[Run]:
    """Return the runs whose pages the viewer may open, including those that are not listed for them."""
    return Run.objects.filter(~Q(visibility=Run.Visibility.PRIVATE) | _joined(person_of(viewer)))


def _joined(person: Person | None) -> Q:
    """Return a filter for the runs that the person has joined.

    These are runs in which the person has a role, and invitation-only runs that they are a member of.
    """
    if person is None:
        return Q(pk__in=[])
    return _has_role(person) | (Q(visibility=Run.Visibility.PRIVATE) & _is_member(person))


def _has_role(person: Person) -> Q:
    role = RunRole.objects.filter(run=OuterRef("pk"), person=person).exclude(accepted_at=None)
    return Q(organizer=person) | Q(Exists(role))


def _is_member(person: Person) -> Q:
    return Q(Exists(Member.objects.filter(run=OuterRef("pk"), person=person, removed_at=None)))


def access_run(*, slug: str, viewer: Viewer) -> Run:
    """Return the run at this address. Raises Problem E305 if there is none or the viewer may not see it."""
    run = visible_runs(viewer).select_related(*BESIDE).filter(slug=slug).first()
    if run is None:
        raise Problem.of("E305", address=f"/runs/{slug}/")
    return run


def access_peer_run(which: Q, *, person: Person | None, address: str) -> Run:
    """Return the run that a credential is for, if the credential's person may take part at present.

    If `person` is None, the credential belongs to one of the site's relays, which serve all runs. The check is needed
    because a removed person's credential stays valid for up to an hour. Raises Problem E305 if the person may not see
    the run, E410 if they must ask to join first, and E324 if they were removed.
    """
    runs = Run.objects.all() if person is None else visible_runs(person)
    run = runs.select_related("dataset", "organizer", "head").filter(which).first()
    if run is None:
        raise Problem.of("E305", address=address)
    if person is not None:
        _require_part(run, person)
    return run


def helped_runs(person: Person) -> QuerySet[Run]:
    """Return the visible runs that the person may take part in. A by-request run counts only if they have joined it."""
    others = Q(visibility=Run.Visibility.REQUEST) & ~_has_role(person) & ~_is_member(person)
    return visible_runs(person).exclude(Exists(_removals(person))).exclude(others)


def _removals(person: Person) -> QuerySet[Member]:
    return Member.objects.filter(run=OuterRef("pk"), person=person, removed_at__isnull=False)


def participants(run: Run) -> QuerySet[Person]:
    """Return the organizer, the members and, unless the run is members-only, its contributors. Omit removed people."""
    members = Member.objects.filter(run=run, removed_at=None).values("person")
    removed = Member.objects.filter(run=run, removed_at__isnull=False).values("person")
    taking_part = Q(pk=run.organizer_id) | Q(pk__in=members)
    if not run.members_only:
        taking_part |= Q(pk__in=run.totals.order_by().values("person"))
    return Person.objects.filter(taking_part, is_active=True).exclude(pk__in=removed)


def trusted_in(run: Run) -> frozenset[str] | None:
    """Return the names of the people whose machines get looser limits (rule 12): the organizer and the members.

    By inviting people, the organizer vouches for them. In a members-only run, no strangers take part. For such a run,
    return None, which means everyone.
    """
    if run.members_only:
        return None
    members = Member.objects.filter(run=run, removed_at=None).values("person")
    vouched = Person.objects.filter(Q(pk=run.organizer_id) | Q(pk__in=members))
    return frozenset(vouched.values_list("username", flat=True))


def takes_part(run: Run, person: Person) -> bool:
    return helped_runs(person).filter(pk=run.pk).exists()


def is_removed(run: Run, person: Person) -> bool:
    return run.members.filter(person=person, removed_at__isnull=False).exists()


def _require_part(run: Run, person: Person) -> None:
    if not takes_part(run, person):
        may_ask = run.visibility == Run.Visibility.REQUEST and not is_removed(run, person)
        raise Problem.of("E410" if may_ask else "E324")


def require_unremoved(run: Run, machine: Machine) -> None:
    """Raise Problem E229 if the machine once belonged to someone else who was removed from the run."""
    if machine.person_id != run.organizer_id and _of_removed(run).filter(pk=machine.pk).exists():
        raise Problem.of("E229")


def _of_removed(run: Run) -> QuerySet[Machine]:
    """Return the machines that once belonged to someone now removed from the run."""
    removed = Member.objects.filter(run=run, removed_at__isnull=False).values("person")
    return Machine.objects.filter(pk__in=PastOwner.objects.filter(person__in=removed).values("machine"))


def shut_out(run: Run, machines: list[PeerId]) -> QuerySet[Machine]:
    """Return those of the machines that may not take part in the run.

    A past or current owner of such a machine was removed, or the run is members-only and the owner is not a member. The
    organizer's machines may always take part.
    """
    invited = Member.objects.filter(run=run, removed_at=None).values("person")
    removed = Member.objects.filter(run=run, removed_at__isnull=False).values("person")
    is_open = Run.objects.filter(pk=run.pk, visibility__in=(Run.Visibility.PUBLIC, Run.Visibility.UNLISTED))
    others = Machine.objects.filter(pk__in=machines).exclude(person=run.organizer_id)
    gone = Q(person__in=removed) | Q(pk__in=_of_removed(run).values("pk"))
    return others.filter(gone | (~Q(person__in=invited) & ~Q(Exists(is_open))))


def access_managed_run(*, slug: str, viewer: Viewer) -> Run:
    """Return a run that the viewer manages, as organizer or co-organizer.

    Raises Problem E305 if the viewer may not see the run, and PermissionDenied if they do not manage it.
    """
    return _access_as(*MANAGING, slug=slug, viewer=viewer)


def access_moderated_run(*, slug: str, viewer: Viewer) -> Run:
    """Return a run in which the viewer has any role.

    Raises Problem E305 if the viewer may not see the run, and PermissionDenied if they have no role in it.
    """
    return _access_as(*MANAGING, Run.Role.MODERATOR, slug=slug, viewer=viewer)


def access_own_run(*, slug: str, viewer: Viewer) -> Run:
    """Return a run that the viewer organizes.

    Raises Problem E305 if the viewer may not see the run, and PermissionDenied if they do not organize it.
    """
    return _access_as(Run.Role.ORGANIZER, slug=slug, viewer=viewer)


def _access_as(*roles: Run.Role, slug: str, viewer: Viewer) -> Run:
    run = access_run(slug=slug, viewer=viewer)
    if role_of(run, viewer) not in roles:
        raise PermissionDenied
    return run


def access_joinable_run(*, slug: str, viewer: Viewer) -> Run:
    """Return a run that the viewer may join.

    Raises Problem E305 if the viewer may not see the run, E306 if it is finished, and E308 if it is not open yet.
    Raises E324 if the viewer was removed from the run, and E410 if they must ask to join first.
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
    """Raise Problem E308 if the run has not been opened to volunteers, or Preparing if it will open by itself."""
    if run.state in NOT_OPEN:
        raise (Preparing if run.state == Run.State.PREPARING else Problem).of("E308")


def may_see(run: Run, viewer: Viewer) -> bool:
    """Return True if the viewer may open the run's page. Anyone with its address may, unless it is invitation-only."""
    return visible_runs(viewer).filter(pk=run.pk).exists()


def may_manage(run: Run, viewer: Viewer) -> bool:
    return role_of(run, viewer) in MANAGING


def role_of(run: Run, viewer: Viewer) -> Run.Role | None:
    """Return the viewer's role in the run, or None. Being a site operator does not in itself confer a role."""
    person = person_of(viewer)
    return run.role_of(person) if person is not None else None


def outranks(role: Run.Role | None, other: Run.Role | None) -> bool:
    """Return True if a person with `role` may remove a person with `other`, or grant and revoke the role `other`."""
    return RANKS.get(role, 0) > RANKS.get(other, 0)
