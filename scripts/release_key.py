"""Make a release key, and sign the agent's wheel with it. Do this on a computer that is not the site's.

- `python -m scripts.release_key new KEY` writes a new private key to KEY, encrypted with a passphrase, and adds its
  public half to `peer_agent/release_keys.txt`. Agents built from then on upgrade only to wheels that it has signed.
- `python -m scripts.release_key sign KEY WHEEL` writes WHEEL.sig, to be put beside the wheel on the site.
- `python -m scripts.release_key verify WHEEL` checks that file.
"""

import argparse
import getpass
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from peer_agent.protocol.credentials import public_bytes
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.releases import KEYS, SUFFIX, release_keys, sign_wheel, verified

VARIABLE = "MANYHANDS_RELEASE_PASSPHRASE"  # for programs; otherwise the command asks


def new(path: Path, passphrase: bytes, keys: Path = KEYS) -> None:
    """Write a new private key, and add its public half to the trusted keys. Raises FileExistsError for a known path."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(passphrase))
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
    known = keys.read_text(encoding="utf-8").splitlines() if keys.exists() else []
    keys.write_text("\n".join([*known, public_bytes(key).hex()]) + "\n", encoding="utf-8")


def sign(path: Path, wheel: Path, passphrase: bytes) -> Path:
    """Sign a wheel, and return the path of the signature. Raises ValueError for a wrong passphrase or another file."""
    key = load_pem_private_key(path.read_bytes(), passphrase)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{path} is not an Ed25519 key")  # noqa: TRY004 (of the file, not of an argument)
    signature = wheel.with_name(wheel.name + SUFFIX)
    signature.write_bytes(sign_wheel(key, wheel))
    return signature


def verify(wheel: Path, keys: Path = KEYS) -> str:
    """Return the version of a signed wheel. Raises Problem E144 if it is not signed by a trusted key."""
    manifest = verified(wheel.with_name(wheel.name + SUFFIX).read_bytes(), release_keys(keys))
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != manifest.sha256:
        raise Problem.of("E144", reason="its signature is of other bytes")
    return str(manifest.version)


def _passphrase() -> bytes:
    return (os.environ.get(VARIABLE) or getpass.getpass("Passphrase: ")).encode()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.release_key", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    for name, paths in (("new", ("key",)), ("sign", ("key", "wheel")), ("verify", ("wheel",))):
        command = commands.add_parser(name)
        for path in paths:
            command.add_argument(path, type=Path)
    given = parser.parse_args(arguments)
    actions: dict[str, Callable[[], object]] = {
        "new": lambda: new(given.key, _passphrase()),
        "sign": lambda: sign(given.key, given.wheel, _passphrase()),
        "verify": lambda: verify(given.wheel),
    }
    try:
        said = actions[given.command]()
    except (OSError, ValueError, Problem) as error:
        print(f"release_key: {error}", file=sys.stderr)
        return 1
    print(said or "done")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
