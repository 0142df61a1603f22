"""The address at which others dial a member's machine, and the certificate that the machine presents there."""

from msgspec import Struct

from peer_agent.machine.home import Home
from peer_agent.machine.language import gettext_noop
from peer_agent.network.addresses import ANYWHERE, bracketed
from peer_agent.network.certificate import Certificate, certificate_of, new_pem
from peer_agent.protocol.errors import Problem

LISTENER = "listener.pem"  # a file in the home, so that the certificate survives a restart
SEEN = gettext_noop(
    "The members of this run will see this computer's internet address, because their computers connect to it."
)


class Place(Struct, frozen=True):
    """An address to listen on. `advertise`: the router's external port, or 0 if it is the same as `port`."""

    host: str = ANYWHERE[0]
    port: int = 0
    advertise: int = 0

    def url(self, port: int) -> str:
        """Return the address to publish for a port.

        The site replaces its host with the address that this machine connects from.
        """
        return f"wss://{bracketed(self.host)}:{self.advertise or port}/"


def own_certificate(home: Home) -> Certificate:
    """Return this home's certificate, creating it on the first call.

    Raises Problem E106 if the certificate cannot be written, or E113 if it cannot be read.
    """
    path = home.folder / LISTENER
    if not path.exists():
        home.write(LISTENER, new_pem())
    try:
        return certificate_of(path.read_bytes())
    except (ValueError, OSError) as error:
        raise Problem.of("E113", where=path, reason=error) from error
