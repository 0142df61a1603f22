"""Participants in a round without a site. Each has the site's key and issues its own credential."""

import secrets
import time
from pathlib import Path

from websockets.asyncio.server import ServerConnection

from peer_agent.machine.home import Home, KnownSite
from peer_agent.network.link import Connection
from peer_agent.protocol.credentials import LIFETIME_S, Credential, Role, issue, public_bytes
from peer_agent.protocol.identifiers import ANY_RUN, PeerId
from peer_agent.protocol.session import Identity, Link, Session, Side
from peer_agent.site.credential import RunAccess
from tests.protocol.identities import RUN, SITE_KEY, SITE_PUBLIC


async def admitted(socket: ServerConnection) -> Connection:
    """Accept a control link as the site does. Raise LinkLost or Refused."""
    identity = Identity("site", SITE_KEY, None, SITE_PUBLIC)
    nonce = secrets.token_bytes(32)
    session = Session(Side.LISTENING, Link.CONTROL, identity, nonce=nonce, server="site", version="")
    link = Connection(socket, session, url="", clock=time.time)
    await link.shake_hands()
    return link


class OwnAccess(RunAccess):
    """Access to a run without a site. `control` is the address of the scripted coordinator."""

    def __init__(self, folder: Path, peer: PeerId, role: Role, control: str) -> None:
        known = KnownSite("http://127.0.0.1", peer, f"person {peer}", SITE_PUBLIC.hex())
        super().__init__(Home(folder), known, role)
        self.control, self.run = control, RUN

    async def renew(self) -> None:
        """Issue a credential on the first call only. The benchmark ends before it expires."""
        if self.credential is None:
            now = int(time.time())
            credential = Credential(
                person=self.site.person,
                machine=self.peer,
                run=ANY_RUN if self.role is Role.RELAY else RUN,
                role=self.role,
                key=public_bytes(self.key),
                not_before=now - 60,
                expires=now + LIFETIME_S,
            )
            self.credential = issue(SITE_KEY, credential)
