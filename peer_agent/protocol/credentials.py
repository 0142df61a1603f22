"""Who may speak: the site signs a short-lived credential (person, machine, run, role); all verify it offline."""

from enum import StrEnum

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Struct

from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import ANY_RUN, Key, Peer, PeerId, Run, RunId, Short, Signature

CLOCK_TOLERANCE_S = 300
LIFETIME_S = 3600
TOKEN_PREFIX = "mh_"  # noqa: S105 (of every one-time token, none itself)

CREDENTIAL, LINK, RECORD, PLAN, REQUEST = (
    b"manyhands credential\0",
    b"manyhands link\0",
    b"manyhands record\0",
    b"manyhands plan\0",
    b"manyhands request\0",
)


class Role(StrEnum):
    """What a peer does in a run."""

    TRAINER = "trainer"
    AUXILIARY = "auxiliary"  # reduces, in one run, and computes no gradients
    RELAY = "relay"
    READER = "reader"  # the site's own replay: reads logs at relays, and does nothing else anywhere


FORWARDED = frozenset({Role.TRAINER, Role.AUXILIARY})  # whose links relays forward (rule 27)


class Credential(Struct, frozen=True, forbid_unknown_fields=True):
    """What the site vouches for. Times are seconds of UTC; `key` is the machine's Ed25519 public key."""

    person: Short
    machine: Peer
    run: Run
    role: Role
    key: Key
    not_before: int
    expires: int

    @property
    def peer(self) -> PeerId:
        """One agent per machine and run, so a peer is called by its machine."""
        return self.machine

    def covers(self, run: RunId) -> bool:
        """Whether it speaks for this run."""
        return self.run in (run, ANY_RUN)


class Signed(Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes and the Ed25519 signature over them (with a prefix that says what they are)."""

    payload: bytes
    signature: Signature


def sign(key: Ed25519PrivateKey, purpose: bytes, payload: bytes) -> Signed:
    """Sign `payload` for one purpose; a signature for another purpose does not verify."""
    return Signed(payload, key.sign(purpose + payload))


def is_signed_by(public_key: bytes, purpose: bytes, signed: Signed) -> bool:
    """Whether the holder of `public_key` signed this for this purpose."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signed.signature, purpose + signed.payload)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """The 32 bytes of the public half."""
    return key.public_key().public_bytes_raw()


def issue(site_key: Ed25519PrivateKey, credential: Credential) -> Signed:
    """The site's signature under a credential."""
    return sign(site_key, CREDENTIAL, msgspec.msgpack.encode(credential))


def verify(signed: Signed, site_public_key: bytes, now: float) -> Credential | Fault:
    """The credential, or why it cannot be accepted at `now` (UTC seconds)."""
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
