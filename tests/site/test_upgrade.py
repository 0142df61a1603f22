"""The agent upgrades itself only to a newer wheel that its publisher's release key has signed."""

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from packaging.version import Version

from peer_agent import __version__
from peer_agent.protocol import releases
from peer_agent.protocol.credentials import REQUEST, public_bytes, sign
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.messages import PROTOCOL
from peer_agent.protocol.releases import SUFFIX, Manifest, sign_wheel
from peer_agent.site import upgrade
from scripts import build_wheel, release_key
from tests.agent.program import http_site

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
NEWER, OLDER = "manyhands-9.0.0-py3-none-any.whl", "manyhands-0.0.1-py3-none-any.whl"
CONTENT = b"a wheel"


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The release keys that the agent trusts."""
    path = tmp_path / "release_keys.txt"
    path.write_text(f"# of the test\n{public_bytes(KEY).hex()}\n")
    monkeypatch.setattr(releases, "KEYS", path)
    return path


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the upgrade puts a wheel instead of passing it to pip."""
    copied = tmp_path / "installed"
    script = "import shutil, sys; shutil.copy(*sys.argv[1:])"
    monkeypatch.setattr(upgrade, "_command", lambda wheel: [sys.executable, "-c", script, str(wheel), str(copied)])
    return copied


def upgraded(shop: "Shop") -> Version | None:
    return asyncio.run(upgrade.upgrade(shop.url))


def signature_of(name: str, content: bytes, key: Ed25519PrivateKey, folder: Path) -> bytes:
    path = folder / name
    path.write_bytes(content)
    return sign_wheel(key, path)


def offer(site: str, name: str, *, is_signed: bool = True) -> dict[str, Any]:
    url = f"{site}/download/{name}"
    return {"version": "9.0.0", "protocol": PROTOCOL, "url": url, "signature": url + SUFFIX if is_signed else None}


class Shop:
    """A site that offers an agent."""

    def __init__(self, answers: dict[str, tuple[int, Any]], url: str) -> None:
        self.answers, self.url = answers, url

    def sell(self, name: str, content: bytes, signature: bytes | None) -> None:
        self.answers["/api/v1/agent"] = 200, offer(self.url, name, is_signed=signature is not None)
        self.answers[f"/download/{name}"] = 200, content
        self.answers[f"/download/{name}{SUFFIX}"] = 200, signature


@pytest.fixture
def shop() -> Iterator[Shop]:
    answers = dict[str, tuple[int, Any]]()
    with http_site(lambda path: answers.get(path, (404, {}))) as url:
        yield Shop(answers, url)


def test_signed_newer_wheel_is_installed(shop: Shop, installed: Path, tmp_path: Path) -> None:
    shop.sell(NEWER, CONTENT, signature_of(NEWER, CONTENT, KEY, tmp_path))
    assert str(upgraded(shop)) == "9.0.0"
    assert installed.read_bytes() == CONTENT


def test_same_version_is_left_alone(shop: Shop, installed: Path, tmp_path: Path) -> None:
    name = f"manyhands-{__version__}-py3-none-any.whl"
    shop.sell(name, CONTENT, signature_of(name, CONTENT, KEY, tmp_path))
    assert upgraded(shop) is None
    assert not installed.exists()


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("unsigned", "has no signature"),
        ("another key", "no release key"),
        ("for another purpose", "no release key"),
        ("older", "older"),
        ("another project", "malformed"),
        ("no signature", "malformed"),
        ("other bytes", "E111"),
    ],
)
def test_anything_else_is_refused_and_not_installed(
    case: str, reason: str, shop: Shop, installed: Path, tmp_path: Path
) -> None:
    name = OLDER if case == "older" else NEWER
    signature: bytes | None = signature_of(name, CONTENT, OTHER if case == "another key" else KEY, tmp_path)
    manifest = Manifest(NEWER, hashlib.sha256(CONTENT).hexdigest())
    if case == "for another purpose":  # as if the key had signed something else
        signature = msgspec.json.encode(sign(KEY, REQUEST, msgspec.json.encode(manifest)))
    elif case == "another project":
        named = Manifest("other-9.0.0-py3-none-any.whl", manifest.sha256)
        signature = msgspec.json.encode(sign(KEY, b"manyhands release\0", msgspec.json.encode(named)))
    signature = {"unsigned": None, "no signature": b"<html>"}.get(case, signature)
    shop.sell(name, b"other bytes" if case == "other bytes" else CONTENT, signature)
    with pytest.raises(Problem, match=reason):
        upgraded(shop)
    assert not installed.exists()


