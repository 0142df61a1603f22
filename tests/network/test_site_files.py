"""The HTTP client's downloads and uploads, tested against a real loopback server whose responses each test sets."""

import asyncio
import contextlib
import errno
import gzip
import hashlib
import json
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from peer_agent.network import site
from peer_agent.network.site import download, upload
from peer_agent.network.uplink import DOWNLINK, TRAFFIC, UPLINK, Traffic
from peer_agent.protocol.errors import Problem
from tests.network.site_double import Handler, Site

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(CONTENT).hexdigest()
LIMIT = 1 << 22

pytestmark = pytest.mark.usefixtures("a_proxy_that_leads_nowhere")


def give_file(handler: Handler) -> None:
    start = int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
    if start >= len(CONTENT):
        handler.reply(416)
    elif start:
        where = f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}"
        handler.reply(206, CONTENT[start:], Content_Range=where)
    else:
        handler.reply(200, CONTENT)


# Downloads


async def fetch(url: str, path: Path, **kwargs: Any) -> None:
    expected: dict[str, Any] = {"sha256": SHA256, "size_limit": LIMIT}
    await download(url, path, **expected | kwargs)


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def partial_of(path: Path) -> Path:
    return path.with_name(path.name + ".part")


async def test_a_file_is_fetched_and_checked(server: Site, tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    await fetch(server.url("/file", give_file), path, headers={"X-A": "b"})
    assert path.read_bytes() == CONTENT
    assert not partial_of(path).exists()
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
    assert len(server.seen) == 1


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


def endless(handler: Handler) -> None:
    """Send more bytes than the client accepts, without a Content-Length."""
    handler.send_response(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.wfile.write(CONTENT)


async def test_more_than_the_limit_without_a_length_is_not_kept(server: Site, tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"E110.*more than 1000 bytes"):
        await fetch(server.url("/", endless), tmp_path / "file", size_limit=1000)
    assert files_in(tmp_path) == []


async def test_what_is_removed_is_closed_before(server: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows cannot remove a file that is open."""
    unlink = Path.unlink

    def unlink_as_windows(path: Path, missing_ok: bool = False) -> None:
        if str(path) in {file.path for file in psutil.Process().open_files()}:
            raise PermissionError(errno.EACCES, "The process cannot access the file")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_as_windows)
    with pytest.raises(Problem, match=r"E110.*more than 1000 bytes"):
        await fetch(server.url("/", endless), tmp_path / "file", size_limit=1000)
    assert files_in(tmp_path) == []


async def test_what_is_said_to_be_too_large_is_not_waited_for(server: Site, tmp_path: Path) -> None:
    done = threading.Event()

    def only_say(handler: Handler) -> None:
        handler.reply(200, Content_Length="1001")
        done.wait()

    with pytest.raises(Problem, match=r"E110.*more than 1000 bytes"):
        await fetch(server.url("/", only_say), tmp_path / "file", size_limit=1000)
    done.set()


async def test_a_site_without_even_a_beginning_is_e110(server: Site, tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"E110.*HTTP 416"):
        await fetch(server.url("/", lambda handler: handler.reply(416)), tmp_path / "file")


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
    with pytest.raises(Problem, match=r"E106.*No space left on device"):
        await fetch(server.url("/file", give_file), tmp_path / "file")


async def test_a_packed_file_is_kept_as_it_came(server: Site, tmp_path: Path) -> None:
    packed = gzip.compress(CONTENT)
    url = server.url("/", lambda handler: handler.reply(200, packed, Content_Encoding="gzip"))
    await fetch(url, tmp_path / "file", sha256=hashlib.sha256(packed).hexdigest())
    assert (tmp_path / "file").read_bytes() == packed


async def test_files_count_as_traffic(server: Site, tmp_path: Path) -> None:
    before = TRAFFIC.sent, TRAFFIC.received
    await fetch(server.url("/file", give_file), tmp_path / "file")
    await upload(server.url("/put", lambda handler: handler.reply(200, handler.body()[:0])), tmp_path / "file")
    assert (TRAFFIC.sent - before[0], TRAFFIC.received - before[1]) == (len(CONTENT), len(CONTENT))


async def test_a_cancelled_download_stops_and_keeps_what_it_has(
    server: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, more, writing = tmp_path / "file", threading.Event(), asyncio.Event()

    class Watched(Traffic):
        def add(self, *, sent: int = 0, received: int = 0) -> None:
            super().add(sent=sent, received=received)
            if self.received == 2 * site.BLOCK:
                writing.set()

    def slowly(handler: Handler) -> None:
        handler.reply(200, CONTENT[: 2 * site.BLOCK], Content_Length=str(len(CONTENT)))
        more.wait()
        handler.wfile.write(CONTENT[2 * site.BLOCK :])

    monkeypatch.setattr(site, "TRAFFIC", Watched())
    fetching = asyncio.create_task(fetch(server.url("/file", slowly), path))
    await writing.wait()
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    more.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert not path.exists()
    assert partial_of(path).read_bytes() in (CONTENT[: site.BLOCK], CONTENT[: 2 * site.BLOCK])


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


async def test_a_refusal_of_a_file_that_breaks_off_is_one(server: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Problem, match=r"E110.*HTTP 413"):
        await upload(
            server.url("/put", lambda handler: handler.reply(413, b'{"code', Content_Length="100")), tmp_path / "file"
        )


async def test_an_answer_that_breaks_off_is_none(server: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Problem, match="E104"):
        await upload(
            server.url("/put", lambda handler: handler.reply(200, b"{}", Content_Length="100")), tmp_path / "file"
        )


async def test_what_is_answered_packed_is_not_unpacked(server: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    answer = partial(Handler.reply, status=200, body=gzip.compress(b"{}"), Content_Encoding="gzip")
    with pytest.raises(Problem, match=r"E110.*not a JSON object"):
        await upload(server.url("/put", answer), tmp_path / "file")


async def test_a_file_that_is_not_there_is_e106(server: Site, tmp_path: Path) -> None:
    with pytest.raises(Problem, match="E106"):
        await upload(server.url("/put", give_file), tmp_path / "absent")


async def test_what_nobody_waits_for_any_more_is_sent_no_further(server: Site, tmp_path: Path) -> None:
    """The upload's thread cannot be killed, but it must stop sending once it is cancelled."""
    (tmp_path / "file").write_bytes(bytes(200 * site.BLOCK))
    began, more, got = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def slowly(handler: Handler) -> None:
        handler.rfile.read(site.BLOCK)
        loop.call_soon_threadsafe(began.set)
        more.wait(30)
        with contextlib.suppress(OSError):
            while block := handler.rfile.read(site.BLOCK):
                got.append(len(block))

    sending = asyncio.create_task(upload(server.url("/put", slowly), tmp_path / "file"))
    await began.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    more.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert sum(got) < 100 * site.BLOCK


async def test_files_leave_and_come_no_faster_than_the_owner_allows(server: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(3 * site.BLOCK))
    rate = 4 * site.BLOCK  # bytes per second
    UPLINK.limit(rate)
    DOWNLINK.limit(rate)
    try:
        began = time.monotonic()
        await upload(server.url("/put", lambda handler: handler.reply(200, handler.body()[:0])), tmp_path / "file")
        sent_s = time.monotonic() - began
        began = time.monotonic()
        await fetch(server.url("/file", give_file), tmp_path / "got")
        came_s = time.monotonic() - began
    finally:
        UPLINK.limit(0)
        DOWNLINK.limit(0)
    assert sent_s > 1.5 * site.BLOCK / rate, "the first block goes at once"
    assert came_s > 0.5 * len(CONTENT) / rate
