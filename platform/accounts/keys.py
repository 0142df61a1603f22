"""The site's signing key, and encryption for secrets that the site must be able to read back, such as access tokens."""

import base64

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from config.environment import kept_secret

PURPOSE = b"manyhands: secrets of people at rest"


def site_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(kept_secret(settings.DATA / "keys" / "site"))


class Unreadable(Exception):
    """A secret that cannot be decrypted, because it is damaged or was encrypted with another key."""


def seal(secret: str) -> str:
    return _fernet().encrypt(secret.encode()).decode()


def unseal(sealed: str) -> str:
    """Decrypt a secret. Raises Unreadable if that is impossible."""
    try:
        return _fernet().decrypt(sealed.encode()).decode()
    except InvalidToken as error:
        raise Unreadable from error


def _fernet() -> Fernet:
    key = HKDF(SHA256(), length=32, salt=None, info=PURPOSE).derive(str(settings.SECRET_KEY).encode())
    return Fernet(base64.urlsafe_b64encode(key))
