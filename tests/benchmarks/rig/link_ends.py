"""The two ends of a data link over TLS. The dialler sends frames as a contributor does. The listener returns each frame
as an average, as a reducer does: `python -m tests.benchmarks.rig.link_ends HOST CHUNKS SIZE`."""

import asyncio
import json
import os
import resource
import sys
import time

from msgspec import Struct

from peer_agent.network.certificate import new_certificate
from peer_agent.network.link import Connection
from peer_agent.network.relay_server import serve_data
from peer_agent.network.sending import Outbox, send_chunks
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.wire import Frame, Kind
from tests.protocol.identities import NOW, RELAY, RUN, relay

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


def _say(line: str) -> None:
    print(line, flush=True)


def main(host: str, chunks: str, size: str) -> None:
    asyncio.run(asyncio.wait_for(listen(host, int(chunks), int(size)), PATIENCE_S))


if __name__ == "__main__":
    main(*sys.argv[1:])
