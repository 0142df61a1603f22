"""An optional proof of work for sign-ups: the visitor's browser finds a number whose hash begins with zero bits.

Each further bit doubles the expected work. The site keeps nothing but the hashes that were used, for as long as their
challenge is valid.
"""

import hashlib
import secrets

from django.core import signing
from django.core.cache import cache

SALT = "sign-up-work"
VALID_S = 1800  # for filling in the form, and for the work


def challenge() -> str:
    return signing.dumps(secrets.token_hex(8), salt=SALT)


def is_done(text: str, answer: str, bits: int) -> bool:
    """Return True if SHA-256 of `text:answer` begins with `bits` zero bits and was not used before."""
    try:
        signing.loads(text, salt=SALT, max_age=VALID_S)
    except signing.BadSignature:
        return False
    digest, used = (hashlib.sha256(each.encode()) for each in (f"{text}:{answer[:20]}", text))
    is_found = int(digest.hexdigest(), 16) >> (256 - bits) == 0
    return is_found and cache.add(f"{SALT}-{used.hexdigest()}", 1, VALID_S)
