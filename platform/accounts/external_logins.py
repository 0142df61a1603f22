"""Logins through another site. For each one, this site stores only the other site's name and its id for the person.

People link an account on another site in one of two ways: by signing up through that site, or from this site while
logged in. A matching name or e-mail address alone never links two accounts.
"""

from collections.abc import Collection

from allauth.socialaccount.models import SocialAccount
from django.core.exceptions import ValidationError
from django.db import transaction

from accounts.models import Person
from accounts.services import free_name
from peer_agent.protocol.errors import Problem


def person_known_as(*, provider: str, uid: str) -> Person | None:
    account = SocialAccount.objects.select_related("user").filter(provider=provider, uid=uid).first()
    return account.user if account else None


@transaction.atomic
def join_from_outside(*, provider: str, uid: str, username: str) -> Person:
    """Return the person linked to this account on another site, or create a person without a password.

    Raises ValidationError if the new person cannot have this name.
    """
    if known := person_known_as(provider=provider, uid=uid):
        return known
    person = Person(username=free_name(username))
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
    """Link a person to an account on another site. `name` is that site's display name.

    Raises Problem E337 if another person uses that account, or E338 if the person has linked another account there.
    """
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
    """Remove a person's login through another site. `open_here` lists the sites through which anyone can log in here.

    Raises Problem E339 if this would leave the person with no way to log in.
    """
    now = Person.objects.select_for_update().get(pk=person.pk)
    others = set(connected(now)) & set(open_here) - {provider}
    if not now.has_usable_password() and not others:
        raise Problem.of("E339", name=name)
    SocialAccount.objects.filter(user=now, provider=provider).delete()


def forget_details(*, provider: str, uid: str) -> None:
    SocialAccount.objects.filter(provider=provider, uid=uid).update(extra_data={})
