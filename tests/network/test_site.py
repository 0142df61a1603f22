"""The HTTP client against a real server on loopback that answers as each test says."""

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from peer_agent.network import site
from peer_agent.network.site import download, get_json, post_json, sign_request, upload
from peer_agent.protocol.credentials import LINK, REQUEST, Signed, is_signed_by, public_bytes
from peer_agent.protocol.errors import Problem
from tests.protocol.identities import TRAINER_KEY

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(CONTENT).hexdigest()
LIMIT = 1 << 22

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Leaves every answer to the test."""

    protocol_version = "HTTP/1.1"
    server: "Site"

    def answer(self) -> None:
        self.close_connection = True
        self.server.seen.append(
            (self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        )
        self.server.answers[self.path](self)

    do_GET = do_POST = do_PUT = answer  # noqa: N815 (names of the standard library)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in ({"Content_Length": str(len(body))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the standard library's name)
        pass


class Site(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.seen: list[tuple[str, str, dict[str, str]]] = []

    def url(self, path: str, answer: Answer) -> str:
        self.answers[path] = answer
        return f"http://127.0.0.1:{self.server_port}{path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is part of some tests."""


@pytest.fixture
def server() -> Iterator[Site]:
    with Site() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def a_proxy_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test here proves that loopback does without."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)


def give_file(handler: Handler) -> None:
    """The file, or the rest of it."""
    start = int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
    if start >= len(CONTENT):
        handler.reply(416)
    elif start:
        where = f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}"
        handler.reply(206, CONTENT[start:], Content_Range=where)
    else:
        handler.reply(200, CONTENT)


# JSON


async def test_an_object_goes_and_another_comes_back(server: Site) -> None:
    def echo(handler: Handler) -> None:
        handler.reply(200, json.dumps({"got": json.loads(handler.body())}).encode())

    url = server.url("/api", echo)
    assert await post_json(url, {"a": 1}, token="secret", headers={"X-More": "1"}) == {"got": {"a": 1}}
    assert await post_json(url, b'{"b": 2}') == {"got": {"b": 2}}
    method, _, headers = server.seen[0]
    assert (method, headers["authorization"], headers["x-more"]) == ("POST", "Bearer secret", "1")
    assert headers["content-type"] == "application/json"
    assert "authorization" not in server.seen[1][2]


async def test_an_empty_answer_is_an_empty_object(server: Site) -> None:
    assert await get_json(server.url("/", lambda handler: handler.reply(204)), token="t") == {}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 429, 500, 503])
async def test_the_sites_own_errors_are_passed_on(server: Site, status: int) -> None:
    body = json.dumps({"code": "E305", "text": "There is no run."}).encode()
    with pytest.raises(Problem, match=r"E305: There is no run\."):
        await get_json(server.url("/", lambda handler: handler.reply(status, body)))


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (404, b"<html>not found</html>", "HTTP 404"),
        (502, b'{"detail": "no"}', "HTTP 502"),
        (500, b'{"code": 5, "text": []}', "HTTP 500"),
        (200, b"<html>", "no JSON object"),
        (200, b"[1]", "no JSON object"),
        (200, b"\xff", "no JSON object"),
        (200, b"[" * 100_000, "no JSON object"),
    ],
)
async def test_anything_else_is_e110(server: Site, status: int, body: bytes, reason: str) -> None:
    with pytest.raises(Problem, match=rf"E110: http://.*{reason}"):
        await get_json(server.url("/", lambda handler: handler.reply(status, body)))


async def test_answers_are_bounded(server: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "JSON_LIMIT", 100)
    body = json.dumps({"a": "x" * 100}).encode()
    with pytest.raises(Problem, match=r"E110.*more than 100 bytes"):
        await get_json(server.url("/", lambda handler: handler.reply(200, body)))


async def test_nobody_there_is_e104(server: Site) -> None:
    server.server_close()
    with pytest.raises(Problem, match="E104"):
        await get_json(f"http://127.0.0.1:{server.server_port}/")


async def test_a_site_that_says_nothing_is_e104_in_time(server: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "TIMEOUT_S", 0.05)
    done = threading.Event()

    def silence(_: Handler) -> None:
        done.wait()

    with pytest.raises(Problem, match="E104"):
        await get_json(server.url("/", silence))
    done.set()


