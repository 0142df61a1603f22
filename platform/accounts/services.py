"""Functions that change people, machines and tokens, check credential requests, and sign credentials."""

import hashlib
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext
from msgspec import Struct
from msgspec.structs import replace

from accounts.keys import site_key
from accounts.models import FORMER, KEY_BYTES, LOOK_LENGTH, RELAY_KEEPER, Machine, PastOwner, Person, Token
from accounts.names import is_reserved, look_of
from accounts.selectors import working_machine
from peer_agent.protocol import credentials
from peer_agent.protocol.credentials import (
    CLOCK_TOLERANCE_S,
    REQUEST,
    TOKEN_PREFIX,
    Credential,
    Role,
    Signed,
    is_signed_by,
)
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.identifiers import Peer, PeerId, RunId
from peer_agent.protocol.messages import PROTOCOL

MACHINE_TOKEN_LIFETIME = timedelta(hours=24)
# Machines may request only these roles; the site reserves all others for itself.
ASKED_FOR = (Role.TRAINER, Role.AUXILIARY, Role.RELAY)


class IssuedToken(NamedTuple):
    """A token together with its secret, which is shown only once."""

    token: Token
    secret: str


def sign_up(*, username: str, password: str) -> Person:
    """Create a person. Raises a ValidationError that lists the invalid fields."""
    name = free_name(username)
    return _add_person(Person(username=name), password)


def free_name(username: str) -> str:
    """Return the name in Unicode's normal form NFKC.

    Raises ValidationError if the site reserves this name for itself or for deleted accounts, or if the name looks like
    that of another person.
    """
    name = str(Person.normalize_username(username))
    if is_reserved(name, FORMER):
        raise ValidationError({"username": gettext("This site keeps that name for itself.")})
    other = Person.objects.filter(look=look_of(name)[:LOOK_LENGTH]).first()
    if other is not None and other.username.lower() != name.lower():
        text = gettext("That name looks like %(name)s, which is taken.") % {"name": other.username}
        raise ValidationError({"username": text})
    return name


def make_first_operator(*, username: str, password: str) -> Person:
    """Create the site's first operator.

    Raises ValidationError if the name or password is invalid, or PermissionError if the site already has an operator.
    """
    if Person.objects.filter(is_superuser=True).exists():
        raise PermissionError("this site has an operator")
    return _add_person(Person(username=Person.normalize_username(username), is_staff=True, is_superuser=True), password)


def relay_keeper() -> Person:
    keeper = Person.objects.filter(username=RELAY_KEEPER).first()
    return keeper or Person.objects.create_user(RELAY_KEEPER, None, is_staff=True)


def create_token(
    *, person: Person, purpose: Token.Purpose, label: str = "", lifetime: timedelta | None = None
) -> IssuedToken:
    """Create a token. Its secret is `mh_` followed by 256 random bits. With no `lifetime`, it works until revoked."""
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    expires_at = timezone.now() + lifetime if lifetime else None
    token = Token.objects.create(
        person=person, purpose=purpose, label=label, digest=digest_of(secret), expires_at=expires_at
    )
    return IssuedToken(token, secret)


def create_machine_token(*, person: Person) -> IssuedToken:
    return create_token(person=person, purpose=Token.Purpose.MACHINE, lifetime=MACHINE_TOKEN_LIFETIME)


def revoke_token(*, token: Token) -> None:
    Token.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now())


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


@transaction.atomic
def enrol_machine(
    *, secret: str, name: str, public_key: bytes, proof: bytes, kind: Machine.Kind = Machine.Kind.AGENT
) -> Machine:
    """Admit the machine with `public_key` on behalf of the person who created the token.

    A machine already known to the site keeps its row and its history. `proof` is the machine's signature of `secret`,
    for the purpose REQUEST. Raises Problem E215 if the token cannot be used, or E216 if the proof is wrong. Raises
    Problem E227 if the machine was revoked, or E228 if it belonged to an account that was closed.
    """
    now = timezone.now()
    token = _usable_token(secret, Token.Purpose.MACHINE, now)
    if not is_proof(secret=secret, public_key=public_key, proof=proof):
        raise Problem.of("E216")
    if not Token.objects.filter(pk=token.pk, used_at=None, revoked_at=None).update(used_at=now):
        raise Problem.of("E215")
    return admit_machine(person=token.person, name=name, public_key=public_key, kind=kind)


@transaction.atomic
def admit_machine(*, person: Person, name: str, public_key: bytes, kind: Machine.Kind) -> Machine:
    """Create a machine with this key for the person, or transfer a machine already known to the site to them.

    The caller must have verified that the machine holds the private key. Raises Problem E227 if the machine was
    revoked, or E228 if it belonged to an account that was closed.
    """
    known = Machine.objects.select_for_update().select_related("person").filter(public_key=public_key).first()
    if known is not None:
        require_welcome(known)
        if known.person_id != person.pk:
            PastOwner.objects.get_or_create(machine=known, person=known.person)
    facts = {"person": person, "name": name, "kind": kind}
    machine, _ = Machine.objects.update_or_create(public_key=public_key, defaults=facts)
    return machine


def require_welcome(machine: Machine) -> None:
    """Check that a machine in the database may be admitted again.

    Raises Problem E227 if the machine was revoked, or E228 if the account of its owner or of a past owner is closed.
    """
    if machine.revoked_at:
        raise Problem.of("E227")
    if not machine.person.is_active or machine.past_owners.filter(person__is_active=False).exists():
        raise Problem.of("E228")


def is_proof(*, secret: str, public_key: bytes, proof: bytes) -> bool:
    """Return True if `proof` is a signature of `secret` made with the private key that belongs to `public_key`."""
    signed = Signed(secret.encode(), proof)
    return len(public_key) == KEY_BYTES and credentials.is_signed_by(public_key, credentials.REQUEST, signed)


