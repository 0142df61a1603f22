"""The two ends of a data link over TLS, shipped or plain: `python -m tests.benchmarks.rig.link_ends ROLE HOST …`.

The dialler sends frames as a contributor does. The listener returns each frame as an average, as a reducer does. The
plain ends send the same bytes over blocking sockets of `ssl`, with a thread and a connection for each direction. They
show the least possible cost."""

import asyncio
import json
import os
import resource
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable

from msgspec import Struct

from peer_agent.network.certificate import new_certificate, pinning_context
from peer_agent.network.link import Connection, dial
from peer_agent.network.relay_server import serve_data
from peer_agent.network.sending import Outbox, send_chunks
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.session import Link
from peer_agent.protocol.wire import Frame, Kind
from tests.protocol.identities import NOW, RELAY, RUN, relay, trainer

PIECE = 256 * 1024  # bytes that the plain ends pass to the operating system in one call
PATIENCE_S = 300.0


class Used(Struct):
    began_s: float = 0.0
    began_switches: int = 0

    @classmethod
    def now(cls) -> "Used":
        return cls(*_used())

    def line(self, moved: int) -> str:
        """Return a JSON line with the CPU seconds, the number of waits, and the bytes moved in both directions."""
        seconds, switches = _used()
        used = {"cpu_s": seconds - self.began_s, "waits": switches - self.began_switches, "moved": moved}
        return json.dumps(used)


def _used() -> tuple[float, int]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, usage.ru_nvcsw


def at_now() -> float:
    return NOW


async def listen(host: str, chunks: int, size: int) -> None:
    """Print the port and the certificate's fingerprint, serve one link, and print the resources used."""
    certificate, done = new_certificate(), asyncio.Event()
    outbox, used = Outbox(chunks * size), Used()

    async def handle(link: Connection) -> None:
        nonlocal used
        used = Used.now()
        following = asyncio.create_task(outbox.follow(link))
        for _ in range(chunks):
            frame = await link.receive()
            assert isinstance(frame, Frame)
            place = (frame.run, frame.step, frame.fence, frame.attempt, frame.span, frame.chunk, 0)
            outbox.publish(Frame(Kind.AVERAGE, *place, bytes(frame.payload)))
        await link.receive()  # the dialler confirms that it has all averages
        done.set()
        outbox.close()
        await following

    identity = relay()
    server = await serve_data(
        host,
        0,
        identity_of=lambda: identity,
        handle=handle,
        admit=lambda _: None,
        certificate=certificate,
        clock=at_now,
    )
    _say(f"{server.port} {certificate.fingerprint}")
    await done.wait()
    _say(used.line(2 * chunks * size))
    await server.close()


async def dial_and_send(host: str, port: int, fingerprint: str, chunks: int, size: int) -> None:
    """Open a link to the listener, send and receive all frames, and print the resources used."""
    link = await dial(
        f"wss://{host}:{port}/",
        link=Link.DATA,
        identity=trainer(),
        server=RELAY,
        version="1",
        fingerprint=fingerprint,
        clock=at_now,
    )
    await send_and_take(link, chunks, size)


async def send_and_take(link: Connection, chunks: int, size: int) -> None:
    payload, peer = memoryview(os.urandom(chunks * size)), PeerId(RELAY)
    frames = [
        Frame(Kind.GRADIENT, RUN, 1, 1, 1, 0, number, 0, payload[number * size : (number + 1) * size])
        for number in range(chunks)
    ]
    began, used = time.monotonic(), Used.now()
    sending = asyncio.create_task(send_chunks({peer: link}, {peer: frames}))
    for _ in range(chunks):
        await link.receive()
    await sending
    line = used.line(2 * chunks * size)
    await link.send(frames[0])
    _say(json.dumps({"seconds": time.monotonic() - began, **json.loads(line)}))
    await link.close()


def plain_listen(host: str, total: int) -> None:
    """Serve with plain sockets: one connection up and one down."""
    certificate = new_certificate()
    with socket.create_server((host, 0)) as listening:
        _say(f"{listening.getsockname()[1]} {certificate.fingerprint}")
        up, down = (certificate.context.wrap_socket(listening.accept()[0], server_side=True) for _ in range(2))
    used = Used.now()
    _both(lambda: _take(up, total), lambda: _give(down, total))
    _say(used.line(2 * total))


def plain_dial(host: str, port: int, total: int) -> None:
    context = pinning_context()
    up, down = (context.wrap_socket(socket.create_connection((host, port))) for _ in range(2))
    began, used = time.monotonic(), Used.now()
    _both(lambda: _give(up, total), lambda: _take(down, total))
    _say(json.dumps({"seconds": time.monotonic() - began, **json.loads(used.line(2 * total))}))


def _both(one: Callable[[], None], other: Callable[[], None]) -> None:
    beside = threading.Thread(target=one)
    beside.start()
    other()
    beside.join(PATIENCE_S)


def _give(link: ssl.SSLSocket, total: int) -> None:
    payload = memoryview(os.urandom(PIECE))
    for start in range(0, total, PIECE):
        link.sendall(payload[: min(PIECE, total - start)])
    link.recv(1)  # the listener confirms that it has everything


def _take(link: ssl.SSLSocket, total: int) -> None:
    into = memoryview(bytearray(PIECE))
    while total > 0:
        count = link.recv_into(into)
        if not count:
            raise EOFError
        total -= count
    link.sendall(b"1")


def _say(line: str) -> None:
    print(line, flush=True)


def main(role: str, host: str, *rest: str) -> None:
    match role, rest:
        case "listen", [chunks, size]:
            asyncio.run(asyncio.wait_for(listen(host, int(chunks), int(size)), PATIENCE_S))
        case "dial", [chunks, size, port, fingerprint]:
            sending = dial_and_send(host, int(port), fingerprint, int(chunks), int(size))
            asyncio.run(asyncio.wait_for(sending, PATIENCE_S))
        case "plain-listen", [chunks, size]:
            plain_listen(host, int(chunks) * int(size))
        case "plain-dial", [chunks, size, port, _]:
            plain_dial(host, int(port), int(chunks) * int(size))


if __name__ == "__main__":
    main(*sys.argv[1:])
