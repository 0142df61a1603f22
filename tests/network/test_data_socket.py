"""The socket options of a data link, on a clock that the test advances. No data is held back forever.

A peer that acknowledges nothing counts as gone. A peer that reads slowly does not.
"""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from peer_agent.network import data_socket, tunnel
from peer_agent.network import link as links
from peer_agent.network.data_socket import (
    GATHER_BYTES,
    LEAST_UNSENT,
    LONGEST_S,
    MOST_UNSENT,
    RATE_S,
    SHORTEST_S,
    SILENCE_S,
    UNSENT_S,
    Gathering,
    Silence,
    Unsent,
)
from peer_agent.network.link import Connection, LinkLost
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.session import Link
from tests.network.loopback import PATIENCE_S, dial_relay, frame, how_it_ends, listening, stay
from tests.protocol.identities import RUN


class Clock:
    """The clock and timers of an event loop. Timers fire when the test advances the clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        entry = (when, callback)
        self.timers.append(entry)
        return cast("Any", _Handle(self, entry))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for entry in [entry for entry in self.timers if entry[0] <= self.now]:
            self.timers.remove(entry)
            entry[1]()


class _Handle:
    def __init__(self, clock: Clock, entry: tuple[float, Callable[[], None]]) -> None:
        self.clock, self.entry = clock, entry

    def cancel(self) -> None:
        if self.entry in self.clock.timers:
            self.clock.timers.remove(self.entry)


class System:
    def __init__(self) -> None:
        self.options: dict[int, int] = {}

    def setsockopt(self, _: int, option: int, value: int) -> None:
        self.options[option] = value

    @property
    def mark(self) -> int:
        return self.options.get(socket.SO_RCVLOWAT, 1)

    @property
    def unsent(self) -> int:
        return self.options[socket.TCP_NOTSENT_LOWAT]


def gathering() -> tuple[Gathering, System, Clock]:
    system, clock = System(), Clock()
    return Gathering(cast("Any", system), cast("Any", clock)), system, clock


@pytest.fixture(autouse=True)
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")


def test_within_a_message_much_is_waited_for_and_never_for_long() -> None:
    gather, system, clock = gathering()
    gather.came(3000, in_message=True)
    assert system.mark == GATHER_BYTES
    clock.advance(SHORTEST_S)
    assert system.mark == 1, "after a silence nobody knows how long it takes"
    assert clock.timers == []


def test_how_long_follows_the_rate_up_to_a_bound() -> None:
    gather, system, clock = gathering()
    gather.came(3000, in_message=True)
    clock.advance(SHORTEST_S)
    gather.came(GATHER_BYTES // 2, in_message=True)  # the second half takes twice as long, with some allowance
    clock.advance(2 * SHORTEST_S)
    assert system.mark == GATHER_BYTES
    clock.advance(SHORTEST_S)
    assert system.mark == 1
    gather.came(100, in_message=True)
    clock.advance(LONGEST_S)
    assert system.mark == 1


def test_each_read_begins_the_wait_anew() -> None:
    gather, system, clock = gathering()
    for _ in range(50):
        gather.came(GATHER_BYTES, in_message=True)
        clock.advance(SHORTEST_S * 0.9)
        assert system.mark == GATHER_BYTES
        assert len(clock.timers) == 1


def test_short_messages_are_no_flow_and_wait_for_nothing() -> None:
    gather, system, clock = gathering()
    for _ in range(100):
        gather.came(GATHER_BYTES // 10, in_message=False)
        assert system.mark == 1
        clock.advance(SILENCE_S * 1.01)


def test_many_messages_without_a_pause_are_a_flow() -> None:
    gather, system, clock = gathering()
    for _ in range(10):
        gather.came(GATHER_BYTES // 8, in_message=False)
        clock.advance(0.001)
    assert system.mark == GATHER_BYTES
    clock.advance(SILENCE_S * 1.01)
    assert system.mark == 1
    gather.came(1000, in_message=False)
    assert system.mark == 1, "the silence has ended it"


def test_elsewhere_than_on_linux_no_mark_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    gather, system, _ = gathering()
    gather.came(3000, in_message=True)
    assert system.options == {}


def test_the_system_holds_a_moment_of_the_links_rate() -> None:
    system, now = System(), 1000.0
    unsent = Unsent(cast("Any", system))
    assert system.unsent == LEAST_UNSENT
    rate = 2_400_000
    for _ in range(100):
        unsent.went(rate // 50, now := now + 0.02)
    assert system.unsent == pytest.approx(rate * UNSENT_S, rel=0.05)


def test_what_it_holds_has_bounds() -> None:
    system, now = System(), 1000.0
    unsent = Unsent(cast("Any", system))
    for _ in range(100):
        unsent.went(10_000_000, now := now + 0.02)
    assert system.unsent == MOST_UNSENT
    for _ in range(100):
        unsent.went(100, now := now + 0.02)
    assert system.unsent == LEAST_UNSENT


def test_a_pause_says_nothing_about_the_rate() -> None:
    system, now = System(), 1000.0
    unsent = Unsent(cast("Any", system))
    for _ in range(100):
        unsent.went(40_000, now := now + 0.02)
    known = system.unsent
    unsent.went(40_000, now := now + 100 * RATE_S)
    assert system.unsent == known > LEAST_UNSENT


def test_an_option_that_the_system_lacks_is_left_out() -> None:
    class Without(System):
        def setsockopt(self, _: int, option: int, value: int) -> None:
            raise OSError(option, value)

    data_socket.set_option(cast("Any", Without()), socket.SOL_SOCKET, "SO_RCVLOWAT", 1)
    data_socket.set_option(cast("Any", System()), socket.SOL_SOCKET, "SO_OF_ANOTHER_SYSTEM", 1)


async def test_the_end_of_a_flow_arrives_though_it_is_short() -> None:
    """The last message is smaller than the low-water mark and nothing follows it, so a reader that waited for the mark
    would wait forever.
    """
    sizes = [100_000, 100_000, 100_000, 30, 50_000, 7]
    got: asyncio.Queue[Any] = asyncio.Queue()

    async def take(link: Connection) -> None:
        while True:
            got.put_nowait(await link.receive())

    async with listening(take) as server, asyncio.timeout(PATIENCE_S):
        link = await dial_relay(server)
        for number, size in enumerate(sizes):
            await link.send(frame(number, size))
            assert await got.get() == frame(number, size)
        await link.close()


async def test_bodies_sent_together_arrive_one_by_one_in_order() -> None:
    bodies = [frame(number, 20_000) for number in range(40)]
    got: asyncio.Queue[Any] = asyncio.Queue()

    async def take(link: Connection) -> None:
        while True:
            got.put_nowait(await link.receive())

    async with listening(take) as server, asyncio.timeout(PATIENCE_S):
        link = await dial_relay(server)
        await link.send(*bodies)
        assert [await got.get() for _ in bodies] == bodies
        await link.close()


# --- peers that are gone, on real sockets and with shorter timeouts

SLOW = """
import socket, sys, threading, time
from peer_agent.network import data_socket
from peer_agent.network.data_socket import Silence
data_socket.SILENT_S = 1.0
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 31250)
listener.bind(("127.0.0.1", 0))
listener.listen()
sender = socket.create_connection(listener.getsockname())
reader, _ = listener.accept()
def read():
    while reader.recv(16384):
        time.sleep(0.13)
