"""Logins through another site, of which only its name and its id for the person are stored.

Accounts are connected by coming from there first, or while logged in here; never by an equal name or e-mail.
"""

from collections.abc import Collection

from allauth.socialaccount.models import SocialAccount
from django.core.exceptions import ValidationError
from django.db import transaction

from accounts.models import Person
from accounts.services import require_free
from peer_agent.protocol.errors import Problem


def person_known_as(*, provider: str, uid: str) -> Person | None:
    """Return the person who logs in with this account of another site."""
    account = SocialAccount.objects.select_related("user").filter(provider=provider, uid=uid).first()
    return account.user if account else None


@transaction.atomic
def join_from_outside(*, provider: str, uid: str, username: str) -> Person:
    """Return a new person without a password; the same account always gives the same one. Raises ValidationError."""
    if known := person_known_as(provider=provider, uid=uid):
        return known
    require_free(username)
    person = Person(username=Person.normalize_username(username))
    try:
        person.full_clean(exclude=["password"])
    except ValidationError as error:
        faults = [text for texts in error.message_dict.values() for text in texts]
        raise ValidationError({"username": faults}) from error
    person.set_unusable_password()
    person.save()
    SocialAccount.objects.create(user=person, provider=provider, uid=uid, extra_data={})
    return person


def connected(person: Person) -> list[str]:
    return list(SocialAccount.objects.filter(user=person).order_by("pk").values_list("provider", flat=True))


@transaction.atomic
def connect(*, person: Person, provider: str, uid: str, name: str) -> None:
    """Connect an account at `provider`, named `name`. Raises E337 (another person's), E338 (another account there)."""
    Person.objects.select_for_update().get(pk=person.pk)
    known = person_known_as(provider=provider, uid=uid)
    if known == person:
        return
    if known is not None:
        raise Problem.of("E337", name=name)
    if provider in connected(person):
        raise Problem.of("E338", name=name)
    SocialAccount.objects.create(user=person, provider=provider, uid=uid, extra_data={})


@transaction.atomic
def disconnect(*, person: Person, provider: str, name: str, open_here: Collection[str]) -> None:
    """Disconnect a provider; `open_here` can be used for logins. Raises Problem E339 if no way to log in is left."""
    now = Person.objects.select_for_update().get(pk=person.pk)
    others = set(connected(now)) & set(open_here) - {provider}
    if not now.has_usable_password() and not others:
        raise Problem.of("E339", name=name)
    SocialAccount.objects.filter(user=now, provider=provider).delete()


def forget_details(*, provider: str, uid: str) -> None:
    """Delete the details that the other site sent about the person."""
    SocialAccount.objects.filter(provider=provider, uid=uid).update(extra_data={})