@pytest.mark.parametrize(
    ("url", "code"), [("http://8.8.8.8/", "E105"), ("ftp://127.0.0.1/", "E104"), ("file:///etc/passwd", "E104")]
)
async def test_addresses_that_are_not_asked(url: str, code: str) -> None:
    with pytest.raises(Problem, match=code):
        await get_json(url)


async def test_a_certificate_that_nobody_vouches_for_is_e104(server: Site) -> None:
    """TLS is spoken at all, and a server without it is not believed."""
    url = server.url("/", lambda handler: handler.reply(200, b"{}"))
    with pytest.raises(Problem, match="E104"):
        await get_json(url.replace("http://", "https://"))


async def test_a_redirect_takes_no_secrets_along_and_a_post_is_not_redirected(server: Site) -> None:
    with Site() as elsewhere:
        thread = threading.Thread(target=elsewhere.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        there = elsewhere.url("/there", lambda handler: handler.reply(200, b'{"a": 1}'))
        here = server.url("/here", lambda handler: handler.reply(307, Location=there))
        secrets = {**sign_request(TRAINER_KEY, b""), "X-Harmless": "1"}
        assert await get_json(here, token="secret", headers=secrets) == {"a": 1}
        with pytest.raises(Problem, match=r"E110.*307"):
            await post_json(here, {})
        elsewhere.shutdown()
        thread.join()
    ((_, _, headers),) = elsewhere.seen
    assert {"authorization", "x-manyhands-signature"}.isdisjoint(headers)
    assert headers["x-harmless"] == "1"


async def test_a_redirect_into_the_clear_is_refused(server: Site) -> None:
    with pytest.raises(Problem, match="E105"):
        await get_json(server.url("/", lambda handler: handler.reply(302, Location="http://8.8.8.8/")))


def test_a_signature_is_for_a_request_and_its_body() -> None:
    headers = sign_request(TRAINER_KEY, b"body")
    signature = bytes.fromhex(headers.pop("X-Manyhands-Signature"))
    assert headers == {}
    public = public_bytes(TRAINER_KEY)
    assert is_signed_by(public, REQUEST, Signed(b"body", signature))
    assert not is_signed_by(public, REQUEST, Signed(b"bodies", signature))
    assert not is_signed_by(public, LINK, Signed(b"body", signature))


# Downloads


async def fetch(url: str, path: Path, **kwargs: Any) -> None:
    expected: dict[str, Any] = {"sha256": SHA256, "size_limit": LIMIT}
    await download(url, path, **expected | kwargs)


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def partial_of(path: Path) -> Path:
    return path.with_name(path.name + ".part")


async def test_a_file_is_fetched_and_checked_and_progress_is_told(server: Site, tmp_path: Path) -> None:
    path, told = tmp_path / "new" / "file", list[tuple[int, int]]()
    await fetch(server.url("/file", give_file), path, progress=lambda *now: told.append(now), headers={"X-A": "b"})
    assert path.read_bytes() == CONTENT
    assert not partial_of(path).exists()
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert told == sorted(told)
    assert server.seen[0][2]["x-a"] == "b"


async def test_an_empty_file_is_a_file(server: Site, tmp_path: Path) -> None:
    url = server.url("/", lambda handler: handler.reply(200))
    await fetch(url, tmp_path / "file", sha256=hashlib.sha256().hexdigest())
    assert (tmp_path / "file").read_bytes() == b""


async def test_a_download_goes_on_where_it_broke_off(server: Site, tmp_path: Path) -> None:
    path, half = tmp_path / "file", len(CONTENT) // 2

    def break_off(handler: Handler) -> None:
        handler.reply(200, CONTENT[:half], Content_Length=str(len(CONTENT)))

    with pytest.raises(Problem, match=rf"E104.*after {half} of {len(CONTENT)}"):
        await fetch(server.url("/file", break_off), path)
    assert not path.exists()
    await fetch(server.url("/file", give_file), path)
    assert path.read_bytes() == CONTENT
    assert server.seen[-1][2]["range"] == f"bytes={half}-"


async def test_a_server_without_ranges_begins_anew(server: Site, tmp_path: Path) -> None:
    path = tmp_path / "file"
    partial_of(path).write_bytes(CONTENT[:1000])
    await fetch(server.url("/", lambda handler: handler.reply(200, CONTENT)), path)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"damaged", CONTENT, CONTENT + b"more"], ids=["damaged", "complete", "longer"])
