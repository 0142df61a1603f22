"""Enrol this machine at a site: with a stored identity, a one-time token, or a person's approval."""

import asyncio
import platform
import time
from collections.abc import Awaitable, Callable
from typing import Annotated

from msgspec import Meta, Struct

from peer_agent.machine.hardware import system_in_words
from peer_agent.machine.home import Home, KnownSite
from peer_agent.machine.language import gettext as _
from peer_agent.machine.language import sanitize, translated
from peer_agent.network.link import PASSING
from peer_agent.network.site import Answered, post_json
from peer_agent.protocol.credentials import REQUEST, Role, public_bytes, sign
from peer_agent.protocol.errors import Problem, codes
from peer_agent.site.credential import Enrolled, RunAccess, log_in, site_of, understood
from peer_agent.site.login_token import token_of_environment

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
STRANGE_TRIES = 6  # polling ends after this many unexpected responses (E110); a restarting site may send some

Address = Annotated[str, Meta(pattern="^https?://[!-~]+$", max_length=2000)]
Sleep = Callable[[float], Awaitable[None]]


class Code(Struct, frozen=True):
    """The site's response to a request for approval.

    It contains the code and the addresses that a person needs to approve this machine. Times are in seconds.
    """

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
    """Request approval at the site at `url`, `show` the code, and wait until a person approves the machine.

    Raises Problem E115 if no one does so in time, the site's error if a person declines or the code expires, and the
    errors of `post_json`.
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
    """Poll the site until a person approves the machine. Keep polling if the site restarts or this machine sleeps."""
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


KINDS = {Role.TRAINER: "agent", Role.AUXILIARY: "agent", Role.RELAY: "relay"}
# Errors that the user can resolve by approving the machine again. E213 means that the machine is approved, but not as a
# relay. E214 is excluded: a revoked key gets no second approval (E227), so the owner must undo the revocation on the
# site.
ASK_AGAIN = {
    Role.TRAINER: frozenset({codes.MACHINE_UNKNOWN}),
    Role.AUXILIARY: frozenset({codes.MACHINE_UNKNOWN}),
    Role.RELAY: frozenset({codes.MACHINE_UNKNOWN, codes.OTHER_CREDENTIAL}),
}


class Enrolment(Struct, frozen=True):
    """Settings for enrolling a machine. `show` shows a person the code to approve. `say` displays a sentence. `run`:
    the slug of the run to join. `token`: a one-time token to use instead of an approval, or "".
    """

    show: Callable[[Code], None]
    say: Callable[[str], None]
    role: Role = Role.TRAINER
    run: str = ""
    token: str = ""

    async def enrol(self, home: Home, url: str) -> KnownSite:
        """Enrol this machine with a token if there is one, or else by a person's approval.

        Raises the errors of `token_of_environment`, `log_in` and `get_approved`.
        """
        kind = KINDS[self.role]
        if token := self.token or token_of_environment():
            return await log_in(home, url, token, kind=kind, name="relay" if self.role is Role.RELAY else "")
        return await get_approved(home, url, kind=kind, run=self.run, show=self.show)


async def access_for(home: Home, url: str, enrolment: Enrolment, *, sleep: Sleep = asyncio.sleep) -> RunAccess:
    """Return access to a run with a new credential.

    If necessary, first wait until a person approves this machine, and until the site has prepared the run. Raises the
    errors of `Enrolment.enrol` and `RunAccess.renew`.
    """
    known = home.sites().get(site_of(url))
    if known is None or enrolment.token:
        return await _renewed(home, await enrolment.enrol(home, url), enrolment, sleep)
    try:
        return await _renewed(home, known, enrolment, sleep)
    except Problem as problem:
        if problem.fault.code not in ASK_AGAIN[enrolment.role]:
            raise
        words = _("{trouble}. It can be approved again now.")
        enrolment.say(words.format(trouble=translated(problem.fault.title)))
    return await _renewed(home, await enrolment.enrol(home, url), enrolment, sleep)


async def _renewed(home: Home, known: KnownSite, enrolment: Enrolment, sleep: Sleep) -> RunAccess:
    """Return access with a new credential.

    While the site answers that the run is not open yet (E308), tell the user once, and wait.
    """
    access, is_told = RunAccess(home, known, enrolment.role, enrolment.run), False
    while True:
        try:
            await access.renew()
        except Answered as problem:
            if problem.fault.code != codes.NOT_OPEN or not problem.retry_after_s:
                raise
            if not is_told:
                enrolment.say(_("This run is being prepared. This machine joins when it opens."))
            is_told = True
            await sleep(min(problem.retry_after_s, LONGEST_PAUSE_S))
        else:
            return access
