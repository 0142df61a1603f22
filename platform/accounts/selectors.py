"""Queries about people and machines."""

from collections.abc import Collection
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone

from accounts.models import RELAY_KEEPER, Machine, Person, Token
from peer_agent.protocol.errors import Problem


def machines_of(person: Person) -> QuerySet[Machine]:
    return person.machines.order_by("revoked_at", "created_at")


def machine_of(person: Person, machine_id: UUID) -> Machine | None:
    return person.machines.filter(pk=machine_id).first()


def open_tokens_of(person: Person) -> QuerySet[Token]:
    return person.tokens.filter(purpose=Token.Purpose.API, revoked_at=None).exclude(expires_at__lte=timezone.now())


def working_machine(peer_id: str, *, site: str) -> Machine:
    """Return the machine with this id.

    Raises Problem E101 if the site has no such machine, or E214 if it was revoked or its owner's account is closed.
    """
    machine = Machine.objects.select_related("person").filter(pk=peer_id).first()
    if machine is None:
        raise Problem.of("E101", site=site)
    if machine.revoked_at or not machine.person.is_active:
        raise Problem.of("E214")
    return machine


def person_with_page(name: str, *, viewer: object) -> Person | None:
    """Return the person with this name if their page is public or the viewer's own. Otherwise, return None."""
    person = Person.objects.filter(username=name, is_active=True).exclude(username=RELAY_KEEPER).first()
    return person if person is not None and (person.has_public_page or person == viewer) else None


def names_with_page(names: Collection[str]) -> set[str]:
    """Return the names that belong to people with a public page."""
    people = Person.objects.filter(username__in=names, is_active=True, has_public_page=True)
    return set(people.exclude(username=RELAY_KEEPER).values_list("username", flat=True))


def has_operator() -> bool:
    return Person.objects.filter(is_superuser=True).exists()
