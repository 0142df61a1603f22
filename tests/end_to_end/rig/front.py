"""A load balancer in front of a site's processes: it forwards connections from one address to the healthy processes.

Like the Caddyfile in docker/, it asks each process every two seconds for /healthz, because a process that hangs still
accepts connections.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

GONE_S = 5.0
ASK_S, ANSWER_S = 2.0, 2.0
QUESTION = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


class Front:
    """A TCP load balancer on a free loopback port. Each connection goes to the next healthy backend that accepts it."""

    def __init__(self, backends: Sequence[int]) -> None:
        self.backends, self.port = list(backends), 0
        self.turn = 0
        self.ill: set[int] = set()  # ports of backends that did not answer the last question
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._listen())
        self.ready.set()
        self.loop.run_forever()
        self.loop.run_until_complete(self._end())
        self.loop.close()

    async def _listen(self) -> None:
        self.server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.asking = [asyncio.create_task(self._ask(port)) for port in self.backends]

    async def _ask(self, port: int) -> None:
        while True:
            writer = None
            try:
                async with asyncio.timeout(ANSWER_S):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(QUESTION)
                    is_well = (await reader.readline()).split()[1:2] == [b"200"]
            except (OSError, TimeoutError):
                is_well = False
            finally:
                if writer is not None:
                    writer.close()
            (self.ill.discard if is_well else self.ill.add)(port)
            await asyncio.sleep(ASK_S)

    async def _end(self) -> None:
        self.server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=GONE_S) if tasks else None

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.turn += 1
        for number in range(len(self.backends)):
            port = self.backends[(self.turn + number) % len(self.backends)]
            if port in self.ill and len(self.ill) < len(self.backends):
                continue
            try:
                theirs, ours = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            await asyncio.wait(
                [asyncio.create_task(pump(reader, ours)), asyncio.create_task(pump(theirs, writer))],
                return_when=asyncio.FIRST_COMPLETED,
            )
            ours.close()
            break
        writer.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@contextmanager
def front(backends: Sequence[int]) -> Iterator[str]:
    balancer = Front(backends)
    thread = threading.Thread(target=balancer.run, name="front", daemon=True)
    thread.start()
    balancer.ready.wait()
    try:
        yield f"http://127.0.0.1:{balancer.port}"
    finally:
        balancer.loop.call_soon_threadsafe(balancer.loop.stop)
        thread.join()
