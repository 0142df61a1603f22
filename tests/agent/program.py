"""Helpers for the command tests: run the agent's console script, and serve small HTTP sites on loopback."""

import base64
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from peer_agent.machine.home import Home, KnownSite
from peer_agent.protocol.credentials import LIFETIME_S, Credential, Role, issue, public_bytes
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import ANY_RUN
from tests.agent.scripted_site import TRAINER
from tests.protocol.identities import RUN, SITE_KEY, SITE_PUBLIC

ROOT = str(Path(__file__).resolve().parents[2])  # the agent of this checkout, even if another version is installed
MANYHANDS = str(Path(sys.executable).with_name("manyhands"))
Answer = tuple[int, Any]


def environment(home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "MANYHANDS_HOME": str(home),
        "PYTHONPATH": ROOT,
        "OMP_NUM_THREADS": "1",
    }


def manyhands(home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the agent's command to completion, with `more` added to its environment."""
    return subprocess.run(
        [MANYHANDS, *arguments],
        env=environment(home) | more,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def complaint(home: Path, *arguments: str) -> str:
    """Return what the command writes to standard error. Fail unless it exits with status 1 and prints no traceback."""
    done = manyhands(home, *arguments)
    said = [line for line in done.stderr.splitlines() if " websockets." not in line and " peer_agent." not in line]
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    return "\n".join(said)


@contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(http.server.BaseHTTPRequestHandler, ABC):
    """A request handler that passes each request's body to the subclass's `respond`. The body of a GET is empty."""

    @abstractmethod
    def respond(self, body: bytes) -> None:
        pass

    def do_GET(self) -> None:
        self.respond(b"")

    def do_POST(self) -> None:
        self.respond(self.rfile.read(int(self.headers["Content-Length"])))

    def reply(self, status: int, body: Any, **headers: str) -> None:
        """Send `body` as it is if it is bytes, as an HTML page if it is text, and otherwise as JSON."""
        page = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def http_site(answer: Callable[[str], Answer]) -> Iterator[str]:
    """Serve a site. `answer` maps a path to a status and a body. Objects are sent as JSON, text as an HTML page."""

    class Site(Handler):
        def respond(self, body: bytes) -> None:
            self.reply(*answer(self.path))

    with serving(Site) as url:
        yield url


def known_at(home: Path, url: str) -> None:
    Home(home).remember(KnownSite(url, TRAINER, "ann", SITE_PUBLIC.hex()))


def refusal(code: str, **details: object) -> dict[str, str]:
    fault = Fault.of(code, **details)
    return {"code": fault.code, "text": fault.text}


def credential(home: Path, control: str, role: Role = Role.TRAINER) -> dict[str, str]:
    """Return the site's answer to a peer that it admits, with a signed credential."""
    now = int(time.time())
    own = Credential(
        person="ann",
        machine=TRAINER,
        run=ANY_RUN if role is Role.RELAY else RUN,
        role=role,
        key=public_bytes(Home(home).key()),
        not_before=now - 60,
        expires=now + LIFETIME_S,
    )
    packed = base64.b64encode(msgspec.msgpack.encode(issue(SITE_KEY, own))).decode()
    return {"credential": packed, "site_key": SITE_PUBLIC.hex(), "control": control, "run": own.run, "title": "A run"}
