"""How a machine becomes known to a site without a token: a person reads a short code here and approves it there."""

import asyncio
import platform
import time
from collections.abc import Awaitable, Callable
from typing import Annotated

from msgspec import Meta, Struct

from peer_agent.machine.hardware import system_in_words
from peer_agent.machine.home import Home, KnownSite
from peer_agent.machine.sanitize import sanitize
from peer_agent.network.link import PASSING
from peer_agent.network.site import Answered, post_json
from peer_agent.protocol.credentials import REQUEST, public_bytes, sign
from peer_agent.protocol.errors import Problem, codes
from peer_agent.site.credential import Enrolled, site_of, understood

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
STRANGE_TRIES = 6  # a site that is not itself (E110) may be in the middle of a restart

Address = Annotated[str, Meta(pattern="^https?://[!-~]+$", max_length=2000)]
Sleep = Callable[[float], Awaitable[None]]


class Code(Struct, frozen=True):
    """What a person needs in order to approve this machine. Both lengths of time are in seconds."""

    device_code: Annotated[str, Meta(min_length=1, max_length=1000)]
    user_code: Annotated[str, Meta(pattern="^[0-9A-Z-]{1,20}$")]
    verification_uri: Address
    verification_uri_complete: Address
    expires_in: Annotated[float, Meta(gt=0, le=86_400)]
    interval: Annotated[float, Meta(ge=0, le=600)]


async def get_approved(
    home: Home,
    url: str,
    *,
    kind: str = "agent",
    run: str = "",
    show: Callable[[Code], None],
    sleep: Sleep = asyncio.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> KnownSite:
    """Ask the site of `url` to know this machine, `show` its code, and wait for a person's yes.

    Raises Problem E115 (nobody answered), the site's own (declined, expired), E104, E105, E110.
    """
    site = site_of(url)
    code = await _ask(home, site, kind, run)
    show(code)
    enrolled = await _wait(home, site, code, sleep, monotonic)
    known = KnownSite(site, enrolled.machine, sanitize(enrolled.person), enrolled.site_key)
    home.remember(known)
    return known


async def _ask(home: Home, site: str, kind: str, run: str) -> Code:
    system = await asyncio.to_thread(system_in_words)
    body = {
        "name": (platform.node() or "a machine")[:60],
        "public_key": public_bytes(home.key()).hex(),
        "system": system,
        "kind": kind,
        "run": run,
    }
    url = f"{site}/api/v1/devices"
    return understood(await post_json(url, body), Code, url)


async def _wait(home: Home, site: str, code: Code, sleep: Sleep, monotonic: Callable[[], float]) -> Enrolled:
    """Ask again and again. A site that is away for a while, or a laptop that slept, is nothing to speak of."""
    url = f"{site}/api/v1/devices/poll"
    proof = sign(home.key(), REQUEST, code.device_code.encode()).signature.hex()
    until, strange = monotonic() + code.expires_in, 0
    while monotonic() < until:
        try:
            answer = await post_json(url, {"device_code": code.device_code, "proof": proof})
            return understood(answer, Enrolled, url)
        except Problem as problem:
            strange += problem.fault.code == codes.STRANGE_ANSWER
            if not _is_passing(problem) or strange >= STRANGE_TRIES:
                raise
            pause_s = problem.retry_after_s if isinstance(problem, Answered) else 0.0
        await sleep(min(max(pause_s, code.interval, SHORTEST_PAUSE_S), LONGEST_PAUSE_S))
    raise Problem.of("E115", minutes=round(code.expires_in / 60), site=site)


def _is_passing(problem: Problem) -> bool:
    return problem.fault.code in {codes.NOT_APPROVED, codes.TOO_MANY, *PASSING}