def send():
    while True:
        sender.sendall(bytes(1 << 16))
for each in (read, send):
    threading.Thread(target=each, daemon=True).start()
silence, began = Silence(sender, time.monotonic()), time.monotonic()
while time.monotonic() < began + 3:
    assert not silence.is_too_long(time.monotonic())
    time.sleep(0.1)
waits, _ = silence._unacknowledged()
assert waits > 0
"""
GONE = """
import socket, subprocess, time
from peer_agent.network import data_socket
from peer_agent.network.data_socket import Silence
data_socket.SILENT_S = 1.0
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
listener = socket.create_server(("127.0.0.1", 0))
sender = socket.create_connection(listener.getsockname())
reader, _ = listener.accept()
sender.sendall(b"before")
silence = Silence(sender, time.monotonic())
until = time.monotonic() + 1.5
while time.monotonic() < until:
    assert not silence.is_too_long(time.monotonic()), "nothing waits"
    time.sleep(0.1)
subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
cut = time.monotonic()
sender.sendall(b"after")
while not silence.is_too_long(time.monotonic()):
    assert time.monotonic() < cut + 20
    time.sleep(0.1)
assert time.monotonic() > cut + 0.9, "it was idle before, and that is no silence"
"""


@pytest.mark.parametrize(("before", "script"), [([], SLOW), (["unshare", "-n"], GONE)], ids=["slow", "gone"])
def test_who_reads_slowly_answers_and_who_is_gone_does_not(before: list[str], script: str) -> None:
    done = subprocess.run(
        [*before, sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_link_to_who_is_gone_ends_and_no_other(is_gone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_socket, "LOOK_S", 0.05)
    asked: list[float] = []

    def is_too_long(_: Silence, now: float) -> bool:
        asked.append(now)
        return is_gone and len(asked) > 4

    monkeypatch.setattr(Silence, "is_too_long", is_too_long)
    async with listening(stay) as server:
        link = await dial_relay(server)
        ending = asyncio.create_task(how_it_ends(link))
        done, _ = await asyncio.wait([ending], timeout=PATIENCE_S if is_gone else 1.0)
        assert bool(done) is is_gone
        assert len(asked) > 4
        if is_gone:
            assert isinstance(ending.result(), LinkLost)
        ending.cancel()
        link.abort()
    await asyncio.sleep(0.2)
    so_far = len(asked)
    await asyncio.sleep(0.3)
    assert len(asked) == so_far, "nobody asks about a link that has ended"


async def test_what_is_forwarded_to_who_is_gone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "LOOK_S", 0.05)
    looks = iter([False, False, True])

    class OfTheEnd(Silence):
        def is_too_long(self, now: float) -> bool:
            return next(looks)

    monkeypatch.setattr(tunnel, "Silence", OfTheEnd)
    near, far = socket.socketpair()
    near.settimeout(0.0)
    async with listening(stay) as server, asyncio.timeout(PATIENCE_S):
        link = await dial_relay(server)
        await tunnel.carry(link, near, RunId(RUN))
        assert near.fileno() == -1
        link.abort()
    far.close()
    assert list(looks) == []


async def test_the_system_does_not_end_slow_readers() -> None:
    async with listening(stay) as server:
        link = await dial_relay(server)
        opened = link._socket.transport.get_extra_info("socket")
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
        link.abort()


ECHO = """
import asyncio
from websockets.asyncio.server import serve
async def stay(link):
    async for _ in link:
        pass
