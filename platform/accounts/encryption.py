"""Secrets of people that the site must be able to use again: encrypted at rest under a key of the site's own secret."""

import base64

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

PURPOSE = b"manyhands: secrets of people at rest"


class Unreadable(Exception):
    """It was sealed under another secret, or is damaged."""


def seal(secret: str) -> str:
    """The secret, so that only this site can read it."""
    return _fernet().encrypt(secret.encode()).decode()


def unseal(sealed: str) -> str:
    """Inverse of `seal`. Raises Unreadable."""
    try:
        return _fernet().decrypt(sealed.encode()).decode()
    except InvalidToken as error:
        raise Unreadable from error


def _fernet() -> Fernet:
    key = HKDF(SHA256(), length=32, salt=None, info=PURPOSE).derive(str(settings.SECRET_KEY).encode())
    return Fernet(base64.urlsafe_b64encode(key))
