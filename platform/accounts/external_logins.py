"""People who log in by another site. Kept of that site: its name and what it calls the person, nothing more.

An account there and one here belong together because somebody came from there first, or connected them while logged in
here: never because a name or an e-mail is the same.
"""

from collections.abc import Collection

from allauth.socialaccount.models import SocialAccount
from django.core.exceptions import ValidationError
from django.db import transaction

from accounts.models import Person
from accounts.services import require_free
from peer_agent.protocol.errors import Problem


def person_known_as(*, provider: str, uid: str) -> Person | None:
    """Who logs in by this account elsewhere."""
    account = SocialAccount.objects.select_related("user").filter(provider=provider, uid=uid).first()
    return account.user if account else None


@transaction.atomic
def join_from_outside(*, provider: str, uid: str, username: str) -> Person:
    """A new person without a password; the same account twice is one person. Raises ValidationError by field."""
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
    """From now on this account at `provider`, which is called `name`, opens the person's one here; again does nothing.

    Raises Problem E337 where it opens another's, E338 where another account there opens this one.
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
    """This site's word is no longer taken. `open_here`: those by which one can log in at present.

    Raises Problem E339 where nothing would be left to log in with.
    """
    now = Person.objects.select_for_update().get(pk=person.pk)
    others = set(connected(now)) & set(open_here) - {provider}
    if not now.has_usable_password() and not others:
        raise Problem.of("E339", name=name)
    SocialAccount.objects.filter(user=now, provider=provider).delete()


def forget_details(*, provider: str, uid: str) -> None:
    """What the other site told about the person is not kept."""
    SocialAccount.objects.filter(provider=provider, uid=uid).update(extra_data={})
