"""A load balancer in front of a site's processes: it forwards connections from one address to the running processes."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

GONE_S = 5.0


class Front:
    """A TCP load balancer on a free loopback port. Each connection goes to the next backend that accepts it."""

    def __init__(self, backends: Sequence[int]) -> None:
        self.backends, self.port = list(backends), 0
        self.turn = 0
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