def test_agent_without_a_key_does_not_upgrade_itself(shop: Shop, installed: Path, keys: Path) -> None:
    shop.sell(NEWER, CONTENT, b"")
    keys.unlink()
    with pytest.raises(Problem, match="E145"):
        upgraded(shop)
    assert not installed.exists()


def test_site_without_an_agent_is_named(shop: Shop) -> None:
    with pytest.raises(Problem, match="E110"):
        upgraded(shop)


def test_failed_installation_has_a_number(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "_command", lambda _: [sys.executable, "-c", "raise SystemExit('no disk space')"])
    shop.sell(NEWER, CONTENT, signature_of(NEWER, CONTENT, KEY, tmp_path))
    with pytest.raises(Problem, match=r"E146: .*no disk space"):
        upgraded(shop)


def test_publisher_makes_a_key_signs_and_verifies(tmp_path: Path, keys: Path) -> None:
    wheel, key = tmp_path / NEWER, tmp_path / "release.pem"
    wheel.write_bytes(CONTENT)
    release_key.new(key, b"long passphrase", keys)
    assert key.stat().st_mode & 0o077 == 0
    assert b"ENCRYPTED" in key.read_bytes()
    with pytest.raises(ValueError, match="password"):
        release_key.sign(key, wheel, b"wrong")
    release_key.sign(key, wheel, b"long passphrase")
    assert release_key.verify(wheel, keys) == "9.0.0"
    wheel.write_bytes(b"other bytes")
    with pytest.raises(Problem, match="E144"):
        release_key.verify(wheel, keys)
    with pytest.raises(FileExistsError):
        release_key.new(key, b"again", keys)


@pytest.mark.check
def test_installed_agent_upgrades_itself_with_pip(tmp_path: Path, shop: Shop) -> None:
    """Two wheels of this checkout: 0.0.2, which knows the release key, and 9.0.0."""
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    packages = next((environment / "lib").glob("python*/site-packages"))
    own = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "others.pth").write_text(f"{own}\n")  # the agent's requirements, so that pip needs no network
    python = str(environment / "bin" / "python")
    subprocess.run(
        [python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools"], check=True
    )  # torch needs a newer
    installs = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall"]
    subprocess.run([*installs, str(made(tmp_path, "0.0.2"))], check=True)
    wheel = made(tmp_path, "9.0.0")
    shop.sell(wheel.name, wheel.read_bytes(), sign_wheel(KEY, wheel))
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_NO_INDEX": "1"}
    command = [str(environment / "bin" / "manyhands"), "upgrade", shop.url]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "Upgraded to version 9.0.0.\n"), done.stderr
    asks = [python, "-c", "import peer_agent; print(peer_agent.__version__)"]
    told = subprocess.run(asks, env=variables, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout == "9.0.0\n"


def made(folder: Path, version: str) -> Path:
    """Build a wheel of this checkout with another version and the test's release key."""
    root = folder / f"source {version}"
    root.mkdir()
    for name in build_wheel.BESIDE:
        shutil.copy(build_wheel.ROOT / name, root)
    shutil.copytree(build_wheel.ROOT / "peer_agent", root / "peer_agent", ignore=build_wheel.IGNORED)
    (root / "peer_agent" / "release_keys.txt").write_text(public_bytes(KEY).hex())
    about = root / "peer_agent" / "__init__.py"
    about.write_text(about.read_text().replace(f'"{__version__}"', f'"{version}"'))
    return build_wheel.build(root, folder / f"download {version}")
