"""A peer's link to itself: who reduces for others takes its own chunks, and gets its own averages, as they do.

What one end sends is what the other receives, the same object: no socket, no handshake, no copy.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from peer_agent.network.link import READ_QUEUE, Connection, LinkLost
from peer_agent.network.uplink import Uplink
from peer_agent.protocol.credentials import Credential
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.messages import AnyMessage, Message
from peer_agent.protocol.wire import Frame


class _Shared:
    """What both ends know: whether the link has ended, and when something has changed."""

    def __init__(self) -> None:
        self.has_ended = False
        self.news = asyncio.Event()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Raises LinkLost where the link ends before."""
        while not self.has_ended and not is_so():
            await self.news.wait()
        if self.has_ended:
            raise LinkLost("the link of this machine to itself has ended")

    def wake(self) -> None:
        """A fresh event each time, so that whoever comes to wait later waits for what is later."""
        news, self.news = self.news, asyncio.Event()
        news.set()


class OwnLink(Connection):
    """One end. Any number of coroutines may send; one receives."""

    def __init__(self, coming: deque[Any], going: deque[Any], shared: _Shared) -> None:
        self.url, self.offset_s = "", 0.0
        self._coming, self._going, self._shared = coming, going, shared

    @property
    def credential(self) -> Credential | None:
        """None: nobody has to prove to itself who it is."""
        return None

    async def send(self, *bodies: Message | Frame) -> None:
        """As soon as the other end has room for each. Raises LinkLost."""
        for body in bodies:
            await self._shared.until(lambda: len(self._going) < READ_QUEUE)
            self._going.append(body)
            self._shared.wake()

    async def receive(self) -> AnyMessage | Frame:
        """What comes next. Raises LinkLost."""
        await self._shared.until(lambda: bool(self._coming))
        body: AnyMessage | Frame = self._coming.popleft()
        self._shared.wake()
        return body

    async def close(self, fault: Fault | None = None, retry_after_s: float = -1.0) -> None:
        """End both ends; there is nobody to tell why."""
        del fault, retry_after_s
        self.abort()

    def allow(self, message_bytes: int) -> None:
        """Nothing is refused for its length here."""

    def abort(self) -> None:
        """End both ends at once: whoever waits at one of them finds out."""
        self._shared.has_ended = True
        self._shared.wake()


FREE = Uplink()  # never paced: what a machine sends to itself leaves it by no uplink


def way_out(connection: Connection, uplink: Uplink) -> Uplink:
    """Where what goes to this connection takes turns."""
    return FREE if isinstance(connection, OwnLink) else uplink


def own_link() -> tuple[OwnLink, OwnLink]:
    """The two ends of a fresh link."""
    one, other, shared = deque[Any](), deque[Any](), _Shared()
    return OwnLink(one, other, shared), OwnLink(other, one, shared)
