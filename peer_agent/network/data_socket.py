"""WebSockets that read and write in large pieces. On slow links, wake-ups would take most of the CPU time."""

import asyncio
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.connection import Connection as Socket
from websockets.protocol import State

GATHER_BYTES = 128 * 1024  # how many bytes to read together if they arrive in time
SHORTEST_S, LONGEST_S = 0.005, 0.1  # limits on how long received bytes wait for more
SILENCE_S = 2 * LONGEST_S  # after a silence this long, the rate is unknown
SLACK = 1.5  # times the time in which `GATHER_BYTES` should arrive
READ_BYTES = 256 * 1024  # most bytes to read at once, as in the TLS library
UNSENT_S = 0.25  # how many seconds' worth of unsent bytes the system may buffer, besides those in flight (rule 36)
LEAST_UNSENT, MOST_UNSENT = 128 * 1024, 1024 * 1024  # limits on the unsent bytes
RATE_S = 1.0  # seconds of continuous sending before the rate is measured
# A peer counts as gone after `SILENT_S` without an acknowledgement; `LOOK_S` is the time between checks.
SILENT_S, LOOK_S = 60.0, 10.0
PING_S, QUIET_S = 2.0, 8.0  # time between pings on a control link; silence after which the other end counts as dead
# These versions of asyncio never pause the sender after `writelines`, however slow the reader is (CVE-2024-12254).
IS_UNBOUNDED = (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)
LAST_ACK = 56  # offset in Linux's `struct tcp_info` of the milliseconds since the last acknowledgement


