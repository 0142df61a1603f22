"""Functions that end sessions, set passwords and close accounts.

A session is valid as long as its hash matches the one that `models.Person` computes.
"""

import secrets

from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.password_validation import validate_password
from django.contrib.auth.tokens import default_token_generator
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_decode, urlsafe_base64_encode
from django.utils.translation import gettext

from accounts import teams
from accounts.models import FORMER, RELAY_KEEPER, DeviceRequest, MachineControl, Person
from peer_agent.protocol.errors import Problem


def end_sessions(*, person: Person) -> None:
    """End all of the person's sessions. A view can keep the current session by renewing its hash afterwards."""
    Person.objects.filter(pk=person.pk).update(session_epoch=F("session_epoch") + 1)
    person.refresh_from_db(fields=["session_epoch"])


def set_password(*, person: Person, password: str) -> None:
    """Set a password and end all of the person's sessions. Raises ValidationError if the password is too weak."""
    validate_password(password, person)
    person.set_password(password)
    person.save(update_fields=["password"])
    end_sessions(person=person)


def change_password(*, person: Person, current: str, password: str) -> None:
    """Set a password after checking the current one, if any. Raises ValidationError with errors keyed by form field."""
    if person.has_usable_password() and not person.check_password(current):
        raise ValidationError({"current": gettext("That's not your current password.")})
    try:
        set_password(person=person, password=password)
    except ValidationError as error:
        raise ValidationError({"password": error.messages}) from error


def reset_path(*, username: str) -> str:
    """Return the path of a password link that works once, within a day.

    Raises Problem E331 if no person has this name, or E332 if the account is closed.
    """
    person = Person.objects.filter(username__iexact=username).exclude(username=RELAY_KEEPER).first()
    if person is None:
        raise Problem.of("E331", name=username)
    if not person.is_active:
        raise Problem.of("E332", name=person.username)
    return f"/password/{urlsafe_base64_encode(force_bytes(person.pk))}/{default_token_generator.make_token(person)}/"


def person_of_reset(*, person_id: str, token: str) -> Person:
    """Return the person whose password a link may set.

    Raises Problem E333 if the link was already used, has expired or is older than the person's last login.
    """
    try:
        person = Person.objects.filter(pk=int(urlsafe_base64_decode(person_id)), is_active=True).first()
    except (ValueError, OverflowError):
        person = None
    if person is None or not default_token_generator.check_token(person, token):
        raise Problem.of("E333")
    return person


@transaction.atomic
def close_account(*, person: Person) -> None:
    """Close an account: its logins, sessions, machines and tokens stop working. Its contributions still count.

    Approvals not yet collected by their machines are withdrawn, so that reopening the account does not admit those
    machines.
    """
    now = timezone.now()
    person.is_active = False
    person.save(update_fields=["is_active"])
    end_sessions(person=person)
    person.machines.filter(revoked_at=None).update(revoked_at=now)
    person.tokens.filter(revoked_at=None).update(revoked_at=now)
    approved = person.device_requests.filter(state=DeviceRequest.State.APPROVED)
    approved.update(state=DeviceRequest.State.DECLINED)


@transaction.atomic
def forget_person(*, person: Person) -> None:
    """Close an account permanently and delete its name, password, logins and tokens. Its contributions still count.

    The public keys of its machines stay, because old signatures cannot be checked without them.
    """
    close_account(person=person)
    teams.leave_team(person=person)
    person.username = f"{FORMER}{secrets.token_hex(4)}"
    person.look = None
    person.has_public_page = False
    person.is_staff = person.is_superuser = False
    person.set_unusable_password()
    person.save()
    person.machines.update(name="machine")
    MachineControl.objects.filter(machine__person=person).delete()
    person.tokens.all().delete()
    person.device_requests.all().delete()
    SocialAccount.objects.filter(user=person).delete()


def open_account(*, person: Person) -> None:
    """Reopen a closed account. The person may then restore the account's machines."""
    person.is_active = True
    person.save(update_fields=["is_active"])
