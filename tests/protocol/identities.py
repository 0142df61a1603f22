"""Identities for these tests: a site, a relay and a trainer, with fixed keys."""

from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from peer_agent.protocol.credentials import Credential, Role, Signed, issue, public_bytes
from peer_agent.protocol.identifiers import ANY_RUN, PeerId, RunId
from peer_agent.protocol.session import Identity

NOW = 1_800_000_000.0
RUN = RunId("aa" * 16)
SITE_NAME = "https://site.example"
RELAY, TRAINER = PeerId("01" * 16), PeerId("02" * 16)


def key(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


SITE_KEY, RELAY_KEY, TRAINER_KEY, STRANGERS_KEY = key(1), key(2), key(3), key(4)
SITE_PUBLIC = public_bytes(SITE_KEY)

TRAINERS_CREDENTIAL = Credential(
    person="ann",
    machine=TRAINER,
    run=RUN,
    role=Role.TRAINER,
    key=public_bytes(TRAINER_KEY),
    not_before=int(NOW) - 60,
    expires=int(NOW) + 3600,
)
RELAYS_CREDENTIAL = msgspec.structs.replace(
    TRAINERS_CREDENTIAL, machine=RELAY, run=ANY_RUN, role=Role.RELAY, key=public_bytes(RELAY_KEY)
)


def site() -> Identity:
    return Identity(SITE_NAME, SITE_KEY, None, SITE_PUBLIC)


def relay(issued_by: Ed25519PrivateKey = SITE_KEY, **changes: Any) -> Identity:
    credential = msgspec.structs.replace(RELAYS_CREDENTIAL, **changes)
    return Identity(RELAY, RELAY_KEY, issue(issued_by, credential), SITE_PUBLIC)


def trainer(
    issued_by: Ed25519PrivateKey = SITE_KEY, holds: Ed25519PrivateKey = TRAINER_KEY, **changes: Any
) -> Identity:
    """Return a trainer's identity. With another issuer or key, it is an impostor's."""
    return Identity(TRAINER, holds, trainers_credential(issued_by, **changes), SITE_PUBLIC)


def trainers_credential(issued_by: Ed25519PrivateKey = SITE_KEY, **changes: Any) -> Signed:
    return issue(issued_by, msgspec.structs.replace(TRAINERS_CREDENTIAL, **changes))