def person_of_token(*, secret: str, now: datetime | None = None) -> Person:
    """Return the owner of a personal access token, and record its use. Raises Problem E215 if the token is invalid."""
    now = now or timezone.now()
    token = _usable_token(secret, Token.Purpose.API, now)
    Token.objects.filter(pk=token.pk).update(used_at=now)
    return token.person


def rename_machine(*, machine: Machine, name: str) -> None:
    machine.name = name
    machine.full_clean(exclude=["public_key"])
    machine.save(update_fields=["name"])


def revoke_machine(*, machine: Machine) -> None:
    """Revoke a machine. Until it is restored, it gets no credential and its key cannot be approved."""
    Machine.objects.filter(pk=machine.pk, revoked_at=None).update(revoked_at=timezone.now())


def bar_machine(*, machine: Machine) -> None:
    """Revoke a machine on an operator's behalf, so that its owner cannot restore it."""
    revoke_machine(machine=machine)
    Machine.objects.filter(pk=machine.pk).update(is_barred=True)


def let_back_machine(*, machine: Machine) -> None:
    """Restore a machine on its owner's behalf. Raises Problem E227 if an operator revoked it."""
    if not Machine.objects.filter(pk=machine.pk, is_barred=False).update(revoked_at=None):
        raise Problem.of("E227")


def unbar_machine(*, machine: Machine) -> None:
    """Restore a machine on an operator's behalf, even if an operator revoked it."""
    Machine.objects.filter(pk=machine.pk).update(revoked_at=None, is_barred=False)


def issue_credential(*, machine: Machine, run: RunId, role: Role, now: int) -> Signed:
    """Return a signed one-hour credential for the machine to act for its owner in `run`, where `*` means every run."""
    credential = Credential(
        person=machine.person.username,
        machine=machine.peer_id,
        run=run,
        role=role,
        key=bytes(machine.public_key),
        not_before=now,
        expires=now + credentials.LIFETIME_S,
    )
    Machine.objects.filter(pk=machine.pk).update(last_seen_at=timezone.now())
    return credentials.issue(site_key(), credential)


def issue_reader(*, key: bytes, peer: PeerId, run: RunId, now: int) -> Signed:
    """Return a signed one-hour credential with which the site itself reads a run's log on relays.

    `key` is the public half of the key pair that the site uses for this.
    """
    credential = Credential(
        person=RELAY_KEEPER,
        machine=peer,
        run=run,
        role=Role.READER,
        key=key,
        not_before=now,
        expires=now + credentials.LIFETIME_S,
    )
    return credentials.issue(site_key(), credential)


def _add_person(person: Person, password: str) -> Person:
    """Store a person with this password.

    Raises a ValidationError that lists everything wrong with the name and the password.
    """
    faults: dict[str, list[str]] = {}
    try:
        person.full_clean(exclude=["password"])
    except ValidationError as error:
        named = error.message_dict
        faults["username"] = [text for texts in named.values() for text in texts]
    try:
        validate_password(password, person)
    except ValidationError as error:
        faults["password"] = error.messages
    if faults:
        raise ValidationError(faults)
    person.set_password(password)
    person.save()
    return person


def _usable_token(secret: str, purpose: Token.Purpose, now: datetime) -> Token:
    """Return the token with this secret. Raises Problem E215 if it is unknown, already used, expired or revoked."""
    token = Token.objects.select_related("person").filter(digest=digest_of(secret), purpose=purpose).first()
    if token is None or token.revoked_at or not token.person.is_active:
        raise Problem.of("E215")
    is_over = token.expires_at is not None and token.expires_at <= now
    is_spent = purpose == Token.Purpose.MACHINE and token.used_at is not None
    if is_over or is_spent:
        raise Problem.of("E215")
    return token


# Credential requests. A machine signs its id, the role and the time with its own key.


class CredentialRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a credential request. `issued_at` is in UTC seconds. Protocol 1 omits `protocol`."""

    machine: Peer
    role: Role
    issued_at: float
    protocol: int = 1


def verified_request(
    *, body: bytes, signature: str, site: str, now: float, upgrade: Callable[[], str]
) -> tuple[Machine, Role]:
    """Check a credential request and return its machine and role.

    `upgrade` returns the command for updating an agent whose protocol this site does not support. In this order, raises
    Problem E206 if the request is malformed, E205 if its protocol differs, E101 if the machine is unknown, E214 if it
    was revoked, E216 if the signature is wrong, E204 if the machine's clock is, or E213 if it may not have the role.
    """
    request = _parsed(body)
    if request.protocol != PROTOCOL:
        fault = Fault.of("E205", theirs=request.protocol, ours=PROTOCOL)
        raise Problem(replace(fault, remedy=f"{fault.remedy}\n{upgrade()}"))
    machine = working_machine(request.machine, site=site)
    try:
        signed = Signed(body, bytes.fromhex(signature))
    except ValueError as error:
        raise Problem.of("E216") from error
    if not is_signed_by(bytes(machine.public_key), REQUEST, signed):
        raise Problem.of("E216")
    # Check the clock last, so that only the machine itself can trigger an error about its clock.
    if abs(now - request.issued_at) > CLOCK_TOLERANCE_S:
        raise Problem.of("E204", minutes=round(abs(now - request.issued_at) / 60))
    if request.role not in ASKED_FOR:
        raise Problem.of("E213")
    return machine, request.role


def _parsed(body: bytes) -> CredentialRequest:
    try:
        return msgspec.json.decode(body, type=CredentialRequest)
    except msgspec.DecodeError as error:
        raise Problem.of("E206", reason=error) from error
