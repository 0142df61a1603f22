"""Secrets that this site keeps for itself: files of mode 0600 under the data folder, made when first needed."""

import os
import secrets
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.conf import settings

SECRET_BYTES = 32


def kept_secret(path: Path) -> bytes:
    """The 32 random bytes in a file, hexadecimal; whoever comes first makes it, everyone reads the same."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_hex(SECRET_BYTES))
        try:
            os.link(draft, path)  # unlike a rename, a link never replaces what another process has made
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return bytes.fromhex(path.read_text())


def site_key() -> Ed25519PrivateKey:
    """The Ed25519 key with which this site signs credentials, plans and records."""
    return Ed25519PrivateKey.from_private_bytes(kept_secret(settings.DATA / "keys" / "site"))
