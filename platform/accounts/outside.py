"""People who log in by another site. Kept of that site: its name and what it calls the person, nothing more."""

from allauth.socialaccount.models import SocialAccount
from django.core.exceptions import ValidationError
from django.db import transaction

from accounts.models import Person
from accounts.services import RELAY_KEEPER


def person_known_as(*, provider: str, uid: str) -> Person | None:
    """Who logs in by this account elsewhere."""
    account = SocialAccount.objects.select_related("user").filter(provider=provider, uid=uid).first()
    return account.user if account else None


@transaction.atomic
def join_from_outside(*, provider: str, uid: str, username: str) -> Person:
    """A new person without a password; the same account twice is one person. Raises ValidationError by field."""
    if known := person_known_as(provider=provider, uid=uid):
        return known
    if username.lower() == RELAY_KEEPER:
        raise ValidationError({"username": "This name is taken."})
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


def forget_details(*, provider: str, uid: str) -> None:
    """What the other site told about the person is not kept."""
    SocialAccount.objects.filter(provider=provider, uid=uid).update(extra_data={})
