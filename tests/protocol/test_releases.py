"""Signatures of agent packages, and the keys that an agent trusts."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from packaging.version import Version

from peer_agent.protocol.credentials import public_bytes
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.releases import KEYS, Manifest, release_keys, sign_wheel, verified

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
NAME = "manyhands-0.10.0-py3-none-any.whl"


def test_one_of_several_keys_suffices(tmp_path: Path) -> None:
    wheel = tmp_path / NAME
    wheel.write_bytes(b"a wheel")
    signature = sign_wheel(KEY, wheel)
    manifest = verified(signature, [public_bytes(OTHER), public_bytes(KEY)])
    assert (manifest.name, manifest.version) == (NAME, Version("0.10.0"))
    with pytest.raises(Problem, match="E144"):
        verified(signature, [public_bytes(OTHER)])
    with pytest.raises(Problem, match="E144"):
        verified(signature, [])


@pytest.mark.parametrize("name", ["other-1.0-py3-none-any.whl", "manyhands-1.0.tar.gz", "../manyhands.whl", ""])
def test_only_wheels_of_this_project_have_a_version(name: str) -> None:
    with pytest.raises(ValueError, match=name or "^$"):
        _ = Manifest(name, "0" * 64).version


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("", 0),
        ("# a comment\n  # another\n", 0),
        (f"  {'ab' * 32}  \n", 1),
        (f"{'ab' * 32}\n{'cd' * 32}", 2),
        (f"{'ab' * 31}\n{'AB' * 32}\nnone", 0),
    ],
)
def test_lines_that_are_no_keys_are_comments(tmp_path: Path, text: str, keys: int) -> None:
    path = tmp_path / "keys.txt"
    path.write_text(text)
    assert len(release_keys(path)) == keys


def test_checkout_trusts_no_key() -> None:
    assert KEYS.is_file()
    assert release_keys() == []
    assert release_keys(KEYS.with_name("nothing.txt")) == []
