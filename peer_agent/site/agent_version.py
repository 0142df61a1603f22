"""Whether this agent is the one that a site offers, and the line that brings it up to date."""

import sys
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from packaging.version import InvalidVersion, Version

from peer_agent import __version__
from peer_agent.machine.language import gettext as _
from peer_agent.machine.sanitize import sanitize
from peer_agent.network.site import get_json
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.messages import PROTOCOL


class Offer(Struct, frozen=True):
    """The site's agent, as far as it is used here. A line is None where the site has no package."""

    version: str
    protocol: int
    upgrade_pip: str | None = None
    upgrade_uv: str | None = None

    @property
    def line(self) -> str:
        """The one for how this agent was installed, so that it works in a new terminal."""
        by_uv = (Path(sys.prefix) / "uv-receipt.toml").exists()
        if not (line := self.upgrade_uv if by_uv else self.upgrade_pip):
            return _("see the site's download page")
        return sanitize(line if by_uv else line.replace("pip", f"{sys.executable} -m pip", 1))


async def offer_of(site: str) -> Offer | None:
    """What a site offers; None where it does not say, or is not reached."""
    try:
        return msgspec.convert(await get_json(f"{site}/api/v1/agent"), Offer)
    except (Problem, msgspec.ValidationError):
        return None


def difference(offer: Offer) -> Fault | None:
    """E205 where this agent cannot work there, E126 where it works and there is a newer one, None where it fits."""
    if offer.protocol != PROTOCOL:
        fault = Fault.of("E205", theirs=PROTOCOL, ours=offer.protocol)
        return replace(fault, remedy=f"{fault.remedy}\n{offer.line}")
    if is_newer(offer.version, __version__):
        return Fault.of("E126", theirs=offer.version, ours=__version__, line=offer.line)
    return None


def is_newer(theirs: str, ours: str) -> bool:
    """Whether a version comes after another (PEP 440): 0.10.0 after 0.9.1, 0.2.0 after 0.2.0rc1; else False."""
    try:
        return Version(theirs) > Version(ours)
    except InvalidVersion:
        return False