async def test_whatever_was_left_over_the_file_comes_out_right(server: Site, tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "file"
    partial_of(path).write_bytes(left)
    await fetch(server.url("/file", give_file), path)
    assert path.read_bytes() == CONTENT
    assert len(server.seen) == (1 if left == CONTENT else 2)


async def test_a_damaged_file_is_e111_and_leaves_nothing(server: Site, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(Problem, match=r"E111: The file model\.safetensors"):
        await fetch(server.url("/", lambda handler: handler.reply(200, CONTENT[::-1])), path)
    assert files_in(tmp_path) == []


async def test_what_was_there_before_stays_until_the_new_one_is_right(server: Site, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(Problem, match="E111"):
        await fetch(server.url("/", lambda handler: handler.reply(200, b"bad")), path)
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("length", [{}, {"Content_Length": "100"}], ids=["declared", "understated"])
async def test_more_than_the_limit_is_not_kept(server: Site, tmp_path: Path, length: dict[str, str]) -> None:
    url = server.url("/", lambda handler: handler.reply(200, CONTENT, **length))
    with pytest.raises(Problem, match=r"E111" if length else r"E110.*more than 1000 bytes"):
        await fetch(url, tmp_path / "file", size_limit=1000)
    assert files_in(tmp_path) == []


async def test_more_than_the_limit_without_a_length_is_not_kept(server: Site, tmp_path: Path) -> None:
    def endless(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(CONTENT)

    with pytest.raises(Problem, match=r"E110.*more than 1000 bytes"):
        await fetch(server.url("/", endless), tmp_path / "file", size_limit=1000)
    assert files_in(tmp_path) == []


async def test_a_missing_file_is_the_sites_own_error(server: Site, tmp_path: Path) -> None:
    body = json.dumps({"code": "E310", "text": "No such snapshot."}).encode()
    with pytest.raises(Problem, match="E310"):
        await fetch(server.url("/", lambda handler: handler.reply(404, body)), tmp_path / "file")


async def test_a_disk_that_cannot_be_written_is_e106(server: Site, tmp_path: Path) -> None:
    url = server.url("/file", give_file)
    (tmp_path / "no folder").write_bytes(b"")
    with pytest.raises(Problem, match="E106"):
        await fetch(url, tmp_path / "no folder" / "file")
    partial_of(tmp_path / "file").mkdir()
    with pytest.raises(Problem, match="E106"):
        await fetch(url, tmp_path / "file")


async def test_a_full_disk_is_e106(server: Site, tmp_path: Path) -> None:
    partial_of(tmp_path / "file").symlink_to("/dev/full")
    with pytest.raises(Problem, match=r"E106.*it is full"):
        await fetch(server.url("/file", give_file), tmp_path / "file")


async def test_a_cancelled_download_stops_and_keeps_what_it_has(server: Site, tmp_path: Path) -> None:
    path, more, begun = tmp_path / "file", threading.Event(), asyncio.Event()

    def slowly(handler: Handler) -> None:
        handler.reply(200, CONTENT[: site.BLOCK], Content_Length=str(len(CONTENT)))
        more.wait()
        handler.wfile.write(CONTENT[site.BLOCK :])

    fetching = asyncio.create_task(fetch(server.url("/file", slowly), path, progress=lambda *_: begun.set()))
    await begun.wait()
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    more.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert not path.exists()
    assert partial_of(path).read_bytes() == CONTENT[: site.BLOCK]


# Uploads


async def test_a_file_is_put_as_it_is(server: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    got: list[bytes] = []

    def take(handler: Handler) -> None:
        got.append(handler.body())
        handler.reply(201, b'{"stored": true}')

    assert await upload(server.url("/put", take), tmp_path / "file", {"X-Step": "5"}) == {"stored": True}
    assert got == [CONTENT]
    method, _, headers = server.seen[0]
    assert (method, headers["content-length"], headers["x-step"]) == ("PUT", str(len(CONTENT)), "5")
    assert "transfer-encoding" not in headers


async def test_a_site_that_refuses_before_the_end_is_heard(server: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT * 64)
    body = json.dumps({"code": "E304", "text": "Too large."}).encode()
    with pytest.raises(Problem, match="E304"):
        await upload(server.url("/put", lambda handler: handler.reply(413, body)), tmp_path / "file")


async def test_a_file_that_is_not_there_is_e106(server: Site, tmp_path: Path) -> None:
    with pytest.raises(Problem, match="E106"):
        await upload(server.url("/put", give_file), tmp_path / "absent")
