"""The self-signed certificate of a listener without a domain, pinned by its fingerprint (rule 38).

The dialing peer checks only the fingerprint. The listener proves its identity by signing a handshake that includes the
fingerprint.
"""

import datetime as dt
import hashlib
import ssl
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from msgspec import Struct

FOR_EVER = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)  # because the peer's clock may be wrong
LONG_AGO = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)


class Certificate(Struct, frozen=True, eq=False):
    """A listener's TLS context, and its certificate's SHA-256 in hexadecimal."""

    context: ssl.SSLContext
    fingerprint: str


def new_certificate() -> Certificate:
    """Create a key and certificate without leaving a file on disk. Each call produces a new fingerprint."""
    return certificate_of(new_pem())


def new_pem() -> bytes:
    """Create a certificate and its key in PEM format. A listener that stores both keeps its fingerprint."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "manyhands")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(LONG_AGO)
        .not_valid_after(FOR_EVER)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM) + secret


def certificate_of(pem: bytes) -> Certificate:
    """Load a certificate and its key from PEM. Raises ValueError or OSError if they are damaged."""
    certificate = x509.load_pem_x509_certificate(pem)
    return Certificate(_context(pem), fingerprint_of(certificate.public_bytes(Encoding.DER)))


def _context(pem: bytes) -> ssl.SSLContext:
    """Return a server's TLS context. The key is briefly written to a private folder, because `ssl` reads only files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory() as folder:  # only the owner can read this folder
        path = Path(folder, "listener.pem")
        path.write_bytes(pem)
        context.load_cert_chain(path)
    return context


def fingerprint_of(certificate: bytes) -> str:
    """Return the SHA-256 of a DER-encoded certificate, in hexadecimal."""
    return hashlib.sha256(certificate).hexdigest()


def pinning_context() -> ssl.SSLContext:
    """Return a client's TLS context that accepts any certificate. The caller must check the fingerprint."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
