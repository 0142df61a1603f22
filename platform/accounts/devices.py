"""Machine approval in a browser (RFC 8628): a machine asks, a person answers, and the machine collects the answer."""

import secrets
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import IntegrityError, transaction
from django.db.models import Count

from accounts.models import DeviceRequest, Machine, Person
from accounts.services import admit_machine, digest_of, is_proof, require_welcome
from peer_agent.protocol.errors import Problem

LIFETIME = timedelta(minutes=15)
INTERVAL_S = 2
GRACE = timedelta(seconds=60)  # time for a machine to collect an approval given at the last moment
MEMORY = timedelta(days=1)  # how long the site can tell an expired code from an unknown one
MOST = 20_000  # the maximum number of stored requests across all machines, including expired ones
LETTERS = "BCDFGHJKMNPRSTVWXZ"  # no vowels, so no words; no L and Q, which look like I and O
CODE_LENGTH = 8
ATTEMPTS = 5

State = DeviceRequest.State


class Asked(NamedTuple):
    """A request for approval, with its device code. Only the machine that asked knows the code."""

    request: DeviceRequest
    device_code: str


def request_approval(
    *,
    name: str,
    public_key: bytes,
    system: str,
    run: str,
    address: str,
    now: datetime,
    kind: Machine.Kind = Machine.Kind.AGENT,
) -> Asked:
    """Store a machine's request for approval.

    Raises Problem E227 if the machine was revoked, or E228 if it belonged to an account that was closed.
    """
    if (known := Machine.objects.select_related("person").filter(public_key=public_key).first()) is not None:
        require_welcome(known)
    forget_dead(now)
    _make_room(now)
    device_code = secrets.token_urlsafe(32)
    facts = {"name": name, "public_key": public_key, "system": system, "run": run, "address": address, "kind": kind}
    times = {"created_at": now, "expires_at": now + LIFETIME}
    for attempt in range(ATTEMPTS):
        try:
            with transaction.atomic():
                request = DeviceRequest.objects.create(
                    device_digest=digest_of(device_code), user_code=new_user_code(), **facts, **times
                )
        except IntegrityError:  # another request has the same code, a one-in-billions chance
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return Asked(request, device_code)
    raise AssertionError("unreachable")


def forget_dead(now: datetime) -> None:
    DeviceRequest.objects.filter(expires_at__lt=now - MEMORY).delete()


def _make_room(now: datetime) -> None:
    """If too many requests are stored, delete the expired ones or, failing that, the busiest address's oldest one."""
    if DeviceRequest.objects.count() < MOST:
        return
    dead = DeviceRequest.objects.filter(expires_at__lt=now).order_by("expires_at").values_list("pk", flat=True)
    if gone := list(dead[: -(-MOST // 10)]):
        DeviceRequest.objects.filter(pk__in=gone).delete()
        return
    waiting = DeviceRequest.objects.filter(state=State.WAITING)
    crowd = waiting.values("address").annotate(rows=Count("pk")).order_by("-rows").first()
    if crowd is not None:
        oldest = waiting.filter(address=crowd["address"]).order_by("created_at").values_list("pk", flat=True)[:1]
        DeviceRequest.objects.filter(pk__in=list(oldest)).delete()


def new_user_code() -> str:
    """Return a random code of eight letters that is easy to read aloud and type."""
    return "".join(secrets.choice(LETTERS) for _ in range(CODE_LENGTH))


def typed_code(text: str) -> str:
    """Return the stored form of a code as typed, in either case and with or without its dash."""
    return "".join(letter for letter in text.upper() if letter.isalnum())[: CODE_LENGTH + 1]


def find_request(text: str) -> DeviceRequest | None:
    return DeviceRequest.objects.filter(user_code=typed_code(text)).first()


def require_answerable(*, request: DeviceRequest, person: Person, now: datetime) -> None:
    """Check that the person may answer the request, or has already answered it.

    Raises Problem E225 if the request has expired, or E226 if someone else has answered it.
    """
    if request.state == State.WAITING and request.expires_at <= now:
        raise Problem.of("E225", shown=request.shown_code, minutes=round(LIFETIME.total_seconds() / 60))
    if request.state != State.WAITING and request.person_id != person.pk:
        raise Problem.of("E226", shown=request.shown_code)


def may_approve(*, request: DeviceRequest, person: Person) -> bool:
    """Return True if the person may approve the request. Only operators may approve relays, which see gradients."""
    return request.kind != Machine.Kind.RELAY or person.is_staff


def answer_request(*, request: DeviceRequest, person: Person, approve: bool, now: datetime) -> None:
    """Approve or decline a request. Repeating the call changes nothing.

    Raises Problem E225 if the request has expired, E226 if someone else has answered it, or E127 if only an operator
    may approve it.
    """
    require_answerable(request=request, person=person, now=now)
    if approve and not may_approve(request=request, person=person):
        raise Problem.of("E127")
    state = State.APPROVED if approve else State.DECLINED
    waiting = DeviceRequest.objects.filter(pk=request.pk, state=State.WAITING)
    waiting.update(state=state, person=person, expires_at=max(request.expires_at, now + GRACE))
    request.refresh_from_db()
    require_answerable(request=request, person=person, now=now)


def asked_with(device_code: str) -> Asked:
    """Return the request with this device code. Raises Problem E222 if the code is unknown."""
    request = DeviceRequest.objects.select_related("person").filter(device_digest=digest_of(device_code)).first()
    if request is None:
        raise Problem.of("E222")
    return Asked(request, device_code)


def collect_machine(*, asked: Asked, proof: bytes, url: str, now: datetime) -> Machine:
    """Admit the approved machine and return it. This works only once per request.

    `proof` is the machine's signature of the device code, for the purpose REQUEST. `url` is the page on which people
    approve machines.

    Raises Problem E216 if the proof is wrong, E220 if it is still unanswered, E221 if it was declined, or
    E222 if it has expired or was already used. Raises Problem E227 if the machine was revoked, or E228 if it belonged
    to an account that was closed.
    """
    request, key = asked.request, bytes(asked.request.public_key)
    if not is_proof(secret=asked.device_code, public_key=key, proof=proof):
        raise Problem.of("E216")
    person = _who_approved(request, url, now)
    with transaction.atomic():
        if not DeviceRequest.objects.filter(pk=request.pk, state=State.APPROVED).update(state=State.USED):
            raise Problem.of("E222")
        return admit_machine(person=person, name=request.name, public_key=key, kind=Machine.Kind(request.kind))


def _who_approved(request: DeviceRequest, url: str, now: datetime) -> Person:
    """Return the person who approved the request.

    Raises Problem E220 if it is unanswered, E221 if it was declined, or E222 if it has expired, was already
    used, or was approved from an account that is now closed.
    """
    if request.state == State.DECLINED:
        raise Problem.of("E221")
    if request.state == State.USED or request.expires_at <= now:
        raise Problem.of("E222")
    if request.person is None:
        raise Problem.of("E220", url=url)
    if not request.person.is_active:
        raise Problem.of("E222")
    return request.person
