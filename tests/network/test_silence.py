"""Whoever acknowledges nothing is gone; whoever reads slowly is not. On real sockets, with less patience."""

import asyncio
import socket
import subprocess
import sys

import pytest

from peer_agent.network import data_socket, tunnel
from peer_agent.network.data_socket import Silence
from peer_agent.network.link import LinkLost
from peer_agent.protocol.identifiers import RunId
from tests.network.loopback import PATIENCE_S, dial_relay, how_it_ends, listening, stay
from tests.protocol.identities import RUN

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
while time.monotonic() < began + 5:
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
