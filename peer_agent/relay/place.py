"""Where a member's machine is dialled by the others, and the certificate that it shows there."""

from msgspec import Struct

from peer_agent.machine.home import Home
from peer_agent.machine.language import gettext_noop
from peer_agent.network.addresses import ANYWHERE, bracketed
from peer_agent.network.certificate import Certificate, certificate_of, new_pem
from peer_agent.protocol.errors import Problem

LISTENER = "listener.pem"  # in the home: its certificate, so that it is known by the same one after a restart
SEEN = gettext_noop(
    "The members of this run will see this computer's internet address, because their computers connect to it."
)


class Place(Struct, frozen=True):
    """Where to listen. `advertise`: the port that others dial, 0 where it is the one that is listened at."""

    host: str = ANYWHERE[0]
    port: int = 0
    advertise: int = 0

    def url(self, port: int) -> str:
        """Its address, where it listens at this port. Of the host the site takes no word but its own."""
        return f"wss://{bracketed(self.host)}:{self.advertise or port}/"


def own_certificate(home: Home) -> Certificate:
    """The one that this home has, or a fresh one. Raises Problem E113, E106."""
    path = home.folder / LISTENER
    if not path.exists():
        home.write(LISTENER, new_pem())
    try:
        return certificate_of(path.read_bytes())
    except (ValueError, OSError) as error:
        raise Problem.of("E113", where=path, reason=error) from error
