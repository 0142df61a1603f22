"""A request that a machine signs with its own key: who asks, for which role, and when it was said."""

from collections.abc import Callable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from accounts.models import Machine
from accounts.selectors import working_machine
from peer_agent.protocol.credentials import CLOCK_TOLERANCE_S, REQUEST, Role, Signed, is_signed_by
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.identifiers import Peer
from peer_agent.protocol.messages import PROTOCOL

ASKED_FOR = (Role.TRAINER, Role.AUXILIARY, Role.RELAY)  # the site gives itself whatever else there is


class CredentialRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request for a credential. `issued_at` is in seconds of UTC; agents of protocol 1 do not name it."""

    machine: Peer
    role: Role
    issued_at: float
    protocol: int = 1


def verified_request(
    *, body: bytes, signature: str, site: str, now: float, upgrade: Callable[[], str]
) -> tuple[Machine, Role]:
    """Who asks and as what. Raises Problem E206, E205, E101, E214, E216, E204, E213, in this order.

    `upgrade` gives the line that brings an agent up to date, for one that could not understand this site's messages.
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
    # Only now: a clock that is wrong in a request that somebody else made would mislead its owner.
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
