"""A forwarder, and a program that dials through it: `python -m tests.benchmarks.rig.forward_ends forward|dial …`.

The listener is that of `link_ends`. It returns each frame as an average, so that both directions are busy at once.
"""

import asyncio
import socket
import sys
from typing import Any

from peer_agent.network.certificate import new_certificate, pinning_context
from peer_agent.network.link import Connection, dial
from peer_agent.network.relay_server import serve_data
from peer_agent.network.tunnel import dial_through
from peer_agent.protocol.messages import Listener
from peer_agent.protocol.session import Link
from peer_agent.relay.forwarding import Forwarder
from tests.benchmarks.rig.link_ends import PATIENCE_S, at_now, send_and_take
from tests.benchmarks.rig.processes import leave_with_parent
from tests.protocol.identities import RELAY, RUN, relay, trainer

HOST = "127.0.0.1"
PIECE = 256 * 1024


async def forward(port: int, fingerprint: str, way: str) -> None:
    """Print the forwarder's port and fingerprint, then forward until the process ends. `way`: TLS, or plain TCP as
    behind a proxy that terminates TLS.
    """
    listener = Listener(RELAY, f"wss://{HOST}:{port}/", fingerprint)
    certificate = new_certificate() if way == "tls" else None
    server = await serve_data(
        HOST,
        0,
        identity_of=relay,
        handle=_nothing,
        admit=lambda _: None,
        certificate=certificate,
        clock=at_now,
        forward=Forwarder(lambda *_: listener).serve,
    )
    print(server.port, certificate.fingerprint if certificate is not None else "-", flush=True)
    await asyncio.Event().wait()


async def _nothing(_: Connection) -> None:
    return


async def dialled(way: str, ports: str, theirs: str, fingerprint: str) -> Connection:
    """Open a link to the listener at the second port, through the forwarder at the first port."""
    forwarder, listener = ports.split(",")
    about: dict[str, Any] = {"identity": trainer(), "version": "1", "clock": at_now}
    if way in ("forward", "forward-tls"):
        scheme, pinned = ("wss", theirs) if way == "forward-tls" else ("ws", "")
        url = f"{scheme}://{HOST}:{forwarder}/"
        to_relay = await dial(url, link=Link.FORWARD, server=RELAY, fingerprint=pinned, **about)
        far = Listener(RELAY, f"wss://{HOST}:{listener}/", fingerprint)
        return await dial_through(to_relay, far, run=RUN, **about)
    over = await _wrapped(int(forwarder)) if way == "tcp-tls" else None
    url = f"wss://{HOST}:{forwarder}/"
    return await dial(url, link=Link.DATA, server=RELAY, fingerprint=fingerprint, over=over, **about)


async def send(way: str, ports: str, fingerprints: str, chunks: int, size: int) -> None:
    """Open a link through the forwarder, send and receive all frames, and print the resources used."""
    theirs, fingerprint = fingerprints.split(",")
    await send_and_take(await dialled(way, ports, theirs, fingerprint), chunks, size)


async def _wrapped(port: int) -> socket.socket:
    """Return a socket to a forwarder that terminates TLS itself. The link's own TLS runs inside that connection."""
    near, far = socket.socketpair()
    outer = await asyncio.open_connection(HOST, port, ssl=pinning_context())
    far.settimeout(0.0)
    near.settimeout(0.0)
    inner = await asyncio.open_connection(sock=far)
    _KEPT.extend((asyncio.create_task(_copy(inner[0], outer[1])), asyncio.create_task(_copy(outer[0], inner[1]))))
    return near


_KEPT: list["asyncio.Task[None]"] = []


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(PIECE):
        writer.write(data)
        await writer.drain()


def main(role: str, *rest: str) -> None:
    leave_with_parent()
    if role == "forward":
        port, fingerprint, way = rest
        asyncio.run(forward(int(port), fingerprint, way))
    else:
        way, ports, fingerprints, chunks, size = rest
        sending = send(way, ports, fingerprints, int(chunks), int(size))
        asyncio.run(asyncio.wait_for(sending, PATIENCE_S))


if __name__ == "__main__":
    main(*sys.argv[1:])
