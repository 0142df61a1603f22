"""Handover of connections from the site's port to its relay.

A connection for /relay/ is passed to the relay's process as a file descriptor (SCM_RIGHTS), together with the head of
its request. From then on, its bytes do not pass through the site's process.
"""

import asyncio
import logging
import socket

log = logging.getLogger(__name__)

RELAY = "/relay/"
CAN_PASS = hasattr(socket, "send_fds")  # False on Windows


class Door:
    """The site's end of the socket through which connections reach the relay. Each start of the relay opens it anew."""

    def __init__(self) -> None:
        self._ours: socket.socket | None = None

    def open(self) -> socket.socket:
        """Return the relay's end of a new pair of sockets. The caller closes it once the relay has started."""
        self.close()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ours.settimeout(0.0)
        return theirs

    def close(self) -> None:
        if self._ours is not None:
            self._ours.close()
            self._ours = None

    def hand_over(self, transport: asyncio.BaseTransport, head: bytes, visitor: str) -> None:
        """Pass a connection to the relay, and close this process's end of it.

        If no relay runs or its queue is full, the connection ends. Agents then try again.
        """
        system: socket.socket = transport.get_extra_info("socket")
        try:
            if self._ours is not None:
                socket.send_fds(self._ours, [f"{visitor}\n".encode() + head], [system.fileno()])
        except OSError as error:
            log.warning("the relay takes no connection: %s", error)
        assert isinstance(transport, asyncio.Transport)
        transport.abort()  # only closes this process's descriptor
