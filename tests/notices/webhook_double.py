"""A webhook server on real sockets that can misbehave."""

import contextlib
import json
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any, Self

PATIENCE_S = 60.0


@dataclass
class Posted:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class WebhookDouble:
    """A server that answers with `answer`: either bytes, or the name of a kind of misbehaviour."""

    def __init__(self) -> None:
        self.answer: bytes | str = status(204)
        self.posted: list[Posted] = []
        self.connections = 0
        self.cut = threading.Event()  # set when the client has closed the connection
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def address(self, path: str = "/hook?key=7") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for link in self._open:
            link.close()
        self._thread.join(PATIENCE_S)

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(link)
            self.connections += 1
            threading.Thread(target=self._talk, args=(link,), daemon=True).start()

    def _talk(self, link: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self.posted.append(read(link))
            match self.answer:
                case bytes():
                    link.sendall(self.answer)
                    link.close()
                case "close":
                    link.close()
                case "hang":
                    link.recv(1)  # returns when the client closes the connection
                    self.cut.set()
                case "drip":
                    self._send_for_ever(link, b"x", pause_s=0.02)
                case "endless head":
                    self._send_for_ever(link, b"X-More: and more\r\n" * 50)
                case "endless body":
                    link.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    self._send_for_ever(link, b"400\r\n" + b"x" * 1024 + b"\r\n")

    def _send_for_ever(self, link: socket.socket, piece: bytes, pause_s: float = 0.0) -> None:
        try:
            if piece[:1] != b"4":
                link.sendall(b"HTTP/1.1 200 OK\r\n")
            while True:
                link.sendall(piece)
                time.sleep(pause_s)
        except OSError:
            self.cut.set()


def status(code: int, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {code} Words", "Content-Length: 0", *headers, "", ""]).encode()


def read(link: socket.socket) -> Posted:
    """Read one request. Raise OSError if the connection ends early."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += received(link)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    while len(body) < int(headers["Content-Length"]):
        body += received(link)
    return Posted(first.split(" ")[1], headers, body)


def received(link: socket.socket) -> bytes:
    piece = link.recv(65_536)
    if not piece:
        raise ConnectionError
    return piece
