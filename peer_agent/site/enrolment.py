"""Makes a machine known to a site: by what it remembers, by a token, or by a person's approval in the browser."""

from collections.abc import Callable

from msgspec import Struct

from peer_agent.machine.home import Home, KnownSite
from peer_agent.machine.language import gettext as _
from peer_agent.machine.language import translated
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Problem, codes
from peer_agent.site.credential import RunAccess, log_in, site_of
from peer_agent.site.device_login import Code, get_approved
from peer_agent.site.login_token import token_of_environment

KINDS = {Role.TRAINER: "agent", Role.AUXILIARY: "agent", Role.RELAY: "relay"}
# A person can mend these by approving the machine (again); E213: it was approved, and not as a relay. Not E214: whoever
# revoked it takes that back where it was done, for a key that was shut out gets no second approval (E227).
ASK_AGAIN = {
    Role.TRAINER: frozenset({codes.MACHINE_UNKNOWN}),
    Role.AUXILIARY: frozenset({codes.MACHINE_UNKNOWN}),
    Role.RELAY: frozenset({codes.MACHINE_UNKNOWN, codes.OTHER_CREDENTIAL}),
}


class Enrolment(Struct, frozen=True):
    """How a machine becomes known to a site. `show` shows a person the code to approve; `say` says a sentence.

    `token`: a one-time token instead of an approval, or empty. `run`: the slug of the run that it asks for.
    """

    show: Callable[[Code], None]
    say: Callable[[str], None]
    role: Role = Role.TRAINER
    run: str = ""
    token: str = ""

    async def enrol(self, home: Home, url: str) -> KnownSite:
        """Make this machine known to the site of `url`, by a token or else by a person's approval. Raises Problem."""
        kind = KINDS[self.role]
        if token := self.token or token_of_environment():
            return await log_in(home, url, token, kind=kind, name="relay" if self.role is Role.RELAY else "")
        return await get_approved(home, url, kind=kind, run=self.run, show=self.show)


async def access_for(home: Home, url: str, enrolment: Enrolment) -> RunAccess:
    """Access with a fresh credential.

    A machine that is new to the site, or was no relay there yet, asks for approval first. Raises
    Problem.
    """
    known = home.sites().get(site_of(url))
    if known is None or enrolment.token:
        return await _renewed(home, await enrolment.enrol(home, url), enrolment)
    try:
        return await _renewed(home, known, enrolment)
    except Problem as problem:
        if problem.fault.code not in ASK_AGAIN[enrolment.role]:
            raise
        words = _("{trouble}. It can be approved again now.")
        enrolment.say(words.format(trouble=translated(problem.fault.title)))
    return await _renewed(home, await enrolment.enrol(home, url), enrolment)


async def _renewed(home: Home, known: KnownSite, enrolment: Enrolment) -> RunAccess:
    access = RunAccess(home, known, enrolment.role, enrolment.run)
    await access.renew()
    return access
