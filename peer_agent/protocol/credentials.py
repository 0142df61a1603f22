"""Short-lived credentials (person, machine, run, role). The site signs them; every peer can verify them offline."""

from enum import StrEnum

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Struct

from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import ANY_RUN, Key, Peer, PeerId, Run, RunId, Short, Signature

CLOCK_TOLERANCE_S = 300
LIFETIME_S = 3600
TOKEN_PREFIX = "mh_"  # noqa: S105 (the prefix of one-time tokens is no secret)

CREDENTIAL, LINK, RECORD, PLAN, REQUEST, RELEASE = (
    b"manyhands credential\0",
    b"manyhands link\0",
    b"manyhands record\0",
    b"manyhands plan\0",
    b"manyhands request\0",
    b"manyhands release\0",
)


class Role(StrEnum):
    TRAINER = "trainer"
    AUXILIARY = "auxiliary"  # reduces in one run but computes no gradients
    RELAY = "relay"
    READER = "reader"  # the site's replay process, which only reads logs from relays


FORWARDED = frozenset({Role.TRAINER, Role.AUXILIARY})  # roles that relays forward links to (rule 27)


class Credential(Struct, frozen=True, forbid_unknown_fields=True):
    """The site's signed claims about a machine. Times are in UTC seconds; `key` is the machine's Ed25519 public key."""

    person: Short
    machine: Peer
    run: Run
    role: Role
    key: Key
    not_before: int
    expires: int

    @property
    def peer(self) -> PeerId:
        """The peer's id, which is the machine's id, because a machine runs at most one agent in each run."""
        return self.machine

    def covers(self, run: RunId) -> bool:
        return self.run in (run, ANY_RUN)


class Signed(Struct, frozen=True, forbid_unknown_fields=True):
    """A payload and its Ed25519 signature, which also covers a prefix that names the signature's purpose."""

    payload: bytes
    signature: Signature


def sign(key: Ed25519PrivateKey, purpose: bytes, payload: bytes) -> Signed:
    """Sign `payload` for one purpose. The signature is valid for no other purpose."""
    return Signed(payload, key.sign(purpose + payload))


def is_signed_by(public_key: bytes, purpose: bytes, signed: Signed) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signed.signature, purpose + signed.payload)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def issue(site_key: Ed25519PrivateKey, credential: Credential) -> Signed:
    return sign(site_key, CREDENTIAL, msgspec.msgpack.encode(credential))


def verify(signed: Signed, site_public_key: bytes, now: float) -> Credential | Fault:
    """Verify a credential's signature and dates at time `now` (UTC seconds). Return the credential or a fault."""
    if not is_signed_by(site_public_key, CREDENTIAL, signed):
        return Fault.of("E201")
    try:
        credential = msgspec.msgpack.decode(signed.payload, type=Credential)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Fault.of("E201")
    if now < credential.not_before - CLOCK_TOLERANCE_S:
        return Fault.of("E203", minutes=round((credential.not_before - now) / 60))
    if now > credential.expires + CLOCK_TOLERANCE_S:
        return Fault.of("E202")
    return credential