async def main():
    async with serve(stay, "127.0.0.1", 0, ping_interval=None) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().create_future()
asyncio.run(main())
"""


async def test_a_control_link_to_a_process_that_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process keeps its sockets, and its system goes on acknowledging bytes."""
    monkeypatch.setattr(data_socket, "PING_S", 0.05)
    monkeypatch.setattr(data_socket, "QUIET_S", 1.0)
    with subprocess.Popen(  # noqa: ASYNC220 (it returns at once)
        [sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        try:
            port = int(await asyncio.to_thread(other.stdout.readline))
            opened = await links._connect(f"ws://127.0.0.1:{port}/", Link.CONTROL)
            receiving = asyncio.create_task(opened.recv())
            await asyncio.wait([receiving], timeout=2.0)
            assert not receiving.done(), "it answers pings, though it says nothing"
            other.send_signal(signal.SIGSTOP)
            with pytest.raises(ConnectionClosed) as closed:
                await asyncio.wait_for(receiving, PATIENCE_S)
            assert "silent for 1 seconds" in str(closed.value.__cause__)
        finally:
            other.kill()


async def test_a_process_that_was_stopped_itself_reads_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_socket, "PING_S", 0.05)
    monkeypatch.setattr(data_socket, "QUIET_S", 0.4)
    async with serve(answer_all, "127.0.0.1", 0, ping_interval=None) as server:
        opened = await links._connect(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/", Link.CONTROL)
        time.sleep(1.0)  # noqa: ASYNC251 (the pause is what is tested)
        await opened.send(b"still there")
        assert await asyncio.wait_for(opened.recv(), PATIENCE_S) == b"still there"
        await opened.close()


async def answer_all(link: ServerConnection) -> None:
    async for message in link:
        await link.send(message)
