"""Signatures of agent packages. The publisher's release key is kept offline, so a site that is taken over cannot ship
code: agents upgrade only to packages that a key in `release_keys.txt` has signed.
"""

import hashlib
import re
from collections.abc import Collection
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct
from packaging.version import Version

from peer_agent.protocol.credentials import RELEASE, Signed, is_signed_by, sign
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import Short
from peer_agent.protocol.messages.base import Hex

KEYS = (
    Path(__file__).parent.parent / "release_keys.txt"
)  # public keys in hexadecimal, one per line; other lines are comments
KEY = re.compile("[0-9a-f]{64}")
SUFFIX = ".sig"
LARGEST = 10_000  # bytes of a signature file
WHEEL = re.compile(r"manyhands-([0-9A-Za-z.!+]+)-py3-none-any\.whl")


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a signature: a wheel's file name, which contains its version, and its SHA-256."""

    name: Short
    sha256: Hex

    @property
    def version(self) -> Version:
        """The wheel's version. Raises ValueError if the name is not that of a wheel of this project."""
        found = WHEEL.fullmatch(self.name)
        if found is None:
            raise ValueError(self.name)
        return Version(found[1])


def release_keys(path: Path | None = None) -> list[bytes]:
    """Return the public keys that this agent trusts. Empty if it was built without any."""
    try:
        lines = (path or KEYS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [bytes.fromhex(line.strip()) for line in lines if KEY.fullmatch(line.strip())]


def sign_wheel(key: Ed25519PrivateKey, wheel: Path) -> bytes:
    """Return the content of a wheel's signature file."""
    manifest = Manifest(wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest())
    _ = manifest.version  # raises ValueError for other files
    return msgspec.json.encode(sign(key, RELEASE, msgspec.json.encode(manifest)))


def verified(signature: bytes, keys: Collection[bytes]) -> Manifest:
    """Return what one of these keys has signed.

    Raises Problem E144 if the signature is malformed, or if none of the keys made it.
    """
    try:
        signed = msgspec.json.decode(signature, type=Signed)
        if not any(is_signed_by(key, RELEASE, signed) for key in keys):
            raise Problem.of("E144", reason="no release key that this agent knows has signed it")
        manifest = msgspec.json.decode(signed.payload, type=Manifest)
        _ = manifest.version
    except ValueError as error:
        raise Problem.of("E144", reason="its signature file is malformed") from error
    return manifest
