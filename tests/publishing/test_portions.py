"""Reading a file on the Hub range by range over unreliable connections, and comparing it with the Hub's listing."""

import io
from collections.abc import Iterator
from typing import Any, cast

import httpx2
import pytest
from pyarrow import parquet

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.portions import RangeFile
from tests.publishing.hub_double import Hub

MOST = 1 << 20


def remote(hub: Hub, content: bytes, most: int = MOST, size: int | None = None) -> RangeFile:
    commit = hub.put_files("datasets/amina/bytes", {"a.bin": content}).head
    length = len(content) if size is None else size
    return RangeFile("amina/bytes", commit, "a.bin", size=length, endpoint=hub.url, most=most)


def test_file_is_read_by_ranges_over_broken_connections(hub: Hub) -> None:
    content = bytes(range(256)) * 40
    file = remote(hub, content)
    hub.cut_after = 700
    file.seek(-300, io.SEEK_END)
    assert file.read() == content[-300:]
    file.seek(100)
    assert file.read(3000) == content[100:3100]
    assert file.tell() == 3100
    hub.sent = 0
    assert file.read(10) == content[3100:3110]
    assert hub.sent == 10, "and no more than was asked for"


def test_a_hub_that_sends_nothing_is_away(hub: Hub) -> None:
    file = remote(hub, bytes(5000))
    hub.failing = 1.0
    with pytest.raises(Problem) as caught:
        file.read(10)
    assert caught.value.fault.code == "E346"


@pytest.mark.parametrize("strange", ["whole", "other size", "too much"])
def test_another_file_is_told_from_the_one_that_was_listed(hub: Hub, strange: str) -> None:
    file = remote(hub, bytes(5000), most=100 if strange == "too much" else MOST)
    if strange == "whole":
        hub.ignores_ranges = True
    if strange == "other size":
        hub.damaged["a.bin"] = bytes(6000)
    with pytest.raises(Problem) as caught:
        file.read(200)
    assert caught.value.fault.code == "E414"


def test_a_repository_that_is_gone_is_said_to_be(hub: Hub) -> None:
    file = remote(hub, bytes(5000))
    hub.repositories.pop("datasets/amina/bytes")
    with pytest.raises(Problem) as caught:
        parquet.ParquetFile(cast("io.BytesIO", file))
    assert caught.value.fault.code == "E397", "also through the library that asks"


def test_what_has_come_is_kept_where_a_connection_is_reset(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 40
    file = remote(hub, content)
    iterated, asked = httpx2.Response.iter_bytes, list[int]()

    def resetting(self: httpx2.Response, *_: Any) -> Iterator[bytes]:
        asked.append(1)
        for block in iterated(self):
            yield block[:1000]
            if len(asked) < 4:
                raise httpx2.ReadError("reset by peer")

    monkeypatch.setattr(httpx2.Response, "iter_bytes", resetting)
    assert file.read(4000) == content[:4000]
    assert len(asked) == 4
