"""Limits per person (`settings.QUOTAS`) on drafts, disk, model size and concurrent runs. Operators are exempt.

Limits that concurrent requests might exceed are checked with the person's row locked.
"""

from typing import NamedTuple

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db.models import Count, OuterRef, Q, Subquery, Sum

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe
from runs.models import Dataset, Run, Upload
from runs.states import UNDER_WAY
from runs.storage import MEGABYTE


class Quotas(NamedTuple):
    """One person's limits. `parameters` applies to each run; `disk_mb` is in megabytes."""

    drafts: int
    disk_mb: int
    parameters: int
    runs: int


class Use(NamedTuple):
    """How much of each quota a person is using, and the limits. `most` is None for operators."""

    drafts: int
    disk_mb: int
    runs: int
    most: Quotas | None


def quotas_of(person: Person) -> Quotas | None:
    return None if person.is_staff else Quotas(**settings.QUOTAS)


def use_of(person: Person) -> Use:
    states = Count("pk", filter=Q(state=Run.State.DRAFT)), Count("pk", filter=Q(state__in=UNDER_WAY))
    found = person.runs.aggregate(drafts=states[0], runs=states[1])
    return Use(disk_mb=-(-disk_of(person) // MEGABYTE), most=quotas_of(person), **found)


def drafts_of(person: Person) -> int:
    return person.runs.filter(state=Run.State.DRAFT).count()


def under_way(person: Person) -> int:
    return person.runs.filter(state__in=UNDER_WAY).count()


def disk_of(person: Person) -> int:
    """Return the size of a person's texts in bytes. Unfinished uploads count at their full size."""
    kept, coming = (
        rows.filter(**{owner: OuterRef("pk")}).order_by().values(owner).annotate(total=Sum("size")).values("total")
        for rows, owner in ((Dataset.objects, "organizer"), (Upload.objects, "person"))
    )
    found = Person.objects.filter(pk=person.pk).values_list(Subquery(kept), Subquery(coming))
    return sum(size or 0 for size in found.get())


def require_draft_left(person: Person) -> None:
    """Raise Problem E364 if the person has reached the limit on drafts."""
    most = quotas_of(person)
    if most is not None and (count := drafts_of(person)) >= most.drafts:
        raise Problem.of("E364", count=count, most=most.drafts)


def require_disk(person: Person, size: int, *, given_up: int = 0) -> None:
    """Raise Problem E365 unless `size` more bytes fit in the quota once `given_up` bytes have been deleted."""
    most = quotas_of(person)
    if most is None:
        return
    total = disk_of(person) + size - given_up
    if total > most.disk_mb * MEGABYTE:
        raise Problem.of("E365", size=f"{-(-total // MEGABYTE):,}", most=f"{most.disk_mb:,}")


def require_model(person: Person, recipe: Recipe) -> None:
    """Raise Problem E366 if the recipe's model is larger than the person's quota allows."""
    most = quotas_of(person)
    if most is not None and recipe.parameters() > most.parameters:
        raise Problem.of("E366", parameters=f"{recipe.parameters():,}", most=f"{most.parameters:,}")


def require_run_left(person: Person) -> None:
    """Raise Problem E367 if the person has reached the limit on concurrent runs."""
    most = quotas_of(person)
    if most is not None and (count := under_way(person)) >= most.runs:
        raise Problem.of("E367", count=count, most=most.runs)


def held(person: Person) -> None:
    """Lock the person's row, so that concurrent requests cannot exceed their quotas.

    Raises PermissionDenied if the account is closed.
    """
    if not Person.objects.select_for_update().filter(pk=person.pk, is_active=True).values_list("pk").first():
        raise PermissionDenied("This account is closed. Nothing was changed.")