class Gathering:
    """Wakes the process once per `GATHER_BYTES` of continuous data instead of once per packet, on Linux only.

    The system holds the bytes back (SO_RCVLOWAT), so TLS and flow control are unaffected. A timer based on the link's
    rate resets SO_RCVLOWAT, which limits the delay whatever the peer does. Single short messages are not held back.
    """

    def __init__(self, system: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._system, self._loop = system, loop
        self._timer: asyncio.TimerHandle | None = None
        self._read_at = 0.0
        self._flowed = 0  # bytes read since the last silence

    def came(self, size: int, *, in_message: bool) -> None:
        """Record `size` bytes as read. `in_message` is True if they end in the middle of a message."""
        now = self._loop.time()
        took_s, self._read_at = now - self._read_at, now
        self._flowed = size if took_s > SILENCE_S else self._flowed + size
        if not in_message and self._flowed < GATHER_BYTES:
            self._wake_for_all()
            return
        if self._timer is None:
            self._wake_for(GATHER_BYTES)
        else:
            self._timer.cancel()
        self._timer = self._loop.call_at(now + _patience_s(size, took_s), self._wake_for_all)

    def _wake_for_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._wake_for(1)

    def _wake_for(self, waiting_bytes: int) -> None:
        if sys.platform == "linux":
            set_option(self._system, socket.SOL_SOCKET, "SO_RCVLOWAT", waiting_bytes)


def _patience_s(size: int, took_s: float) -> float:
    """Return how many seconds to wait for `GATHER_BYTES`, if `size` bytes took `took_s` seconds.

    After a silence the rate is unknown, so return the shortest wait.
    """
    is_known = took_s <= SILENCE_S
    return min(max(SLACK * took_s * GATHER_BYTES / size, SHORTEST_S), LONGEST_S) if is_known else SHORTEST_S


class Unsent:
    """Limits the unsent bytes in the system's buffer to what the link can send in `UNSENT_S`.

    A smaller limit would cause many wake-ups. A larger one would buffer bytes that this process can no longer drop.
    """

    def __init__(self, system: socket.socket) -> None:
        self._system = system
        self._since = self._went_at = 0.0
        self._bytes = 0
        self._hold(LEAST_UNSENT)

    def went(self, size: int, now: float) -> None:
        """Record that `size` bytes were written. After a pause, begin measuring the rate afresh."""
        if now - self._went_at > UNSENT_S:
            self._since, self._bytes = now, 0
        else:
            self._bytes += size
        self._went_at = now
        if (passed_s := now - self._since) >= RATE_S:
            self._hold(int(self._bytes / passed_s * UNSENT_S))
            self._since, self._bytes = now, 0

    def _hold(self, unsent: int) -> None:
        within = min(max(unsent, LEAST_UNSENT), MOST_UNSENT)
        set_option(self._system, socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", within)


class Silence:
    """Detects a dead peer, which acknowledges nothing.

    A slow reader, in contrast, still acknowledges that its receive window is full. TCP_USER_TIMEOUT would also end
    links to slow readers, because Linux treats a window as closed until a full segment fits.
    """

    def __init__(self, system: socket.socket, now: float) -> None:
        self._system, self._since = system, now

    def is_too_long(self, now: float) -> bool:
        """Return True if the peer has left sent data unacknowledged for `SILENT_S`.

        Call this every `LOOK_S`. Linux only.
        """
        waits, silent_s = self._unacknowledged()
        if not waits or silent_s < now - self._since:
            self._since = now
        return now - self._since >= SILENT_S

    def _unacknowledged(self) -> tuple[int, float]:
        """Return the number of unacknowledged bytes, and the seconds since the last acknowledgement."""
        if sys.platform != "linux":
            return 0, 0.0
        import fcntl
        import termios

        try:
            waits = struct.unpack("i", fcntl.ioctl(self._system.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
            info = self._system.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_ACK + 4)
        except OSError:
            return 0, 0.0  # the socket is closed
        return waits, struct.unpack_from("I", info, LAST_ACK)[0] / 1000


def set_option(system: socket.socket, level: int, name: str, value: int) -> None:
    """Set a socket option if the system supports it."""
    option = getattr(socket, name, None)
    if option is not None:
        with suppress(OSError):
            system.setsockopt(level, option, value)


class WideSocket(Socket, asyncio.BufferedProtocol):
    """A WebSocket connection that reads into one reused buffer.

    Data links call `gather`, and control links call `ping_often`.
    """

    _view: memoryview | None = None
    _read_at = 0.0  # when bytes last arrived, by the event loop's clock
    _gathering: Gathering | None = None
    _unsent: Unsent | None = None

    def gather(self) -> None:
        """Switch this data link to large reads and writes."""
        if (system := self.transport.get_extra_info("socket")) is not None:
            self._gathering, self._unsent = Gathering(system, self.loop), Unsent(system)

    def end_in_silence(self) -> None:
        """Abort the connection if the peer stops acknowledging what this end sends."""
        if (system := self.transport.get_extra_info("socket")) is not None:
            self.loop.call_later(LOOK_S, self._look, Silence(system, self.loop.time()))

    def _look(self, silence: Silence) -> None:
        if self.transport.is_closing():
            return
        if silence.is_too_long(self.loop.time()):
            self.transport.abort()
        else:
            self.loop.call_later(LOOK_S, self._look, silence)

    def ping_often(self) -> None:
        """Ping the other end regularly, and abort the connection if the other end stays silent.

        The system of a hung process still acknowledges bytes, so only bytes from the process show that it is alive. Any
        byte counts, because answers may wait behind a long message on a slow link.
        """
        self._read_at = self.loop.time()
        self.loop.call_later(PING_S, self._ping, self._read_at + PING_S)

    def _ping(self, due: float) -> None:
        now = self.loop.time()
        if self.transport.is_closing():
            return
        if now - due > QUIET_S / 2:  # this process itself was stopped, so first read what has arrived
            self._read_at = now
        if now - self._read_at >= QUIET_S:
            self.set_connection_exc(TimeoutError(f"the other end was silent for {QUIET_S:g} seconds"))
            self.transport.abort()
            return
        if self.protocol.state is State.OPEN:
            self.protocol.send_ping(b"")
            self.send_data()
        self.loop.call_later(PING_S, self._ping, now + PING_S)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the event loop's preferred size
        if self._view is None:
            self._view = memoryview(bytearray(READ_BYTES))
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        assert self._view is not None
        self._read_at = self.loop.time()
        self.data_received(self._view[:nbytes])  # type: ignore[arg-type] # `data_received` copies what it keeps
        if self._gathering is not None:
            self._gathering.came(nbytes, in_message=bool(self.protocol.reader.buffer))

    def went(self, size: int) -> None:
        if self._unsent is not None:
            self._unsent.went(size, self.loop.time())


class Dialled(WideSocket, ClientConnection):
    """The dialing end of a link."""


async def send_all(connection: Socket, messages: Sequence[bytes]) -> None:
    """Send messages in one write, waiting while the buffers are full. Raises ConnectionClosed if the link has ended."""
    async with connection.send_context():
        for message in messages:
            connection.protocol.send_binary(message)
        data = connection.protocol.data_to_send()
        if IS_UNBOUNDED:
            connection.transport.write(b"".join(data))
        else:
            connection.transport.writelines(data)
    if isinstance(connection, WideSocket):
        connection.went(sum(map(len, messages)))
