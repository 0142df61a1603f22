"""Upgrade the agent to the version that a site offers, if a release key has signed it."""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.version import Version

from peer_agent import __version__
from peer_agent.machine.hardware import is_bundle
from peer_agent.network.site import download, get_bytes
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.releases import LARGEST, Manifest, release_keys, verified
from peer_agent.site.facts import Offer, is_by_uv, offer_of

LARGEST_WHEEL = 100_000_000  # bytes


async def upgrade(site: str) -> Version | None:
    """Install the version that a site offers. Return it, or None if this agent is not older.

    Raises Problem E110 if the site offers none, E144 if no release key of this agent has signed the offered version, or
    if it is older than this one, E145 if this agent knows no release key or is a bundle, and E146 if pip or uv fails.
    """
    offer, keys = await offer_of(site), release_keys()
    if not keys or is_bundle():
        raise Problem.of("E145")
    if offer is None or not offer.url:
        raise Problem.of("E110", url=f"{site}/api/v1/agent", reason="it offers no agent")
    if not offer.signature:
        raise Problem.of("E144", reason="the site has no signature for it")
    manifest = verified(await get_bytes(offer.signature, limit=LARGEST), keys)
    if manifest.version < Version(__version__):
        raise Problem.of("E144", reason=f"it is older ({manifest.version}) than this agent ({__version__})")
    if manifest.version == Version(__version__):
        return None
    await _install(offer, manifest)
    return manifest.version


async def _install(offer: Offer, manifest: Manifest) -> None:
    assert offer.url is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / manifest.name
        await download(offer.url, path, sha256=manifest.sha256, size_limit=LARGEST_WHEEL)
        try:
            done = await asyncio.to_thread(subprocess.run, _command(path), capture_output=True, text=True, check=False)
        except OSError as error:  # uv is not among this process's programs
            raise Problem.of("E146", reason=error) from error
    if done.returncode:
        raise Problem.of("E146", reason=(done.stderr.strip() or "no reason given").splitlines()[-1])


def _command(wheel: Path) -> list[str]:
    requirement = f"manyhands[train] @ {wheel.as_uri()}"
    if is_by_uv():
        return ["uv", "tool", "install", "--reinstall", "--torch-backend", "auto", requirement]
    return [sys.executable, "-m", "pip", "install", "--upgrade", requirement]
