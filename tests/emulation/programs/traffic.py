"""Plain TCP in both directions at full speed: `python -m tests.emulation.programs.traffic NAME ADDRESS`.

The program listens on the address, prints "ready", and reads one line of JSON. That line gives the addresses to
`dial`, the monotonic times `start` and `stop` between which bytes are counted, and the highest rate toward each peer
in bytes per second (`most`). At the end, the program prints how many bytes came from each peer.
"""

import json
import math
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

PORT = 5201
PIECE = 256 * 1024
SMALL_PIECE = 16 * 1024
NAME_BYTES = 64
PATIENCE_S = 10.0
# A single connection may take seconds to reach its rate while the other direction is full.
CONNECTIONS = 4


class Exchange:
    """Connections, each with a sending and a receiving thread, that run until the stop time."""

    def __init__(self, name: str, start: float, stop: float, most: Mapping[str, float]) -> None:
        self._name = name
        self._most = most
        self._start, self._stop = start, stop
        self._connections: list[socket.socket] = []
        self.received: Counter[str] = Counter()

    def dial(self, address: str) -> None:
        self._use(socket.create_connection((address, PORT), PATIENCE_S))

    def accept(self, listening: socket.socket) -> None:
        while True:
            self._use(listening.accept()[0])

    def _use(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_S)
        connection.sendall(self._name.encode().ljust(NAME_BYTES))
        other = connection.recv(NAME_BYTES, socket.MSG_WAITALL).decode().strip()
        connection.settimeout(None)
        self._connections.append(connection)
        most = self._most.get(other, math.inf) / CONNECTIONS
        threading.Thread(target=send, args=(connection, most), daemon=True).start()
        threading.Thread(target=self._receive, args=(connection, other), daemon=True).start()

    def _receive(self, connection: socket.socket, other: str) -> None:
        room = bytearray(PIECE)
        with suppress(OSError):  # the time is over
            while count := connection.recv_into(room):
                if self._start <= time.monotonic() < self._stop:
                    self.received[other] += count

    def end(self) -> None:
        time.sleep(max(0.0, self._stop - time.monotonic()))
        for connection in self._connections:
            with suppress(OSError):  # the other side closed first
                connection.shutdown(socket.SHUT_RDWR)


def send(connection: socket.socket, most: float) -> None:
    """Send zeros at up to `most` bytes per second, until the connection is shut down."""
    piece = bytes(PIECE if math.isinf(most) else SMALL_PIECE)
    due = time.monotonic()
    with suppress(OSError):
        while True:
            connection.sendall(piece)
            due = max(due + len(piece) / most, time.monotonic() - SMALL_PIECE / most)
            time.sleep(max(0.0, due - time.monotonic()))


def main(name: str, address: str) -> None:
    listening = socket.create_server((address, PORT), backlog=256)
    print("ready", flush=True)
    work = json.loads(sys.stdin.readline())
    exchange = Exchange(name, work["start"], work["stop"], work["most"])
    threading.Thread(target=exchange.accept, args=(listening,), daemon=True).start()
    for other in work["dial"] * CONNECTIONS:
        exchange.dial(other)
    exchange.end()
    print(json.dumps(exchange.received), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
