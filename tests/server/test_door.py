"""The site's port leads to its relay: connections for /relay/ are passed to the relay's process."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from websockets.exceptions import InvalidHandshake, WebSocketException
from websockets.sync.client import connect

from peer_agent.network.relay_server import HandedOver
from server.door import TRIES, hand_over, open_door, place_in
from server.lock import Place
from server.relay import address_behind
from tests.server.test_serve import PATIENCE_S, relay_of, serving, wait_until, where


@pytest.fixture
def site(tmp_path: Path, migrated_sqlite: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Yield the address behind which the relay of a real site is reached, and the site's process."""
    shutil.copy(migrated_sqlite, tmp_path)
    with serving(tmp_path) as process:
        yield address_behind(where(tmp_path, process)["url"], Place(tmp_path, 1)), process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)


def greeting(address: str, **headers: str) -> bytes:
    """Return the first bytes that the relay sends on a new connection, or none if there is no relay."""
    try:
        with connect(address, proxy=None, additional_headers=headers) as link:
            said = link.recv(timeout=PATIENCE_S)
            assert isinstance(said, bytes)
            return said
    except (OSError, InvalidHandshake, WebSocketException):
        return b""


def test_one_port_serves_pages_and_relay(site: tuple[str, "subprocess.Popen[str]"], tmp_path: Path) -> None:
    address, process = site
    assert address.startswith("ws://127.0.0.1:")
    wait_until(lambda: greeting(address))
    assert (tmp_path / "relay.sock").is_socket()
    assert greeting(address, **{"X-Filler": "x" * 4000}), "the head may be long"
    relay = relay_of(process)
    listening = [each for each in relay.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    assert listening == [], "it has no port of its own"
    os.kill(relay.pid, signal.SIGKILL)
    wait_until(lambda: not greeting(address) or relay_of(process).pid != relay.pid)
    wait_until(lambda: greeting(address))
    assert relay_of(process).pid != relay.pid, "the next relay has the connections"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert not (tmp_path / "relay.sock").exists()


def test_bytes_do_not_pass_through_the_site(site: tuple[str, "subprocess.Popen[str]"]) -> None:
    """While the site's process is stopped, an open connection to the relay goes on."""
    address, process = site
    wait_until(lambda: greeting(address))
    with connect(address, proxy=None) as link:
        link.recv(timeout=PATIENCE_S)
        process.send_signal(signal.SIGSTOP)
        try:
            assert link.ping().wait(PATIENCE_S), "the relay answers"
        finally:
            process.send_signal(signal.SIGCONT)


class TestPassing:
    """The folder's path is longer than the system allows for a socket's path."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        folder = tmp_path / ("x" * 120)
        folder.mkdir()
        return Place(folder, 1)

    @pytest.fixture
    def taking(self, place: Place) -> Iterator[HandedOver]:
        with HandedOver(open_door(place)) as taking:
            taking.settimeout(0.0)
            yield taking

    async def pass_one(self, place: Place, head: bytes, tries: int = TRIES) -> socket.socket:
        """Pass the accepted end of a new connection, and return the other end."""
        ours, theirs = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, theirs)
        hand_over(place, transport, head, "2001:db8::7", tries)
        await asyncio.sleep(0)
        return ours

    async def test_address_head_and_connection_arrive(self, place: Place, taking: HandedOver) -> None:
        with contextlib.closing(await self.pass_one(place, b"GET /relay/\n\n")) as ours:
            connection, (address, _) = taking.accept()
            assert (address, taking.heads[connection.fileno()]) == ("2001:db8::7", b"GET /relay/\n\n")
            connection.sendall(b"hello")
            assert ours.recv(9) == b"hello"
            connection.close()
        with pytest.raises(BlockingIOError):
            taking.accept()

    async def test_each_relay_gets_its_own_connections(self, place: Place, taking: HandedOver) -> None:
        second = place_in(place.folder, b"/relay-2/?x")
        assert second == Place(place.folder, 2)
        with HandedOver(open_door(second)) as other, contextlib.closing(await self.pass_one(second, b"2")):
            with pytest.raises(BlockingIOError):
                taking.accept()
            connection, _ = other.accept()
            assert other.heads[connection.fileno()] == b"2"
            connection.close()

    async def test_connection_ends_if_no_relay_takes_it(self, place: Place) -> None:
        open_door(place).close()
        with contextlib.closing(await self.pass_one(place, b"GET /relay/\n\n")) as ours:
            assert ours.recv(9) == b""

    async def test_path_of_no_relay_fills_no_log(self, place: Place, caplog: pytest.LogCaptureFixture) -> None:
        for number in (7, 8):
            with contextlib.closing(await self.pass_one(Place(place.folder, number), b"GET /relay-7/\n\n")) as ours:
                assert ours.recv(9) == b""
        assert caplog.records == []
        open_door(place).close()
        (await self.pass_one(place, b"GET /relay/\n\n")).close()
        assert [record.levelname for record in caplog.records] == ["WARNING"], "a relay that is gone is worth a line"

    async def test_connections_wait_while_the_queue_is_full(self, place: Place, taking: HandedOver) -> None:
        with contextlib.ExitStack() as ends:
            for at in range(300):
                ends.enter_context(await self.pass_one(place, b"%d" % at, tries=1_000_000))
            came: set[bytes] = set()
            async with asyncio.timeout(PATIENCE_S):
                while len(came) < 300:
                    with contextlib.suppress(BlockingIOError):
                        connection, _ = taking.accept()
                        came.add(taking.heads.pop(connection.fileno()))
                        connection.close()
                    await asyncio.sleep(0)

    async def test_relay_that_hangs_does_not_block_the_site(self, place: Place, taking: HandedOver) -> None:
        ends = [await self.pass_one(place, b"x" * 16_000) for _ in range(300)]
        ends[-1].setblocking(False)
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.get_running_loop().sock_recv(ends[-1], 9) == b"", "its queue stays full"
        for end in ends:
            end.close()


@pytest.mark.parametrize(
    "url", [b"/", b"/relay", b"/relay-0/", b"/relay-2", b"/relay-02/", b"/relay-99999/", b"/x/relay/"]
)
def test_other_paths_lead_to_no_relay(url: bytes) -> None:
    assert place_in(Path(), url) is None
