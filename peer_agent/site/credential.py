"""A machine's login at a site, and the short-lived credentials issued by the site."""

import asyncio
import base64
import platform
import time
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Meta, Struct

from peer_agent import __version__
from peer_agent.machine.home import Home, KnownSite
from peer_agent.machine.language import sanitize
from peer_agent.network.addresses import is_local, is_public
from peer_agent.network.link import DIAL_S, Connection, LinkLost, Refused, dial
from peer_agent.network.site import post_json, sign_request
from peer_agent.network.tunnel import dial_through
from peer_agent.protocol.credentials import LIFETIME_S, REQUEST, Role, Signed, public_bytes, sign
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import Peer, PeerId, Run, RunId
from peer_agent.protocol.messages import PROTOCOL, Listener
from peer_agent.protocol.session import Identity, Link

RENEW_S = LIFETIME_S / 2

Answer = TypeVar("Answer")
PublicKey = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Enrolled(Struct, frozen=True):
    """The site's response when a machine is approved."""

    machine: Peer
    person: str
    site_key: PublicKey


class Issued(Struct, frozen=True):
    """The fields used from the site's response to a credential request."""

    credential: str  # MessagePack of `Signed`, in base64
    site_key: PublicKey
    control: str
    run: Run
    title: str = ""


def site_of(url: str) -> str:
    """Return an address's scheme and host, which identify a site in a home.

    Raises Problem E104 if the address is malformed, or E112 if it does not begin with http:// or https://.
    """
    try:
        parts = urlsplit(url)
        named = parts.scheme in {"http", "https"} and parts.hostname and (parts.port or True)
    except ValueError as error:
        raise Problem.of("E104", url=url, reason=error) from error
    if not named:
        raise Problem.of("E112", thing="An address that begins with https://")
    return f"{parts.scheme}://{parts.netloc}"


def run_of(url: str) -> str:
    """Return the slug in a run's address.

    Raises Problem E305 if the address names no run, and the errors of `site_of`.
    """
    site_of(url)
    parts = [part for part in urlsplit(url).path.split("/") if part]
    if len(parts) < 2 or parts[-2] != "runs":
        raise Problem.of("E305", address=url)
    return parts[-1]


def understood(answer: dict[str, Any], kind: type[Answer], url: str) -> Answer:
    """Convert the site's response to a struct.

    Raises Problem E110 if the response does not fit, as when another service has answered.
    """
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise Problem.of("E110", url=url, reason=error) from error


async def log_in(home: Home, url: str, token: str, *, kind: str = "agent", name: str = "") -> KnownSite:
    """Enrol this machine at a site with a one-time token.

    Raises Problem E215 if the token is wrong or was already used, and the errors of `site_of` and `post_json`.
    """
    site, key = site_of(url), home.key()
    body = {
        "name": (name or platform.node() or "a machine")[:60],
        "public_key": public_bytes(key).hex(),
        "kind": kind,
        "proof": sign(key, REQUEST, token.encode()).signature.hex(),
    }
    url = f"{site}/api/v1/machines"
    enrolled = understood(await post_json(url, body, token=token), Enrolled, url)
    known = KnownSite(site, enrolled.machine, sanitize(enrolled.person), enrolled.site_key)
    home.remember(known)
    return known


class RunAccess:
    """A machine's access to one run, or a relay's access to all of a site's runs.

    `renew` keeps its credential valid.
    """

    def __init__(self, home: Home, site: KnownSite, role: Role, slug: str = "") -> None:
        self.home, self.site, self.role, self.slug = home, site, role, slug
        self.key: Ed25519PrivateKey = home.key()
        self.site_key = bytes.fromhex(site.site_key)
        self.credential: Signed | None = None
        self.control = self.title = ""
        self.run = RunId("")
        self._asked_at = (0.0, 0.0)  # by the monotonic clock, and by one that also runs during sleep

    @property
    def peer(self) -> PeerId:
        return self.site.machine

    async def renew(self) -> None:
        """Request a new credential if half of the current one's lifetime has passed.

        Raises Problem E217 if the site's key has changed, and the errors of `post_json`.
        """
        now = (time.monotonic(), time.time())
        age_s = max(after - before for after, before in zip(now, self._asked_at, strict=True))
        if self.credential is not None and age_s < RENEW_S:
            return
        where = "relays" if self.role is Role.RELAY else f"runs/{self.slug}"
        request = {"machine": self.peer, "role": self.role.value, "issued_at": time.time(), "protocol": PROTOCOL}
        body = msgspec.json.encode(request)
        url = f"{self.site.url}/api/v1/{where}/credential"
        issued = understood(await post_json(url, body, headers=sign_request(self.key, body)), Issued, url)
        if issued.site_key != self.site.site_key:
            raise Problem.of("E217")
        try:
            self.credential = msgspec.msgpack.decode(base64.b64decode(issued.credential), type=Signed)
        except (ValueError, msgspec.DecodeError) as error:
            raise Problem.of("E110", url=url, reason=error) from error
        self.control, self.run, self.title = issued.control, issued.run, sanitize(issued.title)
        self._asked_at = now

    def identity(self) -> Identity:
        return Identity(self.peer, self.key, self.credential, self.site_key)

    def headers(self) -> dict[str, str]:
        """Return the headers that authorize this machine to read the run's files."""
        packed = base64.b64encode(msgspec.msgpack.encode(self.credential)).decode()
        return {"Authorization": f"Credential {packed}"}

    async def dial_control(self) -> Connection:
        await self.renew()
        return await dial(self.control, link=Link.CONTROL, identity=self.identity(), server="site", version=__version__)

    async def may_dial(self, listener: Listener) -> bool:
        """Return True if this machine may dial a listener.

        Relays may have any address, because the site's operator sets them up. A member may only have a public address.
        Otherwise, the member could make this machine connect to computers in the local network. If the site itself is
        in the local network, members may have any address too.
        """
        if not listener.fingerprint or is_public(urlsplit(listener.url).hostname or ""):
            return True
        return await asyncio.to_thread(is_local, urlsplit(self.site.url).hostname or "")

    async def dial_listener(self, listener: Listener, timeout_s: float = DIAL_S) -> Connection:
        """Open a data link to a relay or a listening member.

        If the site supplies a fingerprint, accept only the certificate with that fingerprint.
        """
        await self.renew()
        return await self._dial(listener, Link.DATA, timeout_s)

    async def dial_through(self, relay: Listener, listener: Listener) -> Connection:
        """Open a data link through a relay.

        Every error becomes Problem E104, so that a relay cannot stop this machine from retrying.
        """
        await self.renew()
        try:
            way = await self._dial(relay, Link.FORWARD, DIAL_S)
            return await dial_through(way, listener, run=self.run, identity=self.identity(), version=__version__)
        except (Problem, Refused, LinkLost, TimeoutError) as error:
            reason = f"through the relay {relay.url}: {str(error) or 'no answer'}"
            raise Problem.of("E104", url=listener.url, reason=reason) from error

    async def _dial(self, listener: Listener, link: Link, timeout_s: float) -> Connection:
        return await dial(
            listener.url,
            link=link,
            identity=self.identity(),
            server=listener.peer,
            version=__version__,
            fingerprint=listener.fingerprint,
            timeout_s=timeout_s,
        )
