"""Reads what the site reports about its agent and a run, before joining, and checks that both suit this machine."""

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from packaging.version import InvalidVersion, Version

from peer_agent import __version__
from peer_agent.machine.hardware import device_in_words, free_resources, is_bundle, usable_gpu
from peer_agent.machine.language import gettext as _
from peer_agent.machine.language import sanitize
from peer_agent.machine.preflight import Preflight, RunFacts, RunSizes, check_fit
from peer_agent.network.site import Headers, get_json
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.messages import PROTOCOL
from peer_agent.protocol.releases import release_keys
from peer_agent.recipes import parse_recipe
from peer_agent.site.credential import RunAccess


class Offer(Struct, frozen=True):
    """The fields used from the site's offer of an agent. The optional ones are None if the site has no package."""

    version: str
    protocol: int
    url: str | None = None
    signature: str | None = None  # the address of the package's signature
    upgrade_pip: str | None = None
    upgrade_uv: str | None = None

    def line(self, site: str) -> str:
        """Return the upgrade command for this installation, which also works in a new terminal.

        `site`: the address that the owner gave. A site that was taken over could offer any command.
        """
        if release_keys() and not is_bundle():
            return sanitize(f"manyhands upgrade {shlex.quote(site)}")
        if is_bundle() or not (line := self.upgrade_uv if is_by_uv() else self.upgrade_pip):
            return _("see the site's download page")
        return sanitize(line if is_by_uv() else line.replace("pip", f"{sys.executable} -m pip", 1))


def is_by_uv() -> bool:
    """Return True if uv installed this agent."""
    return (Path(sys.prefix) / "uv-receipt.toml").exists()


async def offer_of(site: str) -> Offer | None:
    """Return the site's offer of an agent. Return None if the site does not respond or its response is invalid."""
    try:
        return msgspec.convert(await get_json(f"{site}/api/v1/agent"), Offer)
    except (Problem, msgspec.ValidationError):
        return None


def difference(offer: Offer, site: str) -> Fault | None:
    """Compare this agent with the one that a site offers.

    Return E205 if this agent is incompatible with the site, E126 if a newer agent is available, otherwise None.
    """
    if offer.protocol != PROTOCOL:
        fault = Fault.of("E205", theirs=PROTOCOL, ours=offer.protocol)
        return replace(fault, remedy=f"{fault.remedy}\n{offer.line(site)}")
    if is_newer(offer.version, __version__):
        return Fault.of("E126", theirs=offer.version, ours=__version__, line=offer.line(site))
    return None


def is_newer(theirs: str, ours: str) -> bool:
    """Return True if version `theirs` is newer (PEP 440). 0.10.0 is newer than 0.9.1, and 0.2.0 than 0.2.0rc1."""
    try:
        return Version(theirs) > Version(ours)
    except InvalidVersion:
        return False


RECENT = 20  # how many recent steps the pace is computed from


async def run_preflight(access: RunAccess, *, disk_gb: int) -> Preflight:
    """Check if a run fits on this machine, caching at most `disk_gb` of data.

    Raises Problem if it lacks memory (E123), disk space (E124) or GPU memory (E125).
    """
    url = f"{access.site.url}/api/v1/runs/{access.slug}"
    facts = await facts_of(url, access.headers())
    gpu = await asyncio.to_thread(usable_gpu)
    device = device_in_words(gpu)
    if facts is None:
        return Preflight(device=device)
    folder = access.home.folder
    free = await asyncio.to_thread(free_resources, folder, is_on_gpu=bool(gpu))
    return check_fit(facts, free, folder, device, disk_gb=disk_gb)


async def facts_of(url: str, headers: Headers) -> RunFacts | None:
    """Return the site's facts about the run at `url`.

    Return None if the site does not respond or its response is invalid.
    """
    try:
        run = await get_json(url, headers=headers)
        step = int(run["step"])
        steps = await get_json(f"{url}/steps?cursor={max(step - RECENT, 0)}&limit={RECENT}", headers=headers)
        snapshots = await get_json(f"{url}/snapshots?limit=1000", headers=headers)
        return _understood(run, steps["items"], snapshots["items"])
    except (Problem, KeyError, TypeError, ValueError, msgspec.ValidationError):
        return None


def _understood(run: dict[str, Any], steps: list[dict[str, Any]], snapshots: list[dict[str, Any]]) -> RunFacts | None:
    newest = max(snapshots, key=lambda snapshot: int(snapshot["step"]), default={"step": 0, "size": 0})
    behind = max(int(run["step"]) - int(newest["step"]), 0)
    durations = [float(step["duration_s"]) for step in steps]
    recipe = parse_recipe(msgspec.json.encode(run["recipe"]))
    sizes = {
        "parameters": run["parameters"],
        "data_bytes": run["data_bytes"],
        "snapshot_bytes": newest["size"],
        "log_bytes": behind * encoded_size(recipe.codec_down, int(run["parameters"])),
        "pace_s": sum(durations) / len(durations) if durations else None,
    }
    known = msgspec.structs.asdict(msgspec.convert(sizes, RunSizes))
    return RunFacts(recipe=recipe, **known) if run["parameters"] else None
